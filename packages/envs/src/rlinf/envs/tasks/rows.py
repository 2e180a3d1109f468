"""Rows of files: JSON lines or parquet, with the place of each for messages."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import require_modules

SUFFIXES: Final = (".jsonl", ".parquet")
Row = Mapping[str, Any]


def check_rows_file(path: Path, place: str) -> None:
    """Refuses a file that is not there, or that nothing here reads.

    Raises:
        ConfigError: no such file, or another ending.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(place, f"expected a file ending in {' or '.join(SUFFIXES)}, found '{path}'")
    if not path.is_file():
        raise ConfigError(place, f"no file '{path}'", "Name a file that is there; nothing is downloaded.")
    if path.suffix == ".parquet":
        require_modules("pyarrow", place=place, extra="rlinf-envs[datasets]")


def read_rows(path: Path, limit: int | None = None, *, place: str) -> Iterator[tuple[str, Row]]:
    """Each row and where it stands, as `file:line` (of parquet: `file:row`, from 1).

    Args:
        path: of the file.
        limit: only so many rows are read; None for all.
        place: the key that names the file.

    Raises:
        ConfigError: there is no such file, or a line is no JSON object in UTF-8; the message names the line.
    """
    check_rows_file(path, place)
    if path.suffix == ".parquet":
        from rlinf.envs.tasks import _parquet

        found = enumerate(_parquet.read_rows(path, limit), start=1)
        yield from ((f"{path}:{number}", row) for number, row in found)
        return
    # Read as bytes, so that a line that is no UTF-8 can be named.
    with path.open("rb") as file:
        filled = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in itertools.islice(filled, limit):
            yield f"{path}:{number}", _object(line, f"{path}:{number}")


def field_of(row: Row, key: str, place: str, *, setting: str = "") -> object:
    """What a row has there.

    Args:
        row: of the file.
        key: the name of the field; one of a mapping within the row has its path, such as `reward_model.ground_truth`.
        place: where the row stands.
        setting: the key of the configuration that names the field, for the message; "" where none does.

    Raises:
        ConfigError: nothing.
    """
    found: object = row[key] if key in row else functools.reduce(_inner, key.split("."), cast("object", row))
    if found is not None:
        return found
    if key in row:
        raise ConfigError(place, f"nothing is in the field '{key}'", "Remove the row, or name another field.")
    remedy = f"{did_you_mean(key, sorted(_paths(row)))}{setting and f' Name one in {setting}.'}"
    raise ConfigError(place, f"no field '{key}'", remedy)


def _inner(value: object, name: str) -> object:
    return cast("Row", value).get(name) if isinstance(value, Mapping) else None


def _paths(row: Row, before: str = "") -> Iterator[str]:
    """The names that `field_of` takes."""
    for name, value in row.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from _paths(cast("Row", value), f"{before}{name}.")


def text_field(row: Row, key: str, place: str) -> str:
    """A text or a number, as text; the arguments are those of `field_of`.

    Raises:
        ConfigError: there is nothing, or something else.
    """
    found = field_of(row, key, place)
    # To Python, True is an int; NaN is how tables write that nothing is there.
    if (
        isinstance(found, bool)
        or not isinstance(found, str | int | float)
        or (isinstance(found, float) and not math.isfinite(found))
    ):
        raise ConfigError(f"{place} {key}", f"expected a text or a number, found {found!r:.80}")
    return str(found)


def _object(line: bytes, place: str) -> Row:
    try:
        # This codec also takes the byte order mark that some editors write at the beginning of a file.
        found: object = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(place, f"expected UTF-8 ({error})", "Write the file in UTF-8.") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(place, f"no JSON ({error})", "Write one JSON object a line.") from error
    if not isinstance(found, dict):
        raise ConfigError(place, f"expected a JSON object, found {found!r:.80}", "Write one JSON object a line.")
    return cast("Row", found)
