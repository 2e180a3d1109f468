"""What the tests of all models share; functions that tests import are in `draws`."""

import sys
from pathlib import Path

# Tests are imported without their folder on the path, and some share functions that lie beside them.
sys.path.insert(0, str(Path(__file__).parent))
