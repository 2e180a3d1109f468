"""Reads parquet files, with pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError

pa: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")


def read_rows(path: Path, limit: int | None) -> list[Mapping[str, Any]]:
    """The rows of a file as plain values.

    Raises:
        ConfigError: it is no parquet file.
    """
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(str(path), f"no parquet file ({error})", "Name another file.") from error
    return (table if limit is None else table.slice(0, limit)).to_pylist()
