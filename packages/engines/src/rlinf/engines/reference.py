"""The reference policy of a KL penalty: the weights at the start, or the policy without its adapters; and who asks it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import HasAdapters
from rlinf.core.data import Batch, Rescored
from rlinf.core.errors import ConfigError
from rlinf.engines.layout import Layout
from rlinf.engines.offload import Leaving


class Reference(Protocol):
    """Makes a policy its own reference for a while."""

    def active(self) -> AbstractContextManager[None]:
        """Inside, the policy scores as the reference does."""
        ...

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What of it is on the device."""
        ...


class SwappedWeights:
    """This rank's share of the weights at the start, exchanged with the trained ones when the reference is asked.

    Only what can change is kept: parameters that are trained, and buffers.

    Args:
        module: the policy.
        layout: how its weights lie.
        device: whether the copy is beside the weights, or in host memory.
    """

    def __init__(self, module: nn.Module, layout: Layout, *, device: bool) -> None:
        changing = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._own = [layout.local(tensor) for tensor in (*changing, *module.buffers())]
        self._device = device
        self._kept = [own.clone() if device else own.to("cpu", copy=True) for own in self._own]

    @property
    def tensors(self) -> Sequence[Tensor]:
        return self._kept if self._device else []

    @contextmanager
    def active(self) -> Generator[None]:
        """Inside, the weights are those of the start; afterwards they are to the bit what they were."""
        swapped: list[tuple[Tensor, Tensor]] = []
        try:
            for own, kept in zip(self._own, self._kept, strict=True):
                _swap(own, kept)
                swapped.append((own, kept))
            yield
        finally:
            for own, kept in swapped:
                _swap(own, kept)


class AdaptersOff:
    """The policy without its adapters.

    Args:
        policy: must be able to do without them.

    Raises:
        ConfigError: it can't.
    """

    def __init__(self, policy: nn.Module) -> None:
        if not isinstance(policy, HasAdapters):
            problem = f"{type(policy).__name__} has no adapters to turn off"
            raise ConfigError("actor.reference", problem, "Use a model with LoRA, or reference: cpu.")
        self._policy = policy

    @property
    def tensors(self) -> Sequence[Tensor]:
        return []

    def active(self) -> AbstractContextManager[None]:
        """Inside, adapters do nothing."""
        return self._policy.without_adapters()


def reference_of(kind: Literal["none", "device", "cpu", "adapters"], policy: nn.Module, layout: Layout) -> Reference | None:
    """The reference that was configured; its weights are those of now.

    Raises:
        ConfigError: the policy has no adapters to turn off.
    """
    if kind == "none":
        return None
    return AdaptersOff(policy) if kind == "adapters" else SwappedWeights(policy, layout, device=kind == "device")


class RescoringTrainer(Leaving):
    """A trainer of a policy that rescores decisions, with the weights of now or with those of a reference."""

    references: ClassVar[str]
    """What `reference` of its configuration can be beside "none", for messages."""
    _policy: Any
    _reference: Reference | None
    _version: int

    @property
    def version(self) -> int:
        """How many optimizer steps made these weights."""
        return self._version

    def _set_version(self, version: int) -> None:
        self._version = version
        self._policy.version = version

    @abstractmethod
    def evaluate(self, batch: Batch[Any]) -> Rescored[Tensor]:
        """What the current weights say of past decisions, without a graph."""

    def reference(self, batch: Batch[Any]) -> Tensor:
        """What the reference policy says of past decisions, as `Trajectory.logprob`; called by the same ranks as `evaluate`.

        The weights are afterwards what they were.

        Raises:
            ConfigError: no reference was configured.
            RLinfError: the parameters are offloaded.
        """
        if self._reference is None:
            raise ConfigError("actor.reference", "expected a reference policy, found 'none'", f"Set {self.references}.")
        self._offloader.expect_here(["parameters"], by="reference")
        with self._reference.active():
            return self.evaluate(batch).logprob


@torch.no_grad()
def _swap(one: Tensor, other: Tensor) -> None:
    # One tensor at a time, so that only one of them is there three times.
    held = one.clone()
    one.copy_(other)
    other.copy_(held)
