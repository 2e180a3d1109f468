"""The trainer on torch: one rank, or many with FSDP2.

micro-batches ─▶ (pack) ─▶ policy ─▶ (unpack) ─▶ loss ─▶ total, weight      each rank, each micro-batch; gradients add up
                                                   │
               Σ over ranks: gradients · weights · metrics                  once a step
                                                   │
               gradient / weight ─▶ clip ─▶ AdamW, for each optimizer       skipped where a gradient is not finite
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import PolicyLoss, SeesTrees
from rlinf.core.data import Batch, LossOutput, Rescored, Weights
from rlinf.core.errors import ConfigError, ContractError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.protocols import Loss, Policy
from rlinf.engines.activation_checkpointing import blocks_of, recompute
from rlinf.engines.fsdp import checkpoint
from rlinf.engines.fsdp.added_gradients import AddedGradients
from rlinf.engines.fsdp.masters import MasterWeights
from rlinf.engines.fsdp.rescoring import Scores, on_device
from rlinf.engines.fsdp.trainer import FSDPTrainerConfig
from rlinf.engines.fsdp.trainer_state import TrainerState, check_names
from rlinf.engines.guards.finite import where_not_finite
from rlinf.engines.layout import Layout, Replicated
from rlinf.engines.offload import PARTS
from rlinf.engines.optim.loss_scale import LossScale
from rlinf.engines.optim.optimizer import Optimizers, division, metric_name
from rlinf.engines.packing.rows import MicroBatch, PacksRows, micro_batches_of, pack, shared_tokens
from rlinf.engines.ranks import Ranks, summed_metrics
from rlinf.engines.reference import RescoringTrainer, reference_of
from rlinf.engines.weights.lazy_tensors import Gathered

_LOG: Final = logging.getLogger(__name__)
OutputOf = Callable[[MicroBatch, Batch[Tensor]], LossOutput[Tensor]]
"""The loss of a micro-batch, given that and its batch on the device."""


class FSDPTrainer(RescoringTrainer):
    """Owns a policy's weights and their optimizers; built by `FSDPTrainerConfig`."""

    references = "device, cpu or adapters"

    def __init__(self, config: FSDPTrainerConfig, policy: nn.Module, ranks: Ranks) -> None:
        super().__init__(f"trainer[{ranks.rank}]")
        self.config = config
        self.ranks = ranks
        self.device = self.device_of(policy)
        self._policy = policy
        self._scores = Scores(policy, config.fsdp_config, self.device)
        # All ranks begin with the weights of rank 0, before they are divided.
        for tensor in policy.state_dict().values():
            ranks.broadcast(tensor)
        self._masters = MasterWeights(policy, config.fsdp_config.mixed_precision)
        _check_trees(config, policy)
        self._layout = self._laid_out()
        scales = config.fsdp_config.scales_loss or self._masters.less == torch.float16
        self._optimizers = Optimizers(policy, config.optim, LossScale(enabled=scales))
        self._reference = reference_of(config.reference, policy, self._layout)
        self._saver = checkpoint.Saver(config.checkpoint, policy, self._optimizers, self._layout, ranks)
        self._added = AddedGradients(self._layout)
        self._skip_told = False
        self._set_version(cast("Policy", policy).version)

    def _laid_out(self) -> Layout:
        config = self.config.fsdp_config
        blocks = blocks_of(self._policy, config.wrap_policy)
        if config.gradient_checkpointing:
            recompute(blocks)
        if not config.shards(self.ranks.world_size):
            self._masters.raise_weights(self._policy)
            return Replicated(self.ranks)
        from rlinf.engines.fsdp._sharded import Sharded

        sharded = Sharded(self._scores, blocks, self.ranks, self.device, config, self._masters)
        self._masters.release()
        return sharded

    def _computing(self) -> AbstractContextManager[None]:
        """Inside, passes compute in the types of `mixed_precision`, backward passes too; with shards that is FSDP's affair."""
        return nullcontext() if self.config.fsdp_config.shards(self.ranks.world_size) else self._masters.lowered()

    @staticmethod
    def device_of(policy: object) -> torch.device:
        """Where the policy's weights are.

        Raises:
            ConfigError: it is no module, or has no parameters.
        """
        if not isinstance(policy, nn.Module):
            found = f"expected a torch.nn.Module with parameters, found {type(policy).__name__}"
            raise ConfigError("trainer(policy)", found, "Choose a model that has weights.")
        first = next(policy.parameters(), None)
        if first is None:
            raise ConfigError("trainer(policy)", f"{type(policy).__name__} has no parameters", "Choose a model that has weights.")
        return first.device

    @torch.no_grad()
    def evaluate(self, batch: Batch[Any]) -> Rescored[Tensor]:
        """What the current weights say of past decisions, without a graph; every rank calls it equally often.

        Args:
            batch: NumPy or torch; moved to the weights' device.

        Raises:
            RLinfError: the parameters are offloaded.
        """
        self._offloader.expect_here(["parameters"], by="evaluate")
        parts = self._parts([batch])
        rounds = self._rounds(len(parts), "evaluate(batch)")
        try:
            with self._computing():
                found = [self._evaluated(on_device(part.batch, self.device), part.packing) for part in parts]
                for _ in range(len(parts), rounds):
                    self._evaluated(on_device(parts[-1].batch, self.device), parts[-1].packing)
        finally:
            # No backward pass follows, after which FSDP would give the gathered weights back.
            self._layout.rest()
        return found[0] if len(found) == 1 and parts[0].packing is None else _in_order(parts, found)

    def step(self, micro_batches: Sequence[Batch[Any]], loss: Loss) -> dict[str, Statistic]:
        """One optimizer step; every rank calls it, with at least one micro-batch each.

        The gradient is that of Σ total / Σ weight, both sums over micro-batches and ranks, so that it does not depend on the split.

        Args:
            micro_batches: NumPy or torch; ranks may have different numbers. With `max_tokens_per_mbs` they are parted further.
            loss: what to minimise.

        Returns:
            The loss's metrics over all ranks, and `loss`, `grad_norm` (before the clip), `lr`, and `skipped`: 1 if a
            gradient was not finite, or nothing had weight, and the weights stay as they were. A critic with an optimizer of its own
            has `critic_grad_norm` and `critic_lr`; where something computes in float16 there is `loss_scale`.

        Raises:
            ShapeError: a rank has no micro-batch; raised on every rank.
            RLinfError: something is offloaded.
        """
        return self._step(self._parts(micro_batches), lambda part, batch: loss(batch, self._evaluated(batch, part.packing)))

    def step_policy(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss) -> dict[str, Statistic]:
        return self._step(micro_batches_of(micro_batches, None), lambda _, batch: self._own_loss(batch, loss))

    def add_policy_loss(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss, *, weight: float) -> dict[str, Statistic]:
        """Adds a second loss to what the next step minimises; see `rlinf.core.capabilities.TakesPolicyLoss`.

        Each is divided by its own weight over micro-batches and ranks, so that how either is parted changes nothing. A step that is
        skipped, or fails, forgets it. It takes the memory of one more gradient until then.
        """
        metrics = self._passes(
            micro_batches_of(micro_batches, None), lambda _, batch: self._own_loss(batch, loss), "add_policy_loss"
        )
        metrics, _ = self._over_ranks(metrics, [])
        parameters = self._parameters
        self._layout.collect(parameters)
        self._note_gradients()
        self._added.keep(parameters, weight, cast("Metric", metrics["loss"]).weight)
        return metrics

    @torch.no_grad()
    def measure_policy(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss) -> dict[str, Statistic]:
        self._offloader.expect_here(["parameters"], by="measure_policy")
        rounds = self._rounds(len(micro_batches), "measure_policy(micro_batches)")
        found: list[Mapping[str, Statistic]] = []
        try:
            with self._computing():
                for i in range(rounds):
                    # Where others have more, the last one again, only to keep pace with them.
                    batch = on_device(micro_batches[min(i, len(micro_batches) - 1)], self.device)
                    output = self._own_loss(batch, loss)
                    if i < len(micro_batches):
                        found.append({"loss": Metric(output.total.item(), output.weight.item()), **output.metrics})
        finally:
            self._layout.rest()
        return self._over_ranks(merge(found), [])[0]

    def _own_loss(self, batch: Batch[Tensor], loss: PolicyLoss) -> LossOutput[Tensor]:
        total, weight, metrics = self._scores(batch, loss)
        return LossOutput(total=total, weight=weight, metrics=metrics)

    def _step(self, parts: Sequence[MicroBatch], output_of: OutputOf) -> dict[str, Statistic]:
        """One optimizer step over passes of this rank."""
        metrics = self._passes(parts, output_of, "step")
        parameters = self._parameters
        self._layout.collect(parameters)
        self._added.join(parameters, lambda: cast("Metric", self._over_ranks({"loss": metrics["loss"]}, [])[0]["loss"]).weight)
        self._note_gradients()
        gradients = {part.name: self._layout.gradients(part.parameters) for part in self._optimizers.parts}
        found = self._update(metrics, gradients)
        # Under a scaled loss overflows are usual, and ranks in lockstep can't go through a step by themselves.
        quiet = self._skip_told or self._layout.lockstep or self._optimizers.scale.enabled
        if not quiet and cast("Metric", found["skipped"]).mean and cast("Metric", found["loss"]).weight:
            self._skip_told = True
            where = where_not_finite(self._policy, lambda: [self._backward(part, output_of, last=False) for part in parts])
            _LOG.warning("the first optimizer step that was skipped: %s", where)
            self._optimizers.zero_grad()
        return found

    @property
    def _parameters(self) -> list[nn.Parameter]:
        """What some optimizer changes."""
        return [parameter for part in self._optimizers.parts for parameter in part.parameters]

    def _passes(self, parts: Sequence[MicroBatch], output_of: OutputOf, by: str) -> dict[str, Statistic]:
        """The gradient of all parts of this rank, and their metrics."""
        self._offloader.expect_here(PARTS, by=by)
        try:
            rounds = self._rounds(len(parts), f"{by}(micro_batches)")
            metrics = merge([self._backward(part, output_of, last=i == rounds - 1) for i, part in enumerate(parts)])
            if self.config.share_prefixes:
                metrics = {**metrics, "shared_tokens": merge([shared_tokens(part) for part in parts])["shared_tokens"]}
            for i in range(len(parts), rounds):
                self._backward(parts[-1], output_of, last=i == rounds - 1, idle=True)
        # Half of a gradient must not be left, to which the next step would add.
        except BaseException:
            self._optimizers.zero_grad()
            self._added.drop()
            self._layout.rest()
            raise
        return metrics

    def _update(self, metrics: Mapping[str, Statistic], gradients: Mapping[str, list[Tensor]]) -> dict[str, Statistic]:
        """Divides by the weight of all ranks, clips, and steps."""
        metrics, squares = self._over_ranks(metrics, [self._layout.square_norm(held) for held in gradients.values()])
        weight, clip = cast("Metric", metrics["loss"]).weight, self.config.optim.clip_grad
        scale = self._optimizers.scale
        divided = {name: division(square, weight * scale.factor, clip) for name, square in zip(gradients, squares, strict=True)}
        taken = all(math.isfinite(norm) for _, norm in divided.values())
        rates = self._optimizers.set_learning_rates(self._version)
        if taken:
            self._optimizers.step(gradients, {name: factor for name, (factor, _) in divided.items()}, self._version)
            self._set_version(self._version + 1)
        self._optimizers.zero_grad()
        numbers = {"loss_scale": scale.factor} if scale.enabled else {}
        # Where nothing had weight the step is skipped, too, which says nothing of the scale.
        scale.update(overflow=not taken and weight > 0)
        norms = {metric_name(name, "grad_norm"): norm for name, (_, norm) in divided.items()}
        numbers |= {**norms, **rates, "skipped": float(not taken)}
        return {**metrics, **{name: Metric(number) for name, number in numbers.items()}}

    def _parts(self, batches: Sequence[Batch[Any]]) -> list[MicroBatch]:
        """What is computed in one pass each."""
        return micro_batches_of(batches, self.config.max_tokens_per_mbs, share_prefixes=self.config.share_prefixes)

    def _rounds(self, own: int, place: str) -> int:
        """How many passes this rank makes: its own, or where ranks must keep pace, as many as the busiest."""
        counts = self.ranks.micro_batches(own, place)
        return max(counts) if self._layout.lockstep else own

    def _evaluated(self, batch: Batch[Tensor], packing: PacksRows | None) -> Rescored[Tensor]:
        """What the current weights say of a batch on the device, in the shape of its rows."""
        if packing is None:
            logprob, entropy, value, squares = self._scores(batch)
        else:
            packed = pack(batch, packing)
            logprob, entropy, value, squares = self._scores(packed.batch)
            logprob = packed.unpack_decided(logprob)
            entropy, squares = (None if of is None else packed.unpack_decided(of) for of in (entropy, squares))
            value = None if value is None else packed.unpack(value)
        return Rescored(logprob=logprob, entropy=entropy, value=value, sum_pi_squared=squares, version=self._version)

    def _backward(self, part: MicroBatch, output_of: OutputOf, *, last: bool, idle: bool = False) -> dict[str, Statistic]:
        """Adds the gradient of one micro-batch; an idle pass adds nothing and keeps pace with other ranks."""
        self._layout.begin(last=last)
        moved = on_device(part.batch, self.device)
        with self._computing():
            output = output_of(part, moved)
            if not isinstance(cast("object", output), LossOutput):
                remedy = "Return the sum and what it is to be divided by: LossOutput(total=…, weight=…)."
                raise ContractError("step(loss)", f"expected a LossOutput, found {type(output).__name__}", remedy)
            total = output.total
            # An idle pass goes back as well, because FSDP gathers weights and adds gradients on the way.
            (total * (0.0 if idle else self._optimizers.scale.factor)).backward()  # pyright: ignore[reportUnknownMemberType]
        return {"loss": Metric(output.total.item(), output.weight.item()), **output.metrics}

    def _over_ranks(self, metrics: Mapping[str, Statistic], squares: Sequence[float]) -> tuple[dict[str, Statistic], list[float]]:
        """Metrics and Σ g² of each optimizer over all ranks."""
        if self.ranks.alone:
            return dict(metrics), list(squares)
        return summed_metrics(self.all_reduce, metrics, squares)

    def weights(self) -> Weights[Tensor]:
        """All weights by sorted name, whole, on the CPU, in memory of their own; every rank calls it.

        Each has the type that the policy was built in, whatever that of the weight which the optimizer changes.

        Raises:
            RLinfError: the parameters are offloaded.
        """
        self._offloader.expect_here(["parameters"], by="weights")
        state: dict[str, Tensor] = self._policy.state_dict()
        types = self._masters.published
        return Weights(
            tensors={name: self._layout.whole(state[name].to(types[name])) for name in sorted(state)}, version=self._version
        )

    def lazy_weights(self) -> Weights[Tensor]:
        """As `weights`, put together tensor by tensor on the device; every rank calls it (`rlinf.core.capabilities.LazyWeights`).

        Raises:
            RLinfError: the parameters are offloaded.
        """
        self._offloader.expect_here(["parameters"], by="lazy_weights")
        return Weights(tensors=Gathered(self._policy.state_dict(), self._masters.published), version=self._version)

    def all_reduce(self, value: Tensor) -> Tensor:
        return self.ranks.all_reduce(value)

    def _tensors(self, part: str) -> list[Tensor]:
        parameters = list(self._policy.parameters())
        if part == "parameters":
            kept = () if self._reference is None else self._reference.tensors
            return [*(self._layout.local(tensor) for tensor in (*parameters, *self._policy.buffers())), *kept]
        if part == "gradients":
            return self._layout.gradients(parameters)
        memory = [tensor for parameter in parameters for tensor in self._optimizers.state(parameter).values()]
        return [self._layout.local(tensor) for tensor in memory]

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer and random state below `folder`, which exists; every rank calls it, and all have written after.

        Raises:
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="save")
        self._saver.save(folder, self._version)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote; every rank calls it. The number of ranks may differ.

        Raises:
            CheckpointError: a file is missing or was written for another model; names the first tensor that differs.
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="load")
        self._set_version(self._saver.load(folder))

    def state(self) -> TrainerState:
        """All that training needs to go on, gathered; every rank calls it. See `rlinf.engines.fsdp.resizing`.

        Raises:
            RLinfError: something is offloaded.
        """
        self._offloader.expect_here(PARTS, by="state")
        return TrainerState(version=self._version, tensors=self._saver.whole())

    def restore(self, state: TrainerState) -> None:
        """Goes on from a whole state; every rank calls it.

        Raises:
            ShapeError: it is that of another model.
        """
        expected = {f"model/{name}" for name in self._policy.state_dict()}
        check_names({name for name in state.tensors if name.startswith("model/")}, expected)
        self._saver.take(state.tensors)
        self._set_version(state.version)

    def close(self) -> None:
        """Leaves the other ranks."""
        self.ranks.leave()


def _check_trees(config: FSDPTrainerConfig, policy: object) -> None:
    if config.share_prefixes and not (isinstance(policy, SeesTrees) and policy.sees_trees):
        found = f"attention of this {type(policy).__name__} can't be told which columns belong to which branch"
        raise ConfigError("actor.share_prefixes", found, "Use attention sdpa or eager without windows, or leave it out.")


def _in_order(parts: Sequence[MicroBatch], found: Sequence[Rescored[Tensor]]) -> Rescored[Tensor]:
    """One evaluation of all rows from those of parts."""
    # Sorting a permutation gives its inverse.
    order = torch.tensor([row for part in parts for row in part.rows]).argsort()

    def joined(name: str) -> Any:
        tensors: list[Any] = [getattr(evaluation, name) for evaluation in found]
        return None if tensors[0] is None else torch.cat(tensors)[order.to(tensors[0].device)]

    names = ("logprob", "entropy", "value", "sum_pi_squared")
    return Rescored(**{name: joined(name) for name in names}, version=found[0].version)
