"""Words of other systems: each is no name of ours, and is told with what stands for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

from rlinf.core.errors import UnknownName
from rlinf.core.registry import ADVANTAGES, ENVS, GENERATORS, HINTS, LOSSES, MODELS, OBJECTIVES, REWARDS, TASKS, Registry
from rlinf.runners.task_types import TASK_TYPES

REGISTRIES: dict[str, Registry[Any]] = {
    each.group: each for each in (ADVANTAGES, ENVS, GENERATORS, LOSSES, MODELS, OBJECTIVES, REWARDS, TASKS, TASK_TYPES)
}


def words() -> Iterator[Any]:
    for point in entry_points(group=HINTS):
        for word, remedy in point.load().items():
            yield pytest.param(point.name, word, remedy, id=f"{point.name.removeprefix('rlinf.')}-{word}")


def test_every_registry_of_names_that_users_bring_has_words() -> None:
    assert {point.name for point in entry_points(group=HINTS)} == set(REGISTRIES)


@pytest.mark.parametrize(("group", "word", "remedy"), list(words()))
def test_a_word_of_other_systems_is_told_with_what_stands_for_it(group: str, word: str, remedy: str) -> None:
    registry = REGISTRIES[group]
    assert word not in registry.names()
    with pytest.raises(UnknownName) as caught:
        registry.get(word, place="key")
    assert remedy in str(caught.value)
