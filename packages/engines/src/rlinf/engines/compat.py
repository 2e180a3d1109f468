"""Names that users of other systems know, and what stands for them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GENERATORS: Final[Mapping[str, str]] = dict.fromkeys(("huggingface", "transformers"), "What generates with transformers is 'hf'.")
"""What to say of a word that is no generator."""
