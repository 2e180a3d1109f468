"""A run that goes on plays the episodes again that were under way: simulators are not saved."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from env_worker_toy import connected

from rlinf.core.data import ArraySpec, Decision, EnvSpec, Trajectory
from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.registry import ENVS
from rlinf.runners.embodied.playing import under_way
from rlinf.runners.embodied.playing.under_way import EpisodeActions
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Reply


class WalkingEnv:
    """Where an environment is follows from all its actions since the reset. One that can't stand still refuses to."""

    waived: ClassVar[dict[str, str]] = {}

    def __init__(self, num_envs: int, limit: int, masks: bool) -> None:
        self.num_envs, self.limit, self.action_space = num_envs, limit, SimpleNamespace(shape=(num_envs, 1))
        self.unwrapped, self.metadata = self, {"masked_actions": masks, "waived": self.waived}
        self.left, self.length, self.start, self.at = (np.zeros(num_envs, np.float32) for _ in range(4))

    def _obs(self) -> dict[str, Any]:
        return {"states": np.stack([self.left, self.start, self.length, self.at], axis=1)}

    def reset(self, *, seed: list[int], options: dict[str, Any]) -> tuple[Any, Any]:
        mask, seeds = options["reset_mask"], np.asarray(seed, np.int64)
        self.start = np.where(mask, seeds % 2**20, self.start).astype(np.float32)
        self.left = np.where(mask, 3 * (seeds % 5 + 1), self.left).astype(np.float32)
        self.length, self.at = self.length * ~mask, self.at * ~mask
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        given, active = action, np.ones(self.num_envs, bool)
        if isinstance(action, MaskedActions):
            given, active = action.actions, action.active
        over = (self.left == 0) | (self.length == self.limit)
        assert not over[active].any(), "stepped after the end"
        assert self.metadata["masked_actions"] or over[~active].all(), "can't stand still"
        self.left, self.length = self.left - active, self.length + active
        self.at = np.where(active, 0.9 * self.at + given[:, 0], self.at).astype(np.float32)
        over, cut = self.left == 0, self.length == self.limit
        episode = {name: self.length.copy() for name in ("return", "episode_len")}
        return self._obs(), self.at.copy(), over, cut, {"episode": episode, "_episode": over | cut}

    def close(self) -> None: ...


@dataclass(frozen=True)
class Walking:
    masks: bool = True

    def make(self, num_envs: int, *, max_episode_steps: int | None, **how: Any) -> WalkingEnv:
        return WalkingEnv(num_envs, max_episode_steps or 100, self.masks)

    def describe(self, env: WalkingEnv) -> EnvSpec:
        bound = np.ones(1, np.float32)
        action = ArraySpec(shape=(1,), dtype="float32", low=-bound, high=bound)
        observation = {"states": ArraySpec(shape=(4,), dtype="float32")}
        return EnvSpec(observation=observation, action=action, max_episode_steps=env.limit, knows_success=False)


ENVS.register("walking")(Walking)


class Player:
    """An env worker of two stages, and a policy that acts by what it sees and remembers."""

    def __init__(self, data: dict[str, Any], queues: Any, **train: Any) -> None:
        short = {"max_steps_per_rollout_epoch": 4, "total_num_envs": 6}
        data["env"]["train"] |= {"env_type": "walking", "init_params": {}, **short, **train}
        self.env, _ = connected(read_embodied({**data, "rollout": {"pipeline_stage_num": 2}}))
        self.queues, self.answers = queues, queues()
        self.requests = queues(self.reply)

    def reply(self, request: Any) -> None:
        if request.obs is None:
            return
        states = request.obs["states"]
        before = np.zeros((len(states), 1), np.float32)
        if request.remembered is not None:
            before = np.where(request.remembered.begins[:, None], before, request.remembered.memory["more"]["sum"])
        total = before + states[:, 3:]
        action = np.repeat(np.sin(states[:, 1:2] + total)[:, None], 2, axis=1)
        decision = Decision(action=action, logprob=total[:, 0], context={"states": states}, version=0)
        self.answers.put(Reply(slot=request.slot, decision=decision, memory={"more": {"sum": total}}), key=request.env_rank)

    def play(self, step: int, *, prepare: bool = True) -> Any:
        trajectories = self.queues()
        self.env.interact(step, self.requests, self.answers, trajectories)
        # As a run does while it trains, before it saves, if it does not play ahead.
        if prepare:
            self.env.prepare(step + 1)
        return Trajectory.concat([trajectories.get(key=0)[1] for _ in range(trajectories.qsize(key=0))])


def same(one: Any, other: Any) -> bool:
    names = ("action", "logprob", "reward", "terminated", "mask", "group", "episode")
    seen = np.array_equal(one.context["states"], other.context["states"])
    return seen and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("saved_after", [1, 3])
def test_it_goes_on_to_the_bit(toy_data: dict[str, Any], queues: Any, tmp_path: Path, masks: bool, saved_after: int) -> None:
    params = {"init_params": {"masks": masks}}
    whole, parted, resumed, anew = (Player(toy_data, queues, **params) for _ in range(4))
    for step in range(saved_after):
        whole.play(step), parted.play(step)
    parted.env.save_checkpoint(str(tmp_path))
    resumed.env.load_checkpoint(str(tmp_path))
    for step in range(saved_after, saved_after + 3):
        expected = whole.play(step)
        assert step > saved_after or (expected.context["states"][:, 0, 2] > 0).any(), "episodes go on"
        assert same(resumed.play(step), expected)
        assert step > saved_after or not same(anew.play(step), expected), "a test that can fail"


def test_it_is_saved_once_more_after_it_went_on(toy_data: dict[str, Any], queues: Any, tmp_path: Path) -> None:
    whole, second, third = (Player(toy_data, queues) for _ in range(3))
    whole.play(0), whole.env.save_checkpoint(str(tmp_path))
    second.env.load_checkpoint(str(tmp_path))
    second.env.save_checkpoint(str(tmp_path))
    third.env.load_checkpoint(str(tmp_path))
    assert same(third.play(1), whole.play(1))


def test_what_has_ended_is_reset_when_it_goes_on(toy_data: dict[str, Any], queues: Any, tmp_path: Path) -> None:
    """As where iterations are played ahead, whose environments nobody prepares."""
    (whole, resumed), ended, step = (Player(toy_data, queues) for _ in range(2)), np.zeros(6, bool), 0
    while not 0 < ended.sum() < 6:
        whole.play(step, prepare=False)
        ended, step = np.concatenate([env_slot.ended for env_slot in whole.env._env_slots]), step + 1
        assert step < 20, "some episodes end with an iteration, and some go on"
    whole.env.save_checkpoint(str(tmp_path))
    resumed.env.load_checkpoint(str(tmp_path))
    assert same(resumed.play(step, prepare=False), whole.play(step, prepare=False))


@pytest.mark.parametrize("other", [{"total_num_envs": 3}, {"max_episode_steps": 2}])
def test_what_is_played_otherwise_begins_anew(
    toy_data: dict[str, Any], queues: Any, tmp_path: Path, other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = Player(toy_data, queues)
    first.play(0), first.env.save_checkpoint(str(tmp_path))
    resumed, anew = (Player(toy_data, queues, **other) for _ in range(2))
    resumed.env.load_checkpoint(str(tmp_path))
    assert "episodes under way begin anew" in caplog.text
    assert same(resumed.play(1), anew.play(1))


def test_what_does_not_start_twice_alike_is_not_played_again(
    toy_data: dict[str, Any], queues: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WalkingEnv, "waived", {"seeds": "a real arm"})
    robot = Player(toy_data, queues)
    robot.play(0), robot.env.save_checkpoint(str(tmp_path))
    assert not list(tmp_path.iterdir())
    robot.env.load_checkpoint(str(tmp_path))
    assert "does not keep seeds (a real arm)" in caplog.text


def test_an_episode_without_an_end_is_kept_up_to_a_bound_and_begins_anew(
    toy_data: dict[str, Any], queues: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_way, "KEPT_BYTES", 3 * 3 * 2 * 4)  # 3 decisions of 2 steps in the 3 environments of a slot, float32
    first, resumed, anew = (Player(toy_data, queues) for _ in range(3))
    first.play(0), first.env.save_checkpoint(str(tmp_path))
    assert {len(env_slot._actions._actions) for env_slot in first.env._env_slots} == {3}
    resumed.env.load_checkpoint(str(tmp_path))
    assert "begin anew, so that numbers differ from those of one run: an episode has had more actions than the" in caplog.text
    assert same(resumed.play(1), anew.play(1))


def test_only_as_much_is_kept_as_the_longest_episode_takes() -> None:
    actions = EpisodeActions(2)
    for at in range(4):
        actions.append(np.full((2, 1, 1), at))
        actions.begin(np.array([at == 1, False]))
    assert len(actions._actions) == 4
    actions.begin(np.array([False, True]))
    assert len(actions._actions) == 2
    found = actions.saved(np.array([True, True]))
    assert found["count"].tolist() == [2, 0]
    assert found["actions"][:, 0, 0, 0].tolist() == [2, 3]
    assert actions.saved(np.array([False, True])).keys() == {"count"}, "of an episode that has ended nothing"
