"""reasoning-gym itself."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from rlinf.core.errors import ConfigError, did_you_mean

with warnings.catch_warnings():
    # Invalid escapes in a dependency's texts.
    warnings.simplefilter("ignore", SyntaxWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    from reasoning_gym import factory

# The library has no types.
_library: Final = cast("Any", factory)
_names: Final[tuple[str, ...]] = tuple(sorted(_library.DATASETS))

SIZE: Final = 1 << 20
"""Entries of a data set from which problems are taken; they are made one by one."""
_PATIENCE: Final = 20_000
"""Entries in a row that ask what was asked before, after which there are taken to be no more."""


def entries(name: str, params: Mapping[str, Any], seed: int) -> Iterator[Mapping[str, Any]]:
    """The entries of a data set, until they repeat themselves.

    Raises:
        ConfigError: there is no such data set, or it refuses its parameters.
    """
    made = _made(name, json.dumps(dict(params), sort_keys=True), seed)
    seen: set[str] = set()
    idle = 0
    for number in range(SIZE):
        entry = made[number]
        idle = idle + 1 if entry["question"] in seen else 0
        if idle == _PATIENCE:
            return
        seen.add(entry["question"])
        yield entry


def score(name: str, params: str, answer: str, entry: Mapping[str, Any]) -> float:
    """What the data set says of an answer to one of its entries."""
    return float(_made(name, params, 0).score_answer(answer, entry))


@lru_cache(maxsize=8)
def _made(name: str, params: str, seed: int) -> Any:
    if name not in _names:
        raise ConfigError("dataset", f"reasoning-gym has no data set '{name}'", did_you_mean(name, _names, label="It has"))
    try:
        return _library.create_dataset(name, size=SIZE, seed=seed, **json.loads(params))
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError("params", f"'{name}' refuses them: {error}", "See the data set's configuration.") from error
