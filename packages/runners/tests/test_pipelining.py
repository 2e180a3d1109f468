"""While one slot simulates, another is decided for: proved by a simulator and a policy that wait for each other."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from env_worker_toy import connected

from rlinf.core.data import Decision
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Request, answer_queue, request_queue

PATIENCE_S = 60.0
"""So long only where a test fails."""


class ThreadChannel:
    """A channel between threads."""

    def __init__(self) -> None:
        self.queues: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)
        self.lock = threading.Lock()

    def put(self, item: Any, *, key: Any) -> None:
        self.of(key).put(item)

    def get(self, *, key: Any, timeout: float | None = None) -> Any:
        return self.of(key).get(timeout=PATIENCE_S)

    def of(self, key: Any) -> queue.Queue[Any]:
        # Two threads that ask for a new one at once would get one each, and what is put into the first would be lost.
        with self.lock:
            return self.queues[key]


class Meeting:
    """Steps of the simulator and decisions of the policy, which end only together: one of each."""

    def __init__(self, unpaired: set[int], patience_s: float = PATIENCE_S) -> None:
        self.barrier = threading.Barrier(2, timeout=patience_s)
        self.unpaired, self.decisions = unpaired, 0

    def step(self) -> None:
        self.barrier.wait()

    def decide(self) -> None:
        number, self.decisions = self.decisions, self.decisions + 1
        if number not in self.unpaired:
            self.barrier.wait()


class MeetingPolicy:
    version = 0

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def predict_action_batch(self, env_obs: Any, mode: str = "train", *, generator: Any = None) -> Decision[Any]:
        self.meeting.decide()
        states = env_obs["states"]
        zeros = torch.zeros(len(states))
        return Decision(action=zeros[:, None, None], logprob=zeros, value=zeros, context={"states": states}, version=0)


def play(data: dict[str, Any], meeting: Meeting) -> int:
    """One rollout of an env worker and a rollout worker in two threads; returns its decisions."""
    cfg = read_embodied(data)
    (env, topology), rollout = connected(cfg), MultiStepRolloutWorker(cfg)
    worker: Any = rollout
    worker._policy, worker._topology = MeetingPolicy(meeting), topology
    for env_slot in env._env_slots:
        simulator: Any = env_slot._env

        def step(action: Any, step: Any = simulator.step) -> Any:
            meeting.step()
            return step(action)

        simulator.step = step
    requests, answers, trajectories = (ThreadChannel() for _ in range(3))
    channels: Any = (requests, answers)
    with ThreadPoolExecutor(2) as pool:
        playing: Any = pool.submit(env.interact, 0, *channels, trajectories)  # pyright: ignore[reportArgumentType]
        deciding = pool.submit(rollout.generate, 0, *channels)
        wait([playing, deciding], PATIENCE_S, FIRST_EXCEPTION)
        # Who still waits for the other side, because that has failed, does not keep the pool open.
        meeting.barrier.abort()
        answers.put(None, key=answer_queue(0, restarts=0))
        requests.put(Request(slot=0, env_rank=0, key=(), obs=None), key=request_queue(0, 0))
    # An env worker says of what its environment raised where that was.
    failures = [error.__cause__ or error for future in (playing, deciding) if (error := future.exception())]
    if failures:
        raise min(failures, key=lambda failure: not isinstance(failure, threading.BrokenBarrierError))
    return deciding.result()


def test_two_stages_simulate_and_decide_at_the_same_time(toy_data: dict[str, Any]) -> None:
    """Over rollout epochs, too: of 2 · 2 · 7 decisions only the first and the last have no simulation beside them."""
    toy_data["env"]["train"]["rollout_epoch"] = 2
    toy_data["rollout"] = {"pipeline_stage_num": 2}
    # The values at the end of an epoch are those of one more decision for each slot than it has steps.
    meeting = Meeting(unpaired={0, 13, 14, 27})
    assert play(toy_data, meeting) == 28


def test_one_stage_does_one_after_the_other(toy_data: dict[str, Any]) -> None:
    with pytest.raises(threading.BrokenBarrierError):
        play(toy_data, Meeting(unpaired={0, 6}, patience_s=0.3))
