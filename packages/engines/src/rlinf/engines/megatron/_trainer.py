"""The trainer on Megatron-Core.

micro-batches ─▶ (pack) ─▶ columns ─▶ layers of stage 0 ─▶ … ─▶ layers of the last ─▶ (unpack) ─▶ loss ─▶ total, weight
                                                                          │
        Σ over ranks that hold the same part: gradients · weights · metrics       once a step
                                                                          │
        gradient / weight ─▶ clip by the norm over all parts ─▶ AdamW             skipped where a gradient is not finite
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Batch, Rescored, Weights
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.protocols import Loss
from rlinf.engines import ranks as meeting
from rlinf.engines.fsdp.rescoring import DTYPES, on_device
from rlinf.engines.layout import Replicated
from rlinf.engines.megatron._checkpoint import NETWORK, Checkpoint
from rlinf.engines.megatron._conversion import Conversion
from rlinf.engines.megatron._groups import Groups, leave
from rlinf.engines.megatron._network import Columns, Network, Rotation
from rlinf.engines.megatron._passes import check_device, run
from rlinf.engines.megatron.gradients import Gradients
from rlinf.engines.megatron.mapping import PLACE, Shape
from rlinf.engines.megatron.masters import Masters
from rlinf.engines.megatron.trainer import MegatronTrainerConfig
from rlinf.engines.offload import PARTS
from rlinf.engines.optim.optimizer import Optimizers, division
from rlinf.engines.packing.rows import MicroBatch, Packed, micro_batches_of, pack
from rlinf.engines.ranks import Ranks, summed_metrics
from rlinf.engines.reference import RescoringTrainer, reference_of


class MegatronTrainer(RescoringTrainer):
    """Owns a language model's weights and their optimizer; built by `MegatronTrainerConfig`."""

    references = "device or cpu"

    def __init__(self, config: MegatronTrainerConfig, policy: Any, ranks: Ranks) -> None:
        super().__init__(f"trainer[{ranks.rank}]")
        self.config, self.ranks = config, ranks
        self._policy = policy
        network, state = policy.network, policy.network.state_dict()
        self.device = next(iter(state.values())).device
        self._dtype = next(iter(state.values())).dtype
        shape = Shape.of(network.config)
        self._groups = Groups.of(config, ranks)
        computed = self._dtype if config.precision is None else DTYPES[config.precision]
        rotation = Rotation.of(network, self.device)
        self._network = Network(
            config, shape, rotation, self._groups, dtype=computed, device=self.device, temperature=policy.temperature
        )
        self._conversion = Conversion(shape, {name: tensor.shape for name, tensor in state.items()}, self._groups)
        self._names = sorted(policy.state_dict())
        self._masters = Masters(self._network.parameters, self._shares() if config.use_distributed_optimizer else None)
        self._take_over(state)
        # The weights are Megatron's now; the policy's own memory is given back.
        policy.to("meta")
        self._gradients = Gradients(self._conversion.own, self._groups, sequence_parallel=config.sequence_parallel, tied=shape.tied)
        self._optimizers = Optimizers(self._masters, config.optim)
        self._reference = reference_of(config.reference, self._network.module, Replicated(ranks))
        self._checkpoint = Checkpoint(self._conversion, self._masters, self._optimizers, self._groups, self.device)
        self._set_version(policy.version)

    @classmethod
    def join(cls, config: MegatronTrainerConfig, policy: Any, *, rank: int, world_size: int, rendezvous: str) -> MegatronTrainer:
        """Checks the policy, meets the other ranks, and takes it over; see `MegatronTrainerConfig.build`."""
        device = checked(config, policy)
        # Megatron makes weights and buffers on the current device.
        if device.type == "cuda":
            torch.cuda.set_device(device)
        ranks = meeting.join(rank, world_size, rendezvous, device=device, timeout_s=config.timeout_s, grouped=True)
        try:
            return cls(config, policy, ranks)
        except BaseException:
            # Megatron's groups belong to the process, which could otherwise have no further trainer.
            leave(ranks)
            raise

    @torch.no_grad()
    def _take_over(self, state: Mapping[str, Tensor]) -> None:
        """Divides the weights of rank 0."""
        for tensor in state.values():
            self.ranks.broadcast(tensor)
        for entry in self._conversion.own:
            self._masters.load(entry.name, self._conversion.part(entry, state.__getitem__))

    def _shares(self) -> dict[str, Any]:
        """The ranks that hold the same part, by the name of the weight."""
        groups = self._groups
        return {entry.name: groups.expert_copies if entry.experts else groups.copies for entry in self._conversion.own}

    @torch.no_grad()
    def evaluate(self, batch: Batch[Any]) -> Rescored[Tensor]:
        """What the current weights say of past decisions, without a graph; every rank of a copy calls it with the same batch.

        Where experts are divided, every rank calls it equally often.

        Args:
            batch: NumPy or torch; moved to the weights' device.

        Returns:
            The same on each rank of a copy.

        Raises:
            RLinfError: the parameters are offloaded.
        """
        self._offloader.expect_here(["parameters"], by="evaluate")
        parts = micro_batches_of([batch], self.config.max_tokens_per_mbs)
        columns, scored = self._prepared(parts)

        def finish(number: int, hidden: Tensor) -> tuple[None, tuple[Tensor, Tensor, Tensor]]:
            return None, self._scored(number, hidden, columns, scored)

        found = run(self._network, self._groups, columns, finish, learn=False)
        horizon = batch.trajectory.horizon
        scores = torch.zeros((3, len(batch), horizon), dtype=torch.float32, device=self.device)
        # Only the last stage has found anything.
        for part, three in zip(parts, found, strict=False):
            scores[:, list(part.rows)] = torch.stack(three)
        logprob, entropy, squares = self._groups.from_stage(scores, self._groups.stages - 1)
        return Rescored(logprob=logprob, entropy=entropy, value=None, sum_pi_squared=squares, version=self._version)

    def step(self, micro_batches: Sequence[Batch[Any]], loss: Loss) -> dict[str, Statistic]:
        """One optimizer step; every rank calls it, with at least one micro-batch, and those of a copy with the same ones.

        The gradient is that of Σ total / Σ weight, both sums over micro-batches and shares: it does not depend on the split.

        Args:
            micro_batches: NumPy or torch; shares may have different numbers.
            loss: what to minimise; computed where the last layers are.

        Returns:
            The loss's metrics over all shares, and `loss`, `grad_norm` (before the clip), `lr`, and `skipped`: 1 if a gradient was
            not finite, or nothing had weight, and the weights stay as they were. The same on each rank.

        Raises:
            ShapeError: a rank has no micro-batch; raised on every rank.
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="step")
        # For the error alone, which every rank then raises.
        self.ranks.micro_batches(len(micro_batches), "step(micro_batches)")
        parts = micro_batches_of(micro_batches, self.config.max_tokens_per_mbs)
        columns, scored = self._prepared(parts)

        def finish(number: int, hidden: Tensor) -> tuple[Tensor, dict[str, Statistic]]:
            logprob, entropy, _ = self._scored(number, hidden, columns, scored)
            batch = on_device(parts[number].batch, self.device)
            output = loss(batch, Rescored(logprob=logprob, entropy=entropy, version=self._version))
            return cast("Tensor", output.total), {"loss": Metric(output.total.item(), output.weight.item()), **output.metrics}

        try:
            found = run(self._network, self._groups, columns, finish, learn=True)
        except BaseException:
            self._masters.drop()
            raise
        # Only the last stage has losses, and all of them divide by the same weight.
        metrics = self._groups.said_by_last(summed_metrics(self.all_reduce, merge(found))[0] if found else {})
        return self._update(metrics)

    def _update(self, metrics: Mapping[str, Statistic]) -> dict[str, Statistic]:
        """Adds gradients over ranks, divides by the weight of all shares, clips, and steps."""
        gradients = self._masters.gradients()
        self._gradients.collect(gradients)
        square = self._gradients.square_norm(gradients)
        factor, norm = division(square, cast("Metric", metrics["loss"]).weight, self.config.optim.clip_grad)
        rates = self._optimizers.set_learning_rates(self._version)
        taken = math.isfinite(norm)
        if taken:
            self._optimizers.step({"policy": self._masters.take(gradients)}, {"policy": factor}, self._version)
            self._masters.publish()
            self._set_version(self._version + 1)
        self._masters.drop()
        numbers = {"grad_norm": norm, **rates, "skipped": float(not taken)}
        return {**metrics, **{name: Metric(number) for name, number in numbers.items()}}

    def _prepared(self, parts: Sequence[MicroBatch]) -> tuple[list[Columns], list[Packed | None]]:
        """This rank's columns of each micro-batch, and the way back to its rows."""
        columns: list[Columns] = []
        packed: list[Packed | None] = []
        for part in parts:
            moved = on_device(part.batch, self.device)
            laid = None if part.packing is None else pack(moved, part.packing)
            t = (moved if laid is None else laid.batch).trajectory
            columns.append(self._network.columns(t.context, t.action, t.mask))
            packed.append(laid)
        return columns, packed

    def _scored(
        self, number: int, hidden: Tensor, columns: Sequence[Columns], packed: Sequence[Packed | None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and Σ π² of one micro-batch, in the shape of its rows."""
        logprob, entropy, squares = self._network.score(hidden, columns[number])
        laid = packed[number]
        if laid is None:
            return logprob, entropy, squares
        return laid.unpack(logprob), laid.unpack(entropy), laid.unpack(squares)

    def weights(self) -> Weights[Tensor]:
        """All weights by the policy's sorted names, whole, on the CPU, in memory of their own; every rank calls it.

        Raises:
            RLinfError: the parameters are offloaded.
        """
        self._offloader.expect_here(["parameters"], by="weights")
        found = {NETWORK + name: tensor for name, tensor in self._checkpoint.weights(self._dtype).items()}
        tied = found[f"{NETWORK}model.embed_tokens.weight"]
        return Weights(
            tensors={name: found[name] if name in found else tied.clone() for name in self._names}, version=self._version
        )

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum of a tensor over the shares of the samples; every rank calls it."""
        return self._groups.all_reduce(value, self._groups.data)

    def _tensors(self, part: str) -> list[Tensor]:
        if part == "parameters":
            kept = () if self._reference is None else self._reference.tensors
            return [*(parameter.detach() for parameter in self._masters.computed.values()), *kept]
        if part == "gradients":
            return self._masters.accumulated
        held = list(self._masters.held.values())
        apart = [own.detach() for name, own in self._masters.held.items() if own is not self._masters.computed[name]]
        return [*apart, *(tensor for parameter in held for tensor in self._optimizers.state(parameter).values())]

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer and random state below `folder`, which exists; every rank calls it, and all have written after.

        Raises:
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="save")
        self._checkpoint.save(folder, self._version, self._dtype, self._names)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote; every rank calls it. All sizes and the number of ranks may differ.

        Raises:
            CheckpointError: a file is missing or was written for another model; names the first tensor that differs.
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="load")
        self._set_version(self._checkpoint.load(folder))

    def close(self) -> None:
        """Leaves the other ranks."""
        self._groups.leave()


def checked(config: MegatronTrainerConfig, policy: object) -> torch.device:
    """Where the policy's weights are, if it can be trained here.

    Raises:
        ConfigError: it is no language model, or has something that is lost in Megatron.
    """
    if not isinstance(policy, nn.Module) or not isinstance(policy, LanguageModelPolicy):
        found = f"expected a language model, found {type(policy).__name__}"
        raise ConfigError(PLACE, found, "Choose model_type: causal_lm, or the trainer fsdp.")
    others = sorted(name for name in policy.state_dict() if not name.startswith(NETWORK))
    if others:
        found = f"weights beside the language model, such as '{others[0]}', can't be trained here"
        raise ConfigError(PLACE, found, "Use an algorithm without a critic, or the trainer fsdp.")
    if any(not parameter.requires_grad for parameter in policy.parameters()):
        raise ConfigError(PLACE, "some weights are frozen", "Use the trainer fsdp.")
    network = policy.network
    shape = Shape.of(network.config)
    shape.check(config.tensor_model_parallel_size, config.pipeline_model_parallel_size)
    shape.check_experts(
        config.expert_model_parallel_size, config.tensor_model_parallel_size, sequence_parallel=config.sequence_parallel
    )
    shape.expect(network.state_dict())
    device = next(policy.parameters()).device
    check_device(config.pipeline_model_parallel_size, sequence_parallel=config.sequence_parallel, device=device)
    return device
