"""Credit of action chunks that the end of an episode cuts in their middle, compared with a calculation by hand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, Decision, EnvSpec
from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.registry import ADVANTAGES, ENVS
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Reply, Topology, answer_queue
from rlinf.runners.training.tensors import to_torch

CHUNK, LIMIT = 3, 4


class Counting:
    """Shows how many steps an episode has had, pays the number of the step, and ends after four."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, ends: str) -> None:
        self.ends, self.step_number = ends, np.zeros(1, int)
        self.num_envs, self.action_space = 1, SimpleNamespace(shape=(1, 1))
        self.unwrapped = self

    def reset(self, *, seed: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        self.step_number[options["reset_mask"]] = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        active = action.active if isinstance(action, MaskedActions) else np.ones(1, bool)
        assert (self.step_number[active] < LIMIT).all(), "stepped after the end"
        self.step_number[active] += 1
        over = self.step_number == LIMIT
        none = np.zeros(1, bool)
        terminated, truncated = (over, none) if self.ends == "terminated" else (none, over)
        numbers = {"return": np.zeros(1), "episode_len": self.step_number.copy()}
        reward = self.step_number.astype(np.float32)
        return self._obs(), reward, terminated, truncated, {"episode": numbers, "_episode": over}

    def close(self) -> None: ...

    def _obs(self) -> dict[str, Any]:
        return {"states": self.step_number[:, None].astype(np.float32)}


@dataclass(frozen=True)
class CountingConfig:
    ends: str = "truncated"

    def make(self, num_envs: int, **how: Any) -> Counting:
        return Counting(self.ends)

    def describe(self, env: Any) -> EnvSpec:
        bound = np.ones(1, np.float32)
        action = ArraySpec(shape=(1,), dtype="float32", low=-bound, high=bound)
        observation = {"states": ArraySpec(shape=(1,), dtype="float32")}
        return EnvSpec(observation=observation, action=action, max_episode_steps=LIMIT, knows_success=False)


ENVS.register("counting_by_hand")(cast("Any", CountingConfig))


class Policy:
    """Answers at once with a chunk; it values an observation at ten times what it shows."""

    name = "by hand"

    def __init__(self) -> None:
        self.queues: dict[Any, deque[Any]] = {}

    def put(self, item: Any, *, key: Any = None, weight: int = 0) -> None:
        if getattr(item, "obs", None) is not None:
            states = item.obs["states"]
            rows = len(states)
            action, logprob = np.zeros((rows, CHUNK, 1), np.float32), np.zeros(rows, np.float32)
            value = 10 * states[:, 0]
            decision = Decision(action=action, logprob=logprob, value=value, context={"states": states}, version=0)
            key, item = answer_queue(item.env_rank, item.restarts), Reply(slot=item.slot, decision=decision)
        self.queues.setdefault(key, deque()).append(item)

    def get(self, *, key: Any = None, timeout: float | None = None) -> Any:
        return self.queues[key].popleft()


def played(ends: str, bootstrap: bool) -> Any:
    """One environment for three decisions."""
    train = {"env_type": "counting_by_hand", "init_params": {"ends": ends}, "total_num_envs": 1, "max_steps_per_rollout_epoch": 3}
    cfg = read_embodied(
        {
            "runner": {"experiment_name": "hand", "max_steps": 1},
            "env": {"train": {**train, "bootstrap_truncated": bootstrap}, "eval": {"total_num_envs": 1}},
            "actor": {"model": {"model_type": "mlp_policy", "num_action_chunks": CHUNK}, "global_batch_size": 3},
        }
    )
    worker, channel = EnvWorker(cfg), cast("Any", Policy())
    slots = slot_layout(cfg, 1)
    spec = worker.init_worker(slots["train"])
    worker.connect(Topology(spec=spec, actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, slots=slots))
    worker.interact(0, channel, channel, channel)
    return next(item[1] for queue in channel.queues.values() for item in queue if isinstance(item, tuple)).map(to_torch)


@pytest.mark.parametrize(
    ("ends", "bootstrap", "second"),
    [
        # δ₁ = 4 + ½ · V(the fourth observation) − V(the third) = 4 + 20 − 30
        ("truncated", True, -6.0),
        # An end of the task, or a limit that belongs to it, is followed by nothing: 4 − 30.
        ("truncated", False, -26.0),
        ("terminated", True, -26.0),
    ],
)
def test_a_chunk_that_an_end_cuts_bootstraps_from_the_observation_at_the_end(ends: str, bootstrap: bool, second: float) -> None:
    """The steps of an episode pay 1, 2, 3 and 4: chunks of three are worth 6 and, cut after one step, 4."""
    rows = played(ends, bootstrap)
    assert rows.reward.tolist() == [[6, 4], [6, 0]]
    assert rows.mask.tolist() == [[True, True], [True, False]]
    assert rows.value[:, :2].tolist() == [[0, 30], [0, 30]]
    credit = ADVANTAGES.build("gae", {"gamma": 0.5, "gae_lambda": 0.5, "normalize_advantages": False}, place="algorithm")(rows)
    # δ₀ = 6 + ½ · 30 − 0 = 21, and a quarter of what follows; the next episode goes on after its first chunk.
    expected = torch.tensor([[21 + second / 4, second], [21.0, 0.0]])
    torch.testing.assert_close(credit.advantage, expected)
    torch.testing.assert_close(credit.target, torch.tensor([[21 + second / 4, second + 30], [21.0, 0.0]]))
