"""The parameters of a part as vectors: one call of a kernel for all, as one for each takes longer than what it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.engines.optim.config import OptimConfig
from rlinf.engines.optim.optimizer import Part, adamw_groups, decays


@dataclass(frozen=True, slots=True)
class Vector:
    """Parameters of one type that decay alike; their memory is that of one vector."""

    parameters: tuple[nn.Parameter, ...]
    """Each is a view of `whole`."""
    whole: nn.Parameter
    """`[n]`, all numbers in the order of the parameters."""

    def parts(self, whole: Tensor) -> Iterator[Tensor]:
        """What of a vector `[n]` belongs to each parameter, in its shape; views."""
        sizes = [parameter.numel() for parameter in self.parameters]
        split: Sequence[Tensor] = torch.split(whole, sizes)
        for part, parameter in zip(split, self.parameters, strict=True):
            yield part.view(parameter.shape)

    def gradient(self, found: Sequence[Tensor | None]) -> Tensor:
        """`[n]`, of one gradient for each parameter; None is 0."""
        pairs = zip(found, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(of) if one is None else one).reshape(-1) for one, of in pairs])


@dataclass(frozen=True, slots=True)
class VectorPart:
    """One part of a policy, or a free parameter: what is trained, as vectors, and its optimizer."""

    part: Part
    """Its optimizer trains the vectors."""
    vectors: tuple[Vector, ...]
    parameters: tuple[nn.Parameter, ...]
    """Of all vectors, in their order."""

    @classmethod
    def of(cls, name: str, parameters: Sequence[nn.Parameter], lr: float, config: OptimConfig) -> VectorPart:
        """Moves parameters into vectors, and makes the optimizer of these."""
        groups = list[tuple[list[nn.Parameter], float]]()
        vectors = list[Vector]()
        for held, decay in decays(parameters, config):
            joined = [join(alike) for alike in _alike(held)]
            vectors += joined
            groups.append(([vector.whole for vector in joined], decay))
        ordered = tuple(parameter for vector in vectors for parameter in vector.parameters)
        return cls(Part(name, adamw_groups(groups, lr, config), lr, 0), tuple(vectors), ordered)

    def gradients(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradient of each vector, of one for each of `parameters`."""
        vectors, begin = list[Tensor](), 0
        for vector in self.vectors:
            end = begin + len(vector.parameters)
            vectors.append(vector.gradient(found[begin:end]))
            begin = end
        return vectors

    @property
    def name(self) -> str:
        """Of the part."""
        return self.part.name

    @property
    def lr(self) -> float:
        """The learning rate before the schedule."""
        return self.part.lr

    def step(self, gradients: Sequence[Tensor], lr: float) -> None:
        """One step of the optimizer at a learning rate."""
        optimizer = self.part.optimizer
        given = {vector.whole: gradient for vector, gradient in zip(self.vectors, gradients, strict=True)}
        for group in optimizer.param_groups:
            group["lr"] = lr
        if optimizer.state:
            for group in optimizer.param_groups:
                _adamw(group, [optimizer.state[whole] for whole in group["params"]], [given[whole] for whole in group["params"]])
            return
        # The first step makes what the optimizer remembers.
        for whole, gradient in given.items():
            whole.grad = gradient
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        for whole in given:
            whole.grad = None

    def memory(self) -> dict[str, Tensor]:
        """What the optimizer remembers: `<number of the parameter>/<key>`."""
        found, number = dict[str, Tensor](), 0
        for vector in self.vectors:
            kept = cast("Mapping[str, Tensor]", self.part.optimizer.state.get(vector.whole, {}))
            for key, tensor in kept.items():
                # A count of steps is one number for all.
                each = vector.parts(tensor) if tensor.dim() else (tensor for _ in vector.parameters)
                found |= {f"{number + index}/{key}": part for index, part in enumerate(each)}
            number += len(vector.parameters)
        return found

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Restores what `memory` gave; nothing, if that was before the first step."""
        self.part.optimizer.state.clear()
        number = 0
        for vector in self.vectors:
            keys = [path.partition("/")[2] for path in memory if path.startswith(f"{number}/")]
            numbers = range(number, number + len(vector.parameters))
            for key in keys:
                each = [memory[f"{one}/{key}"] for one in numbers]
                whole = torch.cat([one.reshape(-1) for one in each]) if key != "step" else each[0].clone()
                self.part.optimizer.state[vector.whole][key] = whole.to(vector.whole.device)
            number += len(vector.parameters)


@torch.no_grad()
def _adamw(group: Mapping[str, Any], state: Sequence[dict[str, Tensor]], gradients: Sequence[Tensor]) -> None:
    """What `torch.optim.AdamW(fused=True)` does in a step, to the bit, without what finds out each time that it is to do that.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), alg. 2, arXiv:1711.05101.
    """
    for kept, gradient, whole in zip(state, gradients, group["params"], strict=True):
        kept["step"] += 1
        torch._fused_adamw_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            [whole],
            [gradient],
            [kept["exp_avg"]],
            [kept["exp_avg_sq"]],
            [],
            [kept["step"]],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def join(parameters: Sequence[nn.Parameter]) -> Vector:
    """Moves parameters of one type, on one device, into a vector; they stay the parameters of their module."""
    with torch.no_grad():
        whole = nn.Parameter(torch.cat([parameter.reshape(-1) for parameter in parameters]), requires_grad=False)
        vector = Vector(tuple(parameters), whole)
        for parameter, part in zip(parameters, vector.parts(whole.data), strict=True):
            parameter.data = part
    return vector


def _alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Those of one type and device together, in the order in which they come."""
    found = dict[tuple[torch.dtype, torch.device], list[nn.Parameter]]()
    for parameter in parameters:
        found.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(found.values())
