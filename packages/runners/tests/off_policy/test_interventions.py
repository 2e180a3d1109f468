"""What people do in place of the policy: which decisions are kept as demonstrated, and what of a batch they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import Decision, Trajectory
from rlinf.core.envs.robots import add_counts, at_hardware, take_counts
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.embodied.playing.rows import RowCollector
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.off_policy.interventions import interventions_of


def rows(flags: list[list[int]], episode: list[int]) -> Trajectory[Any]:
    """Observation t of row b is 10 b + t, and so is the action."""
    count, horizon = np.array(flags).shape
    number = np.arange(count)[:, None] * 10 + np.arange(horizon + 1)
    return dataclasses.replace(
        Trajectory.of(
            context={},
            action=number[:, :-1, None, None].astype(np.float32),
            logprob=np.zeros((count, horizon), np.float32),
            reward=np.ones((count, horizon), np.float32),
            episode=np.array(episode),
            observation={"states": number[..., None].astype(np.float32)},
        ),
        intervened=np.array(flags, bool),
    )


def test_decisions_of_others_become_pieces_of_their_own() -> None:
    given = rows([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]], episode=[5, 6])
    found = interventions_of(given, first=100)
    assert found.action.reshape(-1).tolist() == [1, 2, 4, 10, 11, 14]
    assert found.observation["states"][:, :, 0].tolist() == [[1, 2], [2, 3], [4, 5], [10, 11], [11, 12], [14, 15]]
    first, second, third, fourth, fifth, sixth = found.episode.tolist()
    assert first == second
    assert fourth == fifth
    assert len({first, third, fourth, sixth}) == 4
    assert min(found.episode) > 100
    assert len(interventions_of(rows([[0, 0]], episode=[1]), first=0)) == 0


def test_rows_that_do_not_tell_who_acted_are_refused() -> None:
    told = rows([[0, 1]], episode=[1])
    for lacking in ("intervened", "episode"):
        with pytest.raises(ShapeError, match=rf"interventions_of\(rows\): expected '{lacking}'"):
            interventions_of(dataclasses.replace(told, **{lacking: None}), first=0)


def test_a_buffer_joins_a_piece_and_parts_it_from_the_next() -> None:
    buffer = ReplayBuffer(capacity=50, n_step=3, gamma=1.0)
    for _ in range(2):
        acted = interventions_of(rows([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]], episode=[5, 6]), first=buffer.added)
        buffer.add(acted, np.zeros(len(acted), np.int64))
    assert len(buffer) == 12
    drawn = buffer.sample(400)
    # Over at most three decisions, but never over what the policy did between two pieces.
    begun, ended = drawn.observation["states"][:, 0], drawn.observation_next["states"][:, 0]
    pairs = {(int(a), int(b)) for a, b in zip(begun, ended, strict=True)}
    assert pairs == {(1, 3), (2, 3), (4, 5), (10, 12), (11, 12), (14, 15)}


def test_a_collector_marks_them_by_row() -> None:
    collector = RowCollector(first_env=0, num_envs=2, group_size=1, groups=2)
    for t in range(3):
        decision = Decision(action=np.full((2, 1, 1), float(t)), logprob=np.zeros((2, 1)), value=None, context={}, version=0)
        ended = np.array([t == 1, False])
        collector.append(decision, np.zeros(2, np.float32), ended, np.zeros(2, bool), intervened=np.array([t == 2, t == 0]))
    found = collector.finish(None)
    assert found.intervened.tolist() == [[False, False, False], [True, False, False], [True, False, False]]
    assert found.mask.sum(1).tolist() == [2, 1, 3]


def test_an_on_policy_run_refuses_that_somebody_else_acts(toy_data: dict[str, Any], intervening: Any) -> None:
    toy_data["env"]["train"]["wrappers"] = intervening
    with pytest.raises(ConfigError, match=r"env\.train\.wrappers.0.: somebody acts in place of the policy"):
        read_embodied(toy_data)


def test_counts_are_those_of_an_environment_and_of_its_wrappers() -> None:
    class Counts:
        unwrapped = property(lambda self: self)

        def take_counts(self) -> dict[str, float]:
            return {"robot/stops": 1.0}

    class Passes:
        def __init__(self, env: Any) -> None:
            self.env, self.unwrapped = env, env.unwrapped

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

    class AlsoCounts(Passes):
        def take_counts(self) -> dict[str, float]:
            return {"interventions/steps": 2.0}

    env = Passes(AlsoCounts(Passes(Counts())))
    assert take_counts(env) == {"robot/stops": 1.0, "interventions/steps": 2.0}
    assert add_counts([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 4.0, "b": 2.0}


def test_an_environment_stands_at_the_hardware_of_its_worker() -> None:
    @dataclasses.dataclass(frozen=True)
    class Arm:
        controller: str | None

    @dataclasses.dataclass(frozen=True)
    class Device:
        config: Any = None

    @dataclasses.dataclass(frozen=True)
    class Robots:
        controllers: tuple[str, ...] = ()

        def on_hardware(self, pieces: Any) -> Any:
            return Robots(tuple(piece.controller for piece in pieces))

    assert at_hardware(Robots(), [Device(), Device(Arm("a:1")), Device(Arm("b:2"))]) == Robots(("a:1", "b:2"))
    assert at_hardware(Robots(), [Device()]) == Robots()
    assert at_hardware("no robots", [Device(Arm("a:1"))]) == "no robots"
