"""Decisions that are made while the chunk before them is executed, by hand: who is asked for what, and what is executed when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, Decision, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodePlayer, RealTimeChunking
from rlinf.runners.embodied.playing.env_slot import EnvSlot, RequestSender
from rlinf.runners.embodied.playing.evaluating import evaluation_of
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.topology import ChunksInExecution, Reply, Request

HORIZON = 5
"""Steps of a chunk."""


class Episodes:
    """Plays two episodes side by side, one of 6 steps and one of 3, then a third of 2; keeps what was executed in each."""

    def __init__(self, asked: list[Request]) -> None:
        self.asked = asked
        self.executed: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self.lengths, self.playing, self.waiting = {0: 6, 1: 3, 2: 2}, [0, 1], [2]
        self.requests: list[int] = []
        """How many requests had been sent when steps were begun."""

    @property
    def done(self) -> bool:
        return not self.playing

    @property
    def turns(self) -> list[Any]:
        return [SimpleNamespace(episode=SimpleNamespace(number=episode)) for episode in self.playing]

    @property
    def observations(self) -> dict[str, Any]:
        return {"states": np.array([[100.0 * episode + len(self.executed[episode])] for episode in self.playing], np.float32)}

    def begin(self, actions: Any) -> None:
        self.requests.append(len(self.asked))
        self._execute(actions)

    def step(self, actions: Any) -> list[Any]:
        self._execute(actions)
        ended = [episode for episode in self.playing if len(self.executed[episode]) == self.lengths[episode]]
        begun = [self.waiting.pop() for _ in ended if self.waiting]
        self.playing = [episode for episode in self.playing if episode not in ended] + begun
        return ended

    def _execute(self, actions: Any) -> None:
        for episode, chunk in zip(self.playing, actions, strict=True):
            left = self.lengths[episode] - len(self.executed[episode])
            self.executed[episode] += chunk[:left, 0].tolist()


def decided(request: Request) -> Any:
    """Step k of the chunk that is decided for a state: 10 · state + k."""
    states = cast("dict[str, Any]", request.obs)["states"]
    return 10.0 * states[:, None] + np.arange(HORIZON, dtype=np.float32)[:, None]


def play(timing: RealTimeChunking) -> tuple[Episodes, list[Request]]:
    asked: list[Request] = []
    player, results = Episodes(asked), list[Any]()
    slot = Slot(index=0, env_rank=0, stage=0, first_env=0, num_envs=2)
    spec = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32", low=-1e6, high=1e6), max_episode_steps=9)
    sender = RequestSender(requests=cast("Any", SimpleNamespace(put=lambda item, key: asked.append(item))), queue=0)
    conversation = evaluation_of(EnvSlot(slot, None, spec), sender, [cast("EpisodePlayer", player)], results, timing)
    next(conversation)
    while asked[-1].obs is not None:
        action = decided(asked[-1])
        decision = Decision(action=action, logprob=np.zeros(len(action)), value=None, context={}, version=0)
        try:
            conversation.send(Reply(slot=0, decision=decision))
        except StopIteration:
            break
    assert results == [1, 0, 2]
    return player, asked[:-1]


@pytest.mark.parametrize("guidance", [True, False])
def test_a_chunk_takes_over_at_its_dth_step(guidance: bool) -> None:
    """With d = 1 and s = 2: a step of the last chunk, the second of the new one; the first two chunks are of the first state."""
    player, asked = play(RealTimeChunking(delay=1, execution_horizon=2, guidance=guidance))
    assert player.executed[0] == [0, 1, 2, 21, 22, 41]
    assert player.executed[1] == [1000, 1001, 1002]
    assert player.executed[2] == [2000, 2001]
    # The first chunks of both; both at 0, both at 2; the first one of the third episode alone; then what is left of all.
    shown = [cast("dict[str, Any]", request.obs)["states"][:, 0].tolist() for request in asked]
    assert shown == [[0, 100], [0, 100], [2, 102], [200], [4, 200]]
    assert player.requests == [2, 3, 5], "the policy is asked before the first steps are executed"
    assert len({request.key for request in asked}) == len(asked), "each answer has random numbers of its own"
    rests = [None if request.chunks is None else request.chunks.rest[:, :, 0].tolist() for request in asked]
    if guidance:
        second, third, last = [[[0, 1, 2], [1000, 1001, 1002]], [[2, 3, 4], [1002, 1003, 1004]], [[22, 23, 24], [2000, 2001, 2002]]]
        assert rests == [None, second, third, None, last]
        assert {request.chunks.delay for request in asked if request.chunks is not None} == {1}
    else:
        assert rests == [None] * 5


def test_nothing_is_executed_meanwhile_without_a_delay_and_all_of_it_with_one_of_a_whole_horizon() -> None:
    player, _ = play(RealTimeChunking(delay=0, execution_horizon=3))
    assert (player.executed[0], player.requests) == ([0, 1, 2, 30, 31, 32], [])
    player, _ = play(RealTimeChunking(delay=2, execution_horizon=2))
    assert player.executed[0] == [0, 1, 2, 3, 22, 23], "each chunk is executed from its third step on"


def test_a_policy_whose_chunks_turn_out_too_short_is_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match=r"env\.eval\.real_time_chunking\.execution_horizon: 3, .* a chunk of 5 steps"):
        play(RealTimeChunking(delay=3, execution_horizon=3))


class Continuing:
    """Says which of its two ways of deciding was used, and for whom."""

    version = 0

    def predict_action_batch(self, env_obs: Any, mode: Any, *, generator: Any = None) -> Any:
        return self._decision(env_obs["states"], 0.0)

    def continue_chunk(self, env_obs: Any, previous: Any, *, delay: int, generator: Any = None) -> Any:
        return self._decision(env_obs["states"], previous[:, 0] + 10.0 * delay)

    def _decision(self, states: Any, more: Any) -> Any:
        action = (states + more)[:, None]
        return Decision(action=action, logprob=torch.zeros(len(action)), value=None, context={}, version=0)


def test_requests_of_one_batch_are_answered_each_in_its_way(toy_data: dict[str, Any]) -> None:
    from rlinf.runners.embodied.rules import read_embodied

    worker = MultiStepRolloutWorker(read_embodied(toy_data))
    worker._policy, worker._topology = cast("Any", Continuing()), cast("Any", SimpleNamespace())

    def request(slot: int, value: float, chunks: ChunksInExecution | None) -> Request:
        return Request(slot=slot, env_rank=0, key=(0,), obs={"states": np.full((1, 1), value, np.float32)}, chunks=chunks)

    def of(value: float) -> ChunksInExecution:
        return ChunksInExecution(rest=np.full((1, 3, 1), value, np.float32), delay=2)

    batch = [request(4, 1.0, of(0.5)), request(5, 2.0, None), request(6, 3.0, of(0.25))]
    replies = worker._decide(batch, "eval")
    assert [(reply.slot, reply.decision.action.item()) for reply in replies] == [(4, 21.5), (5, 2.0), (6, 23.25)]
    worker._policy = cast("Any", SimpleNamespace())
    with pytest.raises(ConfigError, match=r"env\.eval\.real_time_chunking\.guidance: SimpleNamespace can't go on"):
        worker._decide(batch[:1], "eval")
