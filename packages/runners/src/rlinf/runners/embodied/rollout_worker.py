"""`MultiStepRolloutWorker`: holds a copy of the policy and decides for every observation that it is sent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from rlinf.core.capabilities import HasExplorationSchedule, RealTimeChunkingPolicy, RecurrentPolicy
from rlinf.core.data import Decision, EnvSpec
from rlinf.core.data.tree import tree_combine, tree_concatenate, tree_index, tree_leaves, tree_map
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.protocols import Channel, CompiledPolicy, Mode, Policy
from rlinf.core.random import RowGenerators, keyed_seed
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.starting_weights import fitting_model, load_starting_weights, read_weights
from rlinf.runners.embodied.playing.request_batches import Requests, request_batches
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.topology import (
    Attempt,
    ChunksInExecution,
    Remembered,
    Reply,
    Request,
    Topology,
    answer_queue,
    request_queue,
)
from rlinf.runners.lazy import torch
from rlinf.runners.training.devices import placed
from rlinf.runners.training.tensors import observed, to_numpy, to_torch


class MultiStepRolloutWorker(Worker):
    """Serves its share of the slots.

    Args:
        cfg: the configuration of the run.
        wrap: makes of the policy what acts, which has the same weights and may explore more; None: the policy itself.
    """

    def __init__(self, cfg: PlayedConfig, wrap: Callable[[Any, EnvSpec], Any] | None = None) -> None:
        self.cfg = cfg
        self._wrap = wrap
        self._policy: Policy | None = None
        self._topology: Topology | None = None
        self._taken = 0
        """The number of the last weights that were taken."""

    def init_worker(self, topology: Topology) -> None:
        """Builds the policy; its weights are those of the actor only after the first synchronisation."""
        torch.set_num_threads(self.threads)
        self._topology = topology
        seed = keyed_seed(self.cfg.runner.seed, "model")
        built = self.cfg.actor.model.build(topology.spec, seed=seed).eval()
        rollout = self.cfg.rollout
        if rollout.enable_torch_compile:
            cast("CompiledPolicy", built).enable_torch_compile("reduce-overhead" if rollout.enable_cuda_graph else "default")
        policy = built if self._wrap is None else self._wrap(built, topology.spec)
        self._policy = policy if rollout.offload else placed(policy, self)

    def sync_model_from_actor(self, number: int | None = None) -> int:
        """Takes over the actor's weights; returns their version.

        Args:
            number: which of the actor's publications this is, counted from 1: one that was taken while requests were answered is
                not waited for again. None: the next one.
        """
        policy, topology = self._ready()
        if number is not None and number <= self._taken:
            return policy.version
        self._taken = number or self._taken
        # Of all actors the first one sends; see `publish`.
        received = self.cfg.actor.weight_syncer.sync.recv(self.messenger, policy.weights(), topology.actor, 0)
        policy.load(received)
        return received.version

    def load_weights(self, checkpoint_file: str | None, version: int) -> None:
        """Takes the weights of a checkpoint, or those that a run would start from."""
        policy, topology = self._ready()
        model = self.cfg.actor.model
        if checkpoint_file is not None:
            file = Path(checkpoint_file)
            with fitting_model(file.parents[1], self.cfg.source, model):
                policy.load(read_weights(file, "checkpoint", version=version))
        elif self.cfg.runner.ckpt_path is not None:
            path = self.cfg.runner.ckpt_path
            load_starting_weights(policy, path, model=model, spec=topology.spec)

    def generate(self, step: int, requests: Channel, answers: Channel, mode: Mode = "train", again: Attempt | None = None) -> int:
        """Answers requests until every slot that it serves is done; takes new weights in between, when it is told of them.

        Args:
            step: the iteration, which a policy's exploration may follow.
            requests: where observations come from, by `request_queue`.
            answers: where decisions go, by `answer_queue`.
            mode: "train" samples, "eval" takes the most likely action.
            again: the share of an env worker that is played once more; None: all slots that it serves.

        Returns:
            How many requests were answered.
        """
        policy, topology = self._ready()
        if isinstance(policy, HasExplorationSchedule):
            policy.set_global_step(step)
        slots = [slot for slot in topology.served_by(self.rank, "train") if again is None or slot.env_rank == again.env_rank]
        return self._serve(requests, request_queue(self.rank, step, again), answers, slots, mode)

    def evaluate(self, requests: Channel, answers: Channel, mode: Mode) -> int:
        """Answers the requests of an evaluation."""
        _, topology = self._ready()
        return self._serve(requests, request_queue(self.rank), answers, topology.served_by(self.rank, "eval"), mode)

    def _serve(self, requests: Channel, queue: Hashable, answers: Channel, slots: Sequence[Slot], mode: Mode) -> int:
        policy, _ = self._ready()
        with self._onloaded(policy):
            waiting = partial(self.worker_timer, "wait_for_observations")
            answered = self._answer(Requests(requests, queue, self.sync_model_from_actor, waiting), answers, slots, mode)
            if self.records_memory and isinstance(policy, torch.nn.Module):
                self.record_memory("parameters", sum(each.nbytes for each in (*policy.parameters(), *policy.buffers())))
            return answered

    @contextmanager
    def _onloaded(self, policy: Policy) -> Generator[None]:
        """Inside, the policy is where it computes; outside it is in host memory if `rollout.offload` says so."""
        if not self.cfg.rollout.offload:
            yield
            return
        placed(policy, self)
        try:
            yield
        finally:
            if isinstance(policy, torch.nn.Module):
                policy.to("cpu")

    def _answer(self, requests: Requests, answers: Channel, slots: Sequence[Slot], mode: Mode) -> int:
        answered = 0
        for batch in request_batches(requests, slots, self.cfg.rollout):
            with self.worker_timer("decide"):
                replies = self._decide(batch, mode)
            for request, reply in zip(batch, replies, strict=True):
                answers.put(reply, key=answer_queue(request.env_rank, request.restarts))
            answered += len(batch)
        return answered

    def _decide(self, batch: Sequence[Request], mode: Mode) -> list[Reply]:
        """The answers to requests, in their order; each is answered as it would be alone, but for rounding."""
        # Those that go on from a chunk in execution take a pass of their own.
        parts = [[request for request in batch if (request.chunks is None) is alone] for alone in (True, False)]
        replies = {reply.slot: reply for part in parts if part for reply in self._pass(part, mode)}
        return [replies[request.slot] for request in batch]

    def _pass(self, batch: Sequence[Request], mode: Mode) -> list[Reply]:
        """One pass of the policy for all requests."""
        policy, _ = self._ready()
        parts = [(len(next(leaf for _, leaf in tree_leaves(request.obs))), self._generator(request)) for request in batch]
        joined = batch[0].obs if len(batch) == 1 else tree_concatenate([request.obs for request in batch])
        obs: Any = tree_map(observed, joined)
        if isinstance(policy, RecurrentPolicy):
            obs = {**obs, **_memory(policy, [(rows, request) for (rows, _), request in zip(parts, batch, strict=True)])}
        # A policy that knows nothing of batches is given an ordinary generator.
        generator = parts[0][1] if len(parts) == 1 else RowGenerators(tuple(parts))
        chunks = [request.chunks for request in batch if request.chunks is not None]
        if chunks:
            decision = _continued(policy, obs, chunks, generator)
        else:
            decision = policy.predict_action_batch(obs, mode, generator=generator)
        memory = tree_map(to_numpy, policy.next_state(decision)) if isinstance(policy, RecurrentPolicy) else None
        decided, replies, first = _sendable(decision), list[Reply](), 0
        for request, (rows, _) in zip(batch, parts, strict=True):
            own = slice(first, first + rows)
            remembered = None if memory is None else tree_index(memory, own)
            replies.append(Reply(slot=request.slot, decision=decided.rows(own), memory=remembered))
            first += rows
        return replies

    def _generator(self, request: Request) -> torch.Generator:
        """One for each request: an answer depends neither on the worker that gives it nor on those that it gave before."""
        return torch.Generator().manual_seed(keyed_seed(self.cfg.runner.seed, "rollout", request.slot, *request.key))

    def _ready(self) -> tuple[Policy, Topology]:
        if self._policy is None or self._topology is None:
            raise RLinfError(f"rollout[{self.rank}]", "has no policy yet", "Call init_worker(topology) first.")
        return self._policy, self._topology


def _continued(policy: Policy, obs: Any, chunks: Sequence[ChunksInExecution], generator: Any) -> Decision[Any]:
    """Chunks that go on from those in execution."""
    if not isinstance(policy, RealTimeChunkingPolicy):
        problem = f"{type(policy).__name__} can't go on from a chunk in execution: it has no continue_chunk"
        raise ConfigError("env.eval.real_time_chunking.guidance", problem, "Set it to false.")
    previous = to_torch(np.concatenate([part.rest for part in chunks]))
    # All requests of an evaluation have one delay.
    return policy.continue_chunk(obs, previous, delay=chunks[0].delay, generator=generator)


def _memory(policy: RecurrentPolicy, asked: Sequence[tuple[int, Request]]) -> Mapping[str, Any]:
    """What a policy with a memory sees beside the observations of requests, of so many rows each."""
    parts = [_remembered(policy, rows, request.remembered) for rows, request in asked]
    return cast("Mapping[str, Any]", tree_concatenate(parts))


def _remembered(policy: RecurrentPolicy, rows: int, remembered: Remembered | None) -> Mapping[str, Any]:
    """The memory of so many rows: the initial state where an episode begins."""
    initial = policy.initial_state(rows)
    if remembered is None:
        return initial
    begins = to_torch(remembered.begins)

    def chosen(leaves: Sequence[Any]) -> Any:
        start, before = leaves
        mask = begins.to(start.device).reshape(-1, *[1] * (start.dim() - 1))
        return torch.where(mask, start, to_torch(before).to(start))

    return cast("Mapping[str, Any]", tree_combine(chosen, [initial, remembered.memory]))


def _sendable(decision: Decision[Any]) -> Decision[Any]:
    return Decision(
        action=to_numpy(decision.action),
        logprob=to_numpy(decision.logprob),
        value=None if decision.value is None else to_numpy(decision.value),
        context=tree_map(to_numpy, decision.context),
        version=decision.version,
    )
