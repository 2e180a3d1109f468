"""Group baselines of a rollout, compared with a calculation from what the simulators themselves wrote down.

Episodes end inside of rollouts, members of a group end at different steps, there are several rollout epochs, env workers, stages
and actors. The calculation knows nothing of rows, slots and groups: it compares episodes that a simulator was told to start alike.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, Decision, EnvSpec, Trajectory
from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.registry import ADVANTAGES, ENVS
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.filtering import without_cut_off, without_filtered
from rlinf.runners.embodied.playing.arrivals import joined
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.topology import Reply, Topology
from rlinf.runners.training.tensors import to_torch

STEPS, EPOCHS, ENVS_IN_ALL, ACTORS = 6, 3, 12, 2


@dataclass
class Episode:
    """What a simulator wrote down of one episode: the state that it started from, and what each of its steps paid."""

    start: int
    rewards: list[float] = field(default_factory=list[float])
    over: bool = False
    late: bool = False
    """Whether it began behind another one, with fewer steps left than a rollout epoch has."""


class Diary:
    """Environments that write down what they play. A step of the n-th one to be made pays what no other step does."""

    metadata: ClassVar[dict[str, Any]] = {}
    made: ClassVar[list[Diary]] = []

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.action_space = num_envs, SimpleNamespace(shape=(num_envs, 1))
        self.unwrapped = self
        self.first = sum(env.num_envs for env in Diary.made)
        self.played: list[list[Episode]] = [[] for _ in range(num_envs)]
        self.steps = 0
        Diary.made.append(self)

    def reset(self, *, seed: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        for env in np.flatnonzero(options["reset_mask"]):
            self.played[env].append(Episode(int(seed[env]) % 2**20, late=self.steps % STEPS != 0))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        active = action.active if isinstance(action, MaskedActions) else np.ones(self.num_envs, bool)
        reward, over = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        for env in np.flatnonzero(active):
            episode, member = self.played[env][-1], self.first + env
            assert not episode.over, "stepped after the end"
            reward[env] = (episode.start % 17 + 1) * (member + 1) / (len(episode.rewards) + 1)
            episode.rewards.append(float(reward[env]))
            # Of 1 to 5 steps by the initial state, and longer for some members than for others.
            over[env] = episode.over = len(episode.rewards) == episode.start % 5 + 1 + member % 2
        lengths = np.array([len(episodes[-1].rewards) for episodes in self.played])
        statistics = {"return": np.zeros(self.num_envs), "episode_len": lengths}
        return self._obs(), reward, over, np.zeros_like(over), {"episode": statistics, "_episode": over}

    def close(self) -> None: ...

    def _obs(self) -> dict[str, Any]:
        shown = [(self.first + env, episodes[-1].start, len(episodes[-1].rewards)) for env, episodes in enumerate(self.played)]
        return {"states": np.array(shown, np.float32)}


@dataclass(frozen=True)
class DiaryConfig:
    def make(self, num_envs: int, **how: Any) -> Diary:
        return Diary(num_envs)

    def describe(self, env: Any) -> EnvSpec:
        bound = np.ones(1, np.float32)
        action = ArraySpec(shape=(1,), dtype="float32", low=-bound, high=bound)
        observation = {"states": ArraySpec(shape=(3,), dtype="float32")}
        return EnvSpec(observation=observation, action=action, max_episode_steps=100, knows_success=False)


ENVS.register("diary")(cast("Any", DiaryConfig))


class Policy:
    """Answers at once, without a critic."""

    name = "policy"

    def __init__(self) -> None:
        self.queues: dict[Any, deque[Any]] = defaultdict(deque)

    def put(self, item: Any, *, key: Any = None, weight: int = 0) -> None:
        obs = getattr(item, "obs", None)
        if obs is not None:
            # Where the worker that asks looks for its answers.
            key, rows = item.env_rank, len(obs["states"])
            item = Reply(
                slot=item.slot,
                decision=Decision(
                    action=np.zeros((rows, 1, 1), np.float32), logprob=np.zeros(rows, np.float32), context=obs, version=0
                ),
            )
        self.queues[key].append(item)

    def get(self, *, key: Any = None, timeout: float | None = None) -> Any:
        return self.queues[key].popleft()


def configured(group_size: int, auto_reset: bool, *, epochs: int = EPOCHS, **algorithm: Any) -> EmbodiedConfig:
    return read_embodied(
        {
            "runner": {"experiment_name": "groups", "max_steps": 1},
            "env": {
                "train": {
                    "env_type": "diary",
                    "total_num_envs": ENVS_IN_ALL,
                    "max_steps_per_rollout_epoch": STEPS,
                    "rollout_epoch": epochs,
                    "group_size": group_size,
                    "auto_reset": auto_reset,
                },
                "eval": {"total_num_envs": 4},
            },
            "rollout": {"pipeline_stage_num": 2},
            "actor": {"model": {"model_type": "mlp_policy", "add_value_head": False}, "global_batch_size": ENVS_IN_ALL * STEPS},
            # A run that compares episodes is refused where they go on.
            "algorithm": {"adv_type": "reinpp" if auto_reset else "grpo", "loss_type": "ppo_clip", **algorithm},
        }
    )


def rollouts(
    *, group_size: int, auto_reset: bool, iterations: int, cfg: EmbodiedConfig | None = None
) -> Iterator[list[list[Trajectory[Any]]]]:
    """For each iteration what each actor is given in each rollout epoch: of two env workers with two stages each."""
    Diary.made.clear()
    cfg = configured(group_size, auto_reset) if cfg is None else cfg
    epochs_in_all = cfg.env.train.rollout_epoch
    slots = slot_layout(cfg, 2)
    workers: list[EnvWorker] = []
    for rank in range(2):
        with injected(WorkerContext(group="env", rank=rank, world_size=2)):
            workers.append(EnvWorker(cfg))
        spec = workers[-1].init_worker(slots["train"])
        topology = Topology(spec=spec, actor="actor", actor_ranks=ACTORS, rollout="rollout", rollout_ranks=1, slots=slots)
        workers[-1].connect(topology)
    for step in range(iterations):
        received: list[list[list[Trajectory[Any]]]] = [[[] for _ in range(epochs_in_all)] for _ in range(ACTORS)]
        for worker in workers:
            policy, trajectories = cast("Any", Policy()), cast("Any", Policy())
            worker.interact(step, policy, policy, trajectories)
            for rank, epochs in enumerate(received):
                for parts in epochs:
                    parts.append(trajectories.get(key=rank)[1].map(to_torch))
        yield [[Trajectory.concat(parts) for parts in epochs] for epochs in received]


def by_hand(pieces: dict[tuple[int, int], list[float]]) -> dict[tuple[int, int], float]:
    """GRPO of pieces of episodes, by environment and initial state: compared with all others from the same state."""
    returns: dict[int, list[float]] = defaultdict(list)
    for (_, start), rewards in pieces.items():
        returns[start].append(sum(rewards))
    found: dict[tuple[int, int], float] = {}
    for (env, start), rewards in pieces.items():
        group = returns[start]
        found[env, start] = (sum(rewards) - mean(group)) / (stdev(group) + 1e-6) if len(group) > 1 else 0.0
    return found


@pytest.mark.parametrize("group_size", [2, 3, 6])
@pytest.mark.parametrize("auto_reset", [False, True])
def test_group_baselines_are_those_of_episodes_from_the_same_state(group_size: int, auto_reset: bool) -> None:
    told = [0] * ENVS_IN_ALL
    for actors in rollouts(group_size=group_size, auto_reset=auto_reset, iterations=3):
        advantages: dict[tuple[int, int], list[float]] = defaultdict(list)
        pieces: dict[tuple[int, int], list[float]] = {}
        numbers: dict[int, set[int]] = defaultdict(set)
        for epochs in actors:
            rows = joined(epochs, groups=ENVS_IN_ALL // group_size)
            credit = ADVANTAGES.build("grpo", {}, place="algorithm")(rows)
            for row in range(len(rows)):
                length = int(rows.mask[row].sum())
                env, start, _ = (int(x) for x in rows.context["states"][row, 0])
                assert (rows.context["states"][row, :length, :2] == rows.context["states"][row, 0, :2]).all(), "two episodes"
                numbers[start].add(int(rows.group[row]))
                advantages[env, start].append(float(credit.advantage[row, 0]))
                pieces.setdefault((env, start), []).extend(rows.reward[row, :length].tolist())
                assert (credit.advantage[row, :length] == credit.advantage[row, 0]).all()
        assert all(len(groups) == 1 for groups in numbers.values()), "one initial state, two groups"
        if auto_reset:
            continue
        # Every episode is one row, and its simulator wrote it down whole.
        written = {
            (env.first + index, episode.start): episode.rewards
            for env in Diary.made
            for index, episodes in enumerate(env.played)
            for episode in episodes[told[env.first + index] :]
        }
        for env in Diary.made:
            for index, episodes in enumerate(env.played):
                told[env.first + index] = len(episodes)
        assert {key: pytest.approx(rewards) for key, rewards in pieces.items()} == written
        expected = by_hand(written)
        found = {key: value for key, (value,) in advantages.items()}
        assert found == {key: pytest.approx(value, abs=1e-4) for key, value in expected.items()}
        assert sum(value != 0 for value in expected.values()) > len(expected) / 4


@pytest.mark.parametrize("group_size", [2, 6])
def test_the_credit_of_a_rollout_epoch_is_that_of_the_iteration_where_no_episode_goes_on(group_size: int) -> None:
    """So that a group can be trained on before the rollout is over; see `runner.use_training_pipeline`."""
    grpo = ADVANTAGES.build("grpo", {}, place="algorithm")
    for actors in rollouts(group_size=group_size, auto_reset=False, iterations=2):
        for epochs in actors:
            rows = joined(epochs, groups=ENVS_IN_ALL // group_size)
            whole = dict(zip(rows.episode.tolist(), grpo(rows).advantage[:, 0].tolist(), strict=True))
            parts = {
                episode: advantage
                for part in epochs
                for episode, advantage in zip(part.episode.tolist(), grpo(part).advantage[:, 0].tolist(), strict=True)
            }
            assert parts == {episode: pytest.approx(advantage, abs=1e-6) for episode, advantage in whole.items()}
            assert any(whole.values())


def test_groups_that_are_filtered_are_those_whose_records_are_out_of_bounds() -> None:
    """Three groups of four over two actors, two rollout epochs, episodes that end early and ones that the epoch cuts off."""
    bounds = {"filter_rewards": True, "rewards_lower_bound": 40.0, "rewards_upper_bound": 100.0}
    cfg, told, seen = configured(4, False, epochs=2, **bounds), [0] * ENVS_IN_ALL, [0, 0, 0, 0]
    for actors in rollouts(group_size=4, auto_reset=False, iterations=4, cfg=cfg):
        written: dict[tuple[int, int], Episode] = {}
        for env in Diary.made:
            for index, episodes in enumerate(env.played):
                written |= {(env.first + index, each.start): each for each in episodes[told[env.first + index] :]}
                told[env.first + index] = len(episodes)
        # Of an episode that is neither over nor had all the steps of an epoch nobody knows the outcome.
        known = {key: sum(each.rewards) for key, each in written.items() if each.over or not each.late}
        groups: dict[int, list[float]] = defaultdict(list)
        for (_, start), value in known.items():
            groups[start].append(value)
        within = {start for start, values in groups.items() if 40.0 <= mean(values) <= 100.0}
        expected = by_hand({key: [value] for key, value in known.items() if key[1] in within})
        found: dict[tuple[int, int], float] = {}
        filtered = [0.0, 0.0]
        for epochs in actors:
            whole, _ = without_cut_off(joined(epochs, groups=ENVS_IN_ALL // 4), cfg)
            rows, metrics = without_filtered(whole, cfg.algorithm)
            filtered = [filtered[0] + metrics["filtered_groups"].sum, filtered[1] + metrics["filtered_groups"].weight]
            credit = ADVANTAGES.build("grpo", {}, place="algorithm")(rows)
            for row in np.flatnonzero(rows.mask.any(1)).tolist():
                env, start, _ = (int(x) for x in rows.context["states"][row, 0])
                found[env, start] = float(credit.advantage[row, 0])
        assert found == {key: pytest.approx(value, abs=1e-4) for key, value in expected.items()}
        starts = {start for _, start in written}
        assert filtered == [len(starts - within), len(starts)]
        seen = [a + b for a, b in zip(seen, (len(starts), len(within), len(written), len(known)), strict=True)]
    starts_seen, kept, episodes_seen, counted = seen
    assert 0 < kept < starts_seen, "some are filtered and some are not"
    assert counted < episodes_seen, "some are cut off"
