"""A policy with a memory, from the simulator to the trainer: what it remembers is of the episode that it decides for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import env_worker_toy
import numpy as np
import pytest
import torch

from rlinf.core.data import Decision, Trajectory
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.runners.embodied import rules
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.embodied.playing.episode_memory import EpisodeMemory
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import read_embodied


class Counts:
    """Remembers how many decisions it has made in an episode and the sum of what it saw; 100 before the first."""

    version = 0

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def initial_state(self, rows: int) -> Mapping[str, Any]:
        return {"count": torch.full((rows,), 100.0), "more": {"sum": torch.zeros(rows, 1)}}

    def next_state(self, decision: Decision[Any]) -> Mapping[str, Any]:
        context: Any = decision.context
        return {"count": context["count"] + 1, "more": {"sum": context["sum"] + context["states"][:, :1]}}

    def predict_action_batch(self, env_obs: Any, mode: str = "train", *, generator: Any = None) -> Decision[Any]:
        states, count = env_obs["states"], env_obs["count"]
        self.seen.append((states.clone(), count.clone()))
        context = {"states": states, "count": count, "sum": env_obs["more"]["sum"]}
        zeros = torch.zeros(len(states))
        return Decision(action=zeros[:, None, None], logprob=zeros, value=count.clone(), context=context, version=0)


def connected(data: dict[str, Any], queues: Any) -> tuple[EnvWorker, Counts, tuple[Any, Any]]:
    """An env worker, the policy that decides for it, and the channels between them."""
    cfg = read_embodied(data)
    env, topology = env_worker_toy.connected(cfg)
    worker: Any = MultiStepRolloutWorker(cfg)
    policy, answers = Counts(), queues()
    worker._policy, worker._topology = policy, topology

    def reply(request: Any) -> None:
        if request.obs is not None:
            answers.put(worker._decide([request], "train")[0], key=request.env_rank)

    return env, policy, (queues(reply), answers)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("auto_reset", [True, False])
def test_what_is_remembered_is_of_the_episode(toy_data: dict[str, Any], queues: Any, auto_reset: bool, stages: int) -> None:
    """Across ends inside a rollout, epochs, iterations; a decision that only values an observation is not remembered."""
    toy_data["env"]["train"] |= {"env_type": "drifting", "rollout_epoch": 2, "auto_reset": auto_reset}
    toy_data["rollout"] = {"pipeline_stage_num": stages}
    env, _, channels = connected(toy_data, queues)
    continued, ended = 0, 0
    for step in range(3):
        trajectories = queues()
        env.interact(step, *channels, trajectories)
        part = Trajectory.concat([trajectories.get(key=0)[1] for _ in range(2)])
        left, _, length = np.moveaxis(part.context["states"], -1, 0)
        expected = np.where(part.mask, 100 + length, 0)
        assert (part.context["count"] == expected).all(), "as many decisions as steps of the episode"
        start = left[:, :1] + length[:, :1]
        assert (part.context["sum"][..., 0] == np.where(part.mask, length * start - length * (length - 1) / 2, 0)).all()
        steps = part.mask.sum(axis=1)
        after = part.value[np.arange(len(part)), steps]
        assert (after == 100 + length[np.arange(len(part)), steps - 1] + 1).all(), "also of final and bootstrapped observations"
        continued += int((length[:, 0] > 0).sum())
        ended += int(part.terminated.sum())
    assert ended > 12
    assert (continued > 0) == auto_reset


def test_an_evaluation_remembers_by_episode(toy_data: dict[str, Any], queues: Any) -> None:
    toy_data["env"]["train"] |= {"env_type": "drifting"}
    toy_data["env"]["eval"] |= {"episodes": 11}
    env, policy, channels = connected(toy_data, queues)
    for _ in range(2):
        policy.seen.clear()
        results = env.evaluate(episode_protocol(env.cfg, final=False), *channels)
        assert len(results) == 11
        assert len({r.episode_len for r in results}) > 1, "episodes end at different times"
        for states, count in policy.seen:
            assert (count == 100 + states[:, 2]).all()
        assert any(len(states) < 4 for states, _ in policy.seen), "the last ones are decided for alone"


def test_nothing_is_sent_for_a_policy_without_a_memory() -> None:
    memory = EpisodeMemory()
    memory.keep([1, 2], None)
    assert memory.recall([1, 2]) is None


def test_a_batch_smaller_than_a_piece_of_an_episode_is_refused(toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    toy_data["actor"]["global_batch_size"] = 4
    read_embodied(toy_data)
    monkeypatch.setattr(rules, "traits_of", lambda config: PolicyTraits(recurrent=True))
    with pytest.raises(
        ConfigError, match=r"^actor\.global_batch_size: 'toy_model' has a memory .* pieces of 6 decisions, found batches of 4"
    ):
        read_embodied(toy_data)
    toy_data["actor"]["global_batch_size"] = 6
    read_embodied(toy_data)
