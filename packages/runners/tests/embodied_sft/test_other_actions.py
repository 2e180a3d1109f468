"""Demonstrations in another convention than the environment takes are refused: a gripper would learn to do the opposite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core import ArraySpec
from rlinf.runners.embodied_sft.rules import _other_actions

TAKEN = ArraySpec(shape=(2,), dtype="float32", low=np.array([-1.0, 0.0]), high=np.array([1.0, 1.0]))


def objections(*actions: tuple[float, float], taken: ArraySpec = TAKEN) -> list[str]:
    episode: Any = SimpleNamespace(action=np.array(actions, np.float32))
    source: Any = SimpleNamespace(name="demos", episodes=lambda: iter([episode]))
    return [str(fault) for fault in _other_actions(source, "toy", taken)]


def test_a_gripper_of_the_simulator_is_none_of_a_policy() -> None:
    (said,) = objections((0.5, 1.0), (0.2, -1.0), (0.1, -1.0))
    assert said.startswith("data.action_format: an action of 'demos' has -1 at [1], where env.eval.env_type 'toy' with its")
    assert "takes 0 to 1" in said


@pytest.mark.parametrize("taken", [TAKEN, ArraySpec(shape=(2,), dtype="float32")])
def test_a_little_beyond_the_bounds_is_taken(taken: ArraySpec) -> None:
    assert objections((1.4, -0.3), (-1.2, 1.3), taken=taken) == []
