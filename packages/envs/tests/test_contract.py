"""The examiner itself: a sound environment passes, and each way of being wrong turns its own line red."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlinf.core.errors import ContractError
from rlinf.core.testing.env import CHECKS, EnvContract
from rlinf.envs.assembly import assemble
from rlinf.envs.text_array import TextArray

TASKS = ("go left", "go right")
LIMIT = 12
NAMES = {check.sentence: check.examine.__name__ for check in CHECKS}


class Walker(gymnasium.Env):
    """A point that drifts: everything the contract speaks of is in it. An episode ends at |x| ≥ 1, solved on the task's side."""

    def __init__(self):
        self.metadata = {"reset_options": ("task",), "tasks": TASKS}
        box = gymnasium.spaces.Box
        spaces = {
            "states": box(-9, 9, (2,), np.float32),
            "main_images": box(0, 255, (4, 4, 3), np.uint8),
            "task_descriptions": TextArray(8),
        }
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = box(-1.0, 1.0, (2,), np.float32)

    def observe(self):
        image = np.full((4, 4, 3), np.clip(self.at[0] * 99 + 99, 0, 255), np.uint8)
        return {"states": self.at.astype(np.float32), "main_images": image, "task_descriptions": TASKS[self.task]}

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.at = self.rng.uniform(-0.2, 0.2, 2)
        self.task = (options or {}).get("task", int(self.rng.integers(2)))
        if self.task not in (0, 1):
            raise ValueError(f"there is no task {self.task}")
        return self.observe(), {"task": self.task}

    def step(self, action):
        self.at = self.at + 0.1 * action + self.rng.normal(0, 0.01, 2)
        out = bool(abs(self.at[0]) >= 1)
        success = out and (self.at[0] > 0) == (self.task == 1)
        return self.observe(), float(self.at[0]), out, False, {"success": success}


def walkers(task=Walker):
    return assemble([task] * 3, max_episode_steps=LIMIT, camera=None)


def red(factory, **fields):
    """The names of the lines that an environment breaks."""
    return {NAMES[f.sentence] for f in EnvContract(factory=factory, steps=4, **fields).examine() if f.error is not None}


def test_a_sound_environment_passes():
    passed = []
    names = EnvContract(factory=walkers).run(report=passed.append)
    assert passed == names == [check.sentence for check in CHECKS]
    assert red(walkers) == set()


def rightwards(env):
    return np.tile(np.array([1.0, 0.0], np.float32), (env.num_envs, 1))


def test_an_expert_reaches_other_ends():
    assert red(walkers, act=rightwards) == set()


# Flaws of a single environment: how it differs from Walker.


class Remembers(Walker):
    steps = 0

    def step(self, action):
        self.steps += 1
        return super().step(action)

    def reset(self, **arguments):
        super().reset(**arguments)
        self.at += self.steps * 1e-6
        return self.observe(), {"task": self.task}


class IgnoresSeed(Walker):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0, options={"task": 0, **(options or {})})


class OwnNumbers(Walker):
    """Claims to have initial states of its own."""

    numbered = staticmethod(lambda number, rng: number / 10)

    def __init__(self):
        super().__init__()
        self.metadata["reset_options"] = ("task", "init_id")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        if "init_id" in (options or {}):
            self.at[0] = self.numbered(options["init_id"], self.rng)
        return self.observe(), {"task": self.task}


class FreshNumbers(OwnNumbers):
    numbered = staticmethod(lambda number, rng: np.random.default_rng().uniform())


class DeafNumbers(OwnNumbers):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0 if "init_id" in (options or {}) else seed, options={**(options or {}), "init_id": 1})


class DeafToTask(Walker):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class TellsAnotherTask(Walker):
    def observe(self):
        return {**super().observe(), "task_descriptions": TASKS[1 - self.task]}


class UnseededNoise(Walker):
    def step(self, action):
        self.at = self.at + np.random.default_rng().normal(0, 0.01, 2)
        return super().step(action)


class OutsideItsSpace(Walker):
    def observe(self):
        return {**super().observe(), "states": (self.at + 99).astype(np.float32)}


class NotANumber(Walker):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class OwnEnd(Walker):
    """The simulator has a limit of its own."""

    def step(self, action):
        self.count += 1
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self.count >= 5, info

    def reset(self, **arguments):
        self.count = 0
        return super().reset(**arguments)


class TerminatesAtTheLimit(Walker):
    def step(self, action):
        self.count += 1
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.count >= LIMIT, False, info

    def reset(self, **arguments):
        self.count = 0
        return super().reset(**arguments)


class ResetsItself(TerminatesAtTheLimit):
    """Goes on from the same generator after an end, as Gymnasium's own environments do when reset without a seed."""

    end = LIMIT - 1

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        over = self.count >= self.end
        if over:
            self.at = self.rng.uniform(-0.2, 0.2, 2)
            observation = self.observe()
        return observation, reward, over, False, info


class BeginsAgain(ResetsItself):
    def reset(self, **arguments):
        answer = super().reset(**arguments)
        self.first = self.at
        return answer

    def step(self, action):
        observation, reward, over, _, info = super().step(action)
        if over:
            self.at = self.first
            observation = self.observe()
        return observation, reward, over, False, info


class ResetsOnSuccess(Walker):
    """Reached by an expert only."""

    def fresh(self):
        return np.random.default_rng().uniform(-0.2, 0.2, 2)

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed, options=options)
        self.first, self.next = self.at, np.random.default_rng(seed + 1).uniform(-0.2, 0.2, 2)
        return answer

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        if terminated:
            self.at = self.fresh()
            observation = self.observe()
        return observation, reward, terminated, False, info


class ReturnsOnSuccess(ResetsOnSuccess):
    def fresh(self):
        return self.first


class MovesOnAtSuccess(ResetsOnSuccess):
    def fresh(self):
        return self.next


@pytest.mark.parametrize(
    ("task", "lines"),
    [
        (Walker, set()),
        (OwnNumbers, set()),
        (Remembers, {"pure_reset", "init_id", "task", "partial_reset", "final_observation", "actions"}),
        (IgnoresSeed, {"seeds", "init_id"}),
        (FreshNumbers, {"init_id"}),
        (DeafNumbers, {"init_id"}),
        (DeafToTask, {"task", "options"}),
        (TellsAnotherTask, {"task"}),
        (OutsideItsSpace, {"observations"}),
        (OwnEnd, {"flags"}),
        (TerminatesAtTheLimit, {"flags"}),
        (ResetsItself, {"final_observation"}),
        (BeginsAgain, {"final_observation"}),
    ],
)
def test_a_flaw_of_one_environment_is_found(task, lines):
    assert red(lambda: walkers(task)) == lines


def test_a_reward_that_is_no_number_is_named():
    found = [finding.error for finding in EnvContract(factory=lambda: walkers(NotANumber), steps=4).examine() if finding.error]
    assert found
    assert all("the reward of environment 0 is nan" in str(error) for error in found)


def test_noise_without_a_seed_breaks_all_that_is_compared():
    found = red(lambda: walkers(UnseededNoise))
    assert {"pure_reset", "init_id", "instances", "final_observation"} <= found


@pytest.mark.parametrize("task", [ResetsOnSuccess, ReturnsOnSuccess, MovesOnAtSuccess])
def test_a_reset_on_success_is_found_with_an_expert(task):
    assert red(lambda: walkers(task)) == set()
    assert red(lambda: walkers(task), act=rightwards) == {"final_observation"}


class Undeterminate(UnseededNoise):
    def __init__(self):
        super().__init__()
        reason = "the simulator draws noise that nobody can seed"
        self.metadata["waived"] = dict.fromkeys(("pure_reset", "instances", "place"), reason)


def test_a_declared_line_is_not_examined_and_said_to_be_waived():
    findings = EnvContract(factory=lambda: walkers(Undeterminate), steps=4).examine()
    assert not [finding.error for finding in findings if finding.error is not None]
    waived = {NAMES[finding.sentence]: finding.skipped for finding in findings if finding.skipped}
    assert set(waived) == {"pure_reset", "place", "init_id", "instances"}
    assert set(waived.values()) == {"waived: the simulator draws noise that nobody can seed"}
    passed = EnvContract(factory=lambda: walkers(Undeterminate), steps=4).run()
    assert len(passed) == len(CHECKS) - 4


def test_run_raises_what_fails_first_and_closes_what_it_built():
    built = []

    def factory():
        built.append(walkers(DeafToTask))
        return built[-1]

    with pytest.raises(ContractError, match=r"task_descriptions'\]: asked for"):
        EnvContract(factory=factory).run()
    assert built
    assert all(env.closed for env in built)


def test_one_environment_is_too_few():
    with pytest.raises(ContractError, match="at least 2"):
        EnvContract(factory=lambda: assemble([Walker], max_episode_steps=3, camera=None)).run()


def test_an_episode_that_never_ends_breaks_the_announcement():
    class Endless(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            observation, reward, terminated, truncated, infos = self.env.step(actions)
            return observation, reward, terminated & False, truncated & False, infos | {"_episode": terminated & False}

    assert {"statistics", "flags", "final_observation"} <= red(lambda: Endless(walkers()))
