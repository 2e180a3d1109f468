"""`MultiStepRolloutWorker`: holds a copy of the policy and decides for every observation that it is sent."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from rlinf.core.capabilities import HasExplorationSchedule, RecurrentPolicy
from rlinf.core.data import Decision, Weights
from rlinf.core.errors import RLinfError
from rlinf.core.protocols import Channel, Mode, Policy
from rlinf.core.random import keyed_seed
from rlinf.core.tree import tree_combine, tree_leaves, tree_map
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.starting_weights import load_starting_weights
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.topology import Remembered, Reply, Request, Topology
from rlinf.runners.training.devices import placed
from rlinf.runners.training.tensors import observed, to_numpy, to_torch


class MultiStepRolloutWorker(Worker):
    """Serves its share of the slots."""

    def __init__(self, cfg: EmbodiedConfig) -> None:
        self.cfg = cfg
        self._policy: Policy | None = None
        self._topology: Topology | None = None

    def init_worker(self, topology: Topology) -> None:
        """Builds the policy; its weights are those of the actor only after the first synchronisation."""
        torch.set_num_threads(self.threads)
        self._topology = topology
        seed = keyed_seed(self.cfg.runner.seed, "model")
        policy = self.cfg.actor.model.build(topology.spec, seed=seed).eval()
        self._policy = policy if self.cfg.rollout.offload else placed(policy, self)

    def sync_model_from_actor(self) -> int:
        """Takes over the actor's weights; returns their version."""
        policy, topology = self._ready()
        received = self.cfg.actor.weight_syncer.sync.recv(self.messenger, policy.weights(), topology.actor, 0)
        policy.load(received)
        return received.version

    def load_weights(self, checkpoint_file: str | None, version: int) -> None:
        """Takes the weights of a checkpoint, or those that a run would start from."""
        policy, topology = self._ready()
        if checkpoint_file is not None:
            policy.load(Weights(tensors=load_file(Path(checkpoint_file)), version=version))
        elif self.cfg.runner.ckpt_path is not None:
            path, model = self.cfg.runner.ckpt_path, self.cfg.actor.model
            load_starting_weights(policy, path, model=model, build=lambda config: config.build(topology.spec, seed=0))

    def generate(self, step: int, requests: Channel, answers: Channel, mode: Mode = "train") -> int:
        """Answers requests until every slot that it serves is done.

        Args:
            step: the iteration, which a policy's exploration may follow.
            requests: where observations come from, keyed by rollout rank.
            answers: where decisions go, keyed by slot.
            mode: "train" samples, "eval" takes the most likely action.

        Returns:
            How many requests were answered.
        """
        policy, topology = self._ready()
        if isinstance(policy, HasExplorationSchedule):
            policy.set_global_step(step)
        return self._serve(requests, answers, topology.served_by(self.rank, "train"), mode)

    def evaluate(self, requests: Channel, answers: Channel, mode: Mode) -> int:
        """Answers the requests of an evaluation."""
        _, topology = self._ready()
        return self._serve(requests, answers, topology.served_by(self.rank, "eval"), mode)

    def _serve(self, requests: Channel, answers: Channel, slots: int, mode: Mode) -> int:
        policy, _ = self._ready()
        with self._onloaded(policy):
            return self._answer(requests, answers, slots, mode)

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

    def _answer(self, requests: Channel, answers: Channel, slots: int, mode: Mode) -> int:
        answered = 0
        while slots:
            with self.worker_timer("wait_for_observations"):
                request = cast("Request", requests.get(key=self.rank))
            if request.obs is None:
                slots -= 1
                continue
            with self.worker_timer("decide"):
                reply = self._decide(request, mode)
            answers.put(reply, key=request.slot)
            answered += 1
        return answered

    def _decide(self, request: Request, mode: Mode) -> Reply:
        # One for each request: an answer depends neither on the worker that gives it nor on those that it gave before.
        generator = torch.Generator()
        generator.manual_seed(keyed_seed(self.cfg.runner.seed, "rollout", request.slot, *request.key))
        policy, _ = self._ready()
        obs = tree_map(observed, request.obs)
        if isinstance(policy, RecurrentPolicy):
            obs = {**cast("Mapping[str, Any]", obs), **_memory(policy, obs, request.remembered)}
        decision = policy.predict_action_batch(obs, mode, generator=generator)
        memory = tree_map(to_numpy, policy.next_state(decision)) if isinstance(policy, RecurrentPolicy) else None
        return Reply(decision=_sendable(decision), memory=memory)

    def _ready(self) -> tuple[Policy, Topology]:
        if self._policy is None or self._topology is None:
            raise RLinfError(f"rollout[{self.rank}]", "has no policy yet", "Call init_worker(topology) first.")
        return self._policy, self._topology


def _memory(policy: RecurrentPolicy, obs: Any, remembered: Remembered | None) -> Mapping[str, Any]:
    """What a policy with a memory sees beside observations: the initial state where an episode begins."""
    rows = len(next(leaf for _, leaf in tree_leaves(obs)))
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
