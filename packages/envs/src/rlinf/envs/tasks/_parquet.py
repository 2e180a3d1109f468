"""Reads parquet files, with pyarrow."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError

pa: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")
_BATCH = 4096
"""Rows that are decoded together."""


def read_rows(path: Path, limit: int | None) -> list[Mapping[str, Any]]:
    """The rows of a file as plain values; of what lies behind the limit no more than a batch is read.

    Raises:
        ConfigError: it is no parquet file.
    """
    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=min(limit or _BATCH, _BATCH))
            return list(itertools.islice((row for batch in batches for row in batch.to_pylist()), limit))
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(str(path), f"no parquet file ({error})", "Name another file.") from error
