"""The trainer of off-policy algorithms on torch: weights are whole on every rank.

transitions ─▶ loss of the first part that is due ─▶ its gradients, summed over ranks ─▶ / weight ─▶ clip ─▶ AdamW
            ─▶ loss of the next part, on the weights that this made ─▶ …
            ─▶ target weights move
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf.core.data import ArraySpec, Weights
from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.core.metrics import Metric, Statistic, merge
from rlinf.core.off_policy import Learner, Objective
from rlinf.core.protocols import Policy
from rlinf.core.random import keyed_seed
from rlinf.core.replay import Transitions
from rlinf.engines.fsdp.checkpoint import MODEL, read_tensors, write_tensors
from rlinf.engines.off_policy._vectors import VectorPart, join
from rlinf.engines.optim.config import OptimConfig
from rlinf.engines.optim.optimizer import division
from rlinf.engines.ranks import Ranks, summed_metrics
from rlinf.engines.weights.manifest import Manifest

STATE = "off_policy.safetensors"


class TorchOffPolicyTrainer:
    """Owns a policy's weights, target weights, free parameters and the optimizer of each part.

    Args:
        optim: of all optimizers; those of the parts `critic` and `value` have `value_lr`, if it is set.
        policy: rank 0's weights win.
        objective: what is learned.
        action: one control step.
        ranks: who trains together.
        seed: of what losses draw.

    Raises:
        ConfigError: a part trains nothing, or a parameter belongs to two.
    """

    def __init__(
        self, optim: OptimConfig, policy: nn.Module, objective: Objective, action: ArraySpec, ranks: Ranks, *, seed: int
    ) -> None:
        self._optim, self._objective, self._ranks, self._seed = optim, objective, ranks, seed
        self._policy = policy
        for tensor in policy.state_dict().values():
            ranks.broadcast(tensor)
        # Both have frozen weights in the same memory: a steered model may be as large as the device.
        frozen = {name: parameter for name, parameter in policy.named_parameters() if not parameter.requires_grad}
        self._target = copy.deepcopy(policy, {id(parameter): parameter for parameter in frozen.values()}).requires_grad_(False)
        self._device = next(policy.parameters()).device
        free = objective.parameters()
        self._free = {name: nn.Parameter(torch.tensor(value, device=self._device)) for name, value in free.items()}
        self._learner = Learner(policy=policy, target=self._target, parameters=self._free, action=action)
        self._parts = self._made_parts()
        # The memory that the modules train and move: to ask for it in each update takes longer than to move it.
        self._target_state: dict[str, Tensor]
        self._moving = self._joined_targets(frozen)
        self._td_errors: list[Tensor] = []
        self._version = 0
        cast("Policy", policy).version = 0

    @property
    def version(self) -> int:
        """How many updates made these weights."""
        return self._version

    @property
    def td_error(self) -> NDArray[np.float32] | None:
        """`[B]`, |δ| of each of this rank's rows in the last update, of its first part that compares values; None without one."""
        return torch.cat(self._td_errors).float().cpu().numpy() if self._td_errors else None

    def update(self, micro_batches: Sequence[Transitions[Any]]) -> dict[str, Statistic]:
        """One update; every rank calls it, with at least one micro-batch each.

        The gradient of a part is that of Σ total / Σ weight, both sums over micro-batches and ranks, so that it does not depend on
        the split, but for what the loss draws.

        Returns:
            The metrics of the losses over all ranks; of each part `<part>_grad_norm` before the clip; and `skipped`: 1 if a
            gradient was not finite, and the weights of that part stayed as they were.

        Raises:
            ShapeError: there is no micro-batch.
        """
        if not micro_batches:
            raise ShapeError("update(micro_batches)", "expected at least one, found none", "Draw a larger batch.")
        moved = [batch.map(self._here) for batch in micro_batches]
        number = self._version + 1
        found: list[Mapping[str, Statistic]] = []
        skipped = False
        self._td_errors = []
        self._learner.shared.clear()
        for name in self._objective.due(number):
            metrics, taken = self._step(self._parts[name], moved, number)
            found.append(metrics)
            skipped |= not taken
        self._move_target(number)
        self._set_version(number)
        return {**merge(found), "skipped": Metric(float(skipped))}

    def weights(self) -> Weights[Tensor]:
        """All weights of the policy by sorted name, on the CPU, in memory of their own."""
        state: dict[str, Tensor] = self._policy.state_dict()
        return Weights(tensors={name: state[name].detach().cpu().clone() for name in sorted(state)}, version=self._version)

    def lazy_weights(self) -> Weights[Tensor]:
        """As `weights`, but the tensors that are trained, where they are: to be sent, not to be kept."""
        state: dict[str, Tensor] = self._policy.state_dict()
        return Weights(tensors={name: state[name].detach() for name in sorted(state)}, version=self._version)

    def save(self, folder: Path) -> None:
        """Writes the policy as `model.safetensors`, and all else as `off_policy.safetensors`; every rank calls it.

        Raises:
            CheckpointError: the disk is full, or the system refuses to write.
        """
        if self._ranks.rank == 0:
            label = {"version": str(self._version)}
            write_tensors(folder / MODEL, self.weights().tensors, {**label, "format": "pt"})
            held = {name: tensor.detach().cpu().clone() for name, tensor in self._state().items()}
            write_tensors(folder / STATE, held, label)
        self._ranks.barrier()

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Restores what `save` wrote.

        Raises:
            CheckpointError: a file is missing or damaged, or was written for another model or algorithm.
        """
        tensors, version = read_tensors(folder / MODEL)
        state, found = read_tensors(folder / STATE)
        own: dict[str, Tensor] = self._policy.state_dict()
        memory = {name: tensor for name, tensor in state.items() if name.startswith("optimizer/")}
        expected = {name: tensor for name, tensor in self._state().items() if not name.startswith("optimizer/")}
        kept = {name: tensor for name, tensor in state.items() if name not in memory}
        for file, wanted, given in ((MODEL, own, tensors), (STATE, expected, kept)):
            difference = Manifest.of(wanted).difference(Manifest.of(given))
            if difference:
                raise CheckpointError(str(folder / file), f"made for another model or algorithm: {difference}", "Use that one.")
        if found != version:
            raise CheckpointError(str(folder / STATE), f"expected version {version}, found {found}", "Use another checkpoint.")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        for name, tensor in expected.items():
            tensor.copy_(kept[name])
        self._remember(memory)
        self._set_version(version)

    def close(self) -> None:
        """Leaves the other ranks."""
        self._ranks.leave()

    def _made_parts(self) -> dict[str, VectorPart]:
        named = dict(self._policy.named_parameters())
        trained = {part: [named[name] for name in names] for part, names in self._objective.trained(self._policy).items()}
        trained |= {name: [parameter] for name, parameter in self._free.items()}
        held = [id(parameter) for parameters in trained.values() for parameter in parameters]
        empty = [part for part, parameters in trained.items() if not parameters]
        if empty or len(set(held)) < len(held):
            problem = f"the part '{empty[0]}' trains nothing" if empty else "a parameter belongs to two parts"
            raise ConfigError("algorithm.loss_type", f"{problem} of {type(self._policy).__name__}", "Choose another model.")
        rates: dict[str, float] = dict.fromkeys(("critic", "value"), self._optim.value_lr or self._optim.lr)
        return {
            part: VectorPart.of(part, parameters, rates.get(part, self._optim.lr), self._optim)
            for part, parameters in trained.items()
        }

    def _joined_targets(self, frozen: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Target weights and weights that move, by name: vectors of the parts, and whatever no part trains, such as statistics."""
        names = {id(parameter): name for name, parameter in self._policy.named_parameters()}
        copies = dict(self._target.named_parameters())
        moving = dict[str, tuple[Tensor, Tensor]]()
        for part in self._parts.values():
            for index, vector in enumerate(part.vectors):
                if all(id(parameter) in names for parameter in vector.parameters):
                    copied = join([copies[names[id(parameter)]] for parameter in vector.parameters])
                    moving[f"{part.name}/{index}"] = copied.whole.data, vector.whole.data
        # Joined parameters have other memory than before.
        self._target_state = {name: tensor for name, tensor in self._target.state_dict().items() if name not in frozen}
        within = {target.untyped_storage().data_ptr() for target, _ in moving.values()}
        own: dict[str, Tensor] = self._policy.state_dict()
        rest = {name: at for name, at in self._target_state.items() if at.untyped_storage().data_ptr() not in within}
        return moving | {name: (target, own[name]) for name, target in rest.items()}

    def _step(self, part: VectorPart, batches: Sequence[Transitions[Tensor]], number: int) -> tuple[dict[str, Statistic], bool]:
        """One step of one part; its metrics, and whether its gradient was finite."""
        # Keyed, so that what is drawn needs no state in a checkpoint; ranks differ, as their transitions do.
        seed = keyed_seed(self._seed, f"update {part.name}", self._ranks.rank, number)
        generator = torch.Generator(self._device).manual_seed(seed)
        total: list[Tensor] = []
        weight, metrics, errors = 0.0, list[Mapping[str, Statistic]](), list[Tensor]()
        for batch in batches:
            output = self._objective.loss(part.name, self._learner, batch, generator=generator)
            # Of this part alone: what else the loss goes through, such as critics on the actor's way, keeps its gradients.
            found = part.gradients(torch.autograd.grad(output.total, part.parameters, allow_unused=True))
            total = found if not total else [into.add_(gradient) for into, gradient in zip(total, found, strict=True)]
            weight += output.weight.item()
            metrics.append(output.metrics)
            if output.td_error is not None:
                errors.append(output.td_error)
        self._td_errors = self._td_errors or errors
        summed, weight, observed = self._over_ranks(total, weight, merge(metrics))
        # torch's function for several takes six times as long for one, with the same result.
        alone = len(summed) == 1
        whole = torch.linalg.vector_norm(summed[0]) if alone else nn.utils.get_total_norm(summed)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        square = cast("Tensor", whole).item() ** 2
        factor, norm = division(square, weight, self._optim.clip_grad)
        taken = math.isfinite(norm)
        if taken:
            part.step([gradient.mul_(factor) for gradient in summed], part.lr * self._optim.factor(number - 1))
        return {**observed, f"{part.name}_grad_norm": Metric(norm)}, taken

    def _over_ranks(
        self, gradients: list[Tensor], weight: float, metrics: Mapping[str, Statistic]
    ) -> tuple[list[Tensor], float, Mapping[str, Statistic]]:
        """The sums over ranks of gradients, of the weight and of metrics."""
        if self._ranks.alone:
            return gradients, weight, metrics
        summed = [self._ranks.all_reduce(gradient) for gradient in gradients]
        observed, (total,) = summed_metrics(self._ranks.all_reduce, metrics, [weight])
        return summed, total, observed

    @torch.no_grad()
    def _move_target(self, number: int) -> None:
        targets = {name: target for name, (target, _) in self._moving.items()}
        online = {name: weights for name, (_, weights) in self._moving.items()}
        for name, tensor in (self._objective.moved(targets, online, number) or {}).items():
            targets[name].copy_(tensor)

    def _state(self) -> dict[str, Tensor]:
        """All that a checkpoint has beside the policy, as it lies: target weights, free parameters, what optimizers remember."""
        state = {f"target/{name}": tensor for name, tensor in self._target_state.items()}
        state |= {f"free/{name}": parameter.data for name, parameter in self._free.items()}
        for name, part in self._parts.items():
            state |= {f"optimizer/{name}/{path}": tensor for path, tensor in part.memory().items()}
        return state

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        for name, part in self._parts.items():
            prefix = f"optimizer/{name}/"
            part.remember({path.removeprefix(prefix): kept for path, kept in memory.items() if path.startswith(prefix)})

    def _here(self, leaf: Any) -> Tensor:
        return torch.as_tensor(leaf, device=self._device)

    def _set_version(self, version: int) -> None:
        self._version = version
        cast("Policy", self._policy).version = version
