"""What stands in the JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rlinf.core.errors import CheckpointError


def read_json(file: Path) -> dict[str, Any]:
    """What a file says; nothing if it is not there.

    Raises:
        CheckpointError: it is no JSON, or no mapping.
    """
    if not file.is_file():
        return {}
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), f"can't be read ({error})", "Use another checkpoint.") from error
    if not isinstance(content, dict):
        raise CheckpointError(str(file), f"expected a mapping, found {type(content).__name__}", "Use another checkpoint.")
    return cast("dict[str, Any]", content)
