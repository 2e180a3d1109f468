"""The tests share a toy policy; two processes of one test share it too, so it is a module beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
