"""The reference policy, frozen: scored by the actor, or by workers of their own that score while the rollout writes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from rlinf.core.data import Batch, Rescored, Trajectory
from rlinf.core.errors import RLinfError
from rlinf.core.protocols import Policy
from rlinf.core.worker import Worker
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.language import build_policy
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.scoring import pieces, scattered, trimmed, widths
from rlinf.runners.reasoning.topology import Channels, ReferenceRequest
from rlinf.runners.training.devices import device_of
from rlinf.runners.training.reference import frozen
from rlinf.runners.training.tensors import to_numpy, to_torch


class ReferencePolicy:
    """The policy that `reference.source` names.

    Args:
        cfg: the configuration of the run.
        device: where it scores.
    """

    def __init__(self, cfg: ReasoningConfig, device: torch.device) -> None:
        self._policy: Policy = frozen(build_policy(cfg, starting_weights=cfg.reference.source == "initial"), cfg.reference, device)
        self._size, self._tokens = cfg.actor.micro_batch_size, cfg.actor.max_tokens_per_mbs

    def logprob(self, trajectory: Trajectory[torch.Tensor]) -> torch.Tensor:
        """`[B, T]`, the log-probability of each decision under the reference; 0 where masked."""
        batch, width = Batch.of(trajectory), widths(trajectory)
        parts = pieces(np.arange(len(trajectory)), width, size=self._size, tokens=self._tokens)

        def score(rows: Any) -> tuple[Any, Rescored[torch.Tensor]]:
            return rows, self._policy.default_forward(trimmed(batch, rows, width))

        with torch.no_grad():
            return scattered(trajectory, map(score, parts)).logprob


class InferenceWorker(Worker):
    """Scores groups under the reference for the reward workers."""

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._reference: ReferencePolicy | None = None

    def init_worker(self) -> None:
        """Builds the reference."""
        torch.set_num_threads(self.threads)
        self._reference = ReferencePolicy(self.cfg, device_of(self))

    def compute_references(self, channels: Channels, askers: int) -> int:
        """Answers until every reward worker that it serves has said that it is done.

        Args:
            channels: where requests come from and answers go.
            askers: how many reward workers it serves.

        Returns:
            How many groups it scored.
        """
        if self._reference is None:
            raise RLinfError(f"inference[{self.rank}]", "has no reference yet", "Call init_worker() first.")
        answered = 0
        while askers:
            request = cast("ReferenceRequest | None", channels.reference_requests.get(key=self.rank))
            if request is None:
                askers -= 1
                continue
            with self.worker_timer("score"):
                found = self._reference.logprob(request.trajectory.map(to_torch))
            answer = int(request.trajectory.group[0]), to_numpy(found)
            channels.references.put(answer, key=request.reward_rank)
            answered += 1
        return answered
