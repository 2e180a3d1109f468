"""`Node`: what one machine has to place workers on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlinf.core.errors import ConfigError
from rlinf.scheduler.virtual import VIRTUAL

ACCELERATOR = "Accelerator"
"""The hardware type that stands for the accelerators of a node, whatever they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One piece of hardware: an accelerator, or a robot."""

    model: str = ""
    """What its maker calls it; "" if nobody knows."""
    memory: int | None = None
    """Its memory in bytes; None if it has none, or nobody knows."""
    id: str = ""
    """How the driver's visible-devices variable names it; "" is its index on the node."""
    uuid: str = ""
    """Its name in the world; "" if nobody knows."""
    config: object = None
    """What the configuration says of it, read and checked; None for what was detected."""


_UNKNOWN = Device()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    cores: int
    """CPU cores that workers may use."""
    accelerators: int
    """How many devices can be named in a placement; 0 places on the node itself."""
    virtual: bool
    """The accelerators stand for CPU cores."""
    rank: int = 0
    """Its number in the cluster."""
    accelerator_type: str = ""
    """`NV_GPU`, `AMD_GPU`, …; "" is `VIRTUAL`, or unknown."""
    devices: tuple[Device, ...] = ()
    """The accelerators in the order of their indices; empty if nothing is known but how many they are."""
    hardware: Mapping[str, tuple[Device, ...]] = field(default_factory=dict[str, tuple[Device, ...]])
    """Type → what else stands here, such as robots."""

    def __post_init__(self) -> None:
        if self.devices and len(self.devices) != self.accelerators:
            raise ConfigError(f"node {self.rank}", f"{self.accelerators} accelerators, but {len(self.devices)} described")
        if self.virtual and not self.accelerator_type:
            object.__setattr__(self, "accelerator_type", VIRTUAL)

    def count(self, hardware_type: str) -> int:
        """How many of a hardware type it has."""
        if hardware_type in (ACCELERATOR, self.accelerator_type):
            return self.accelerators
        return len(self.hardware.get(hardware_type, ()))

    def device(self, hardware_type: str, index: int) -> Device:
        """One piece of hardware."""
        if hardware_type in (ACCELERATOR, self.accelerator_type):
            return self.devices[index] if self.devices else _UNKNOWN
        return self.hardware[hardware_type][index]

    @property
    def types(self) -> tuple[str, ...]:
        """The hardware types that it has."""
        own = (self.accelerator_type or ACCELERATOR,) if self.accelerators else ()
        return (*own, *(name for name, devices in self.hardware.items() if devices))

    def describe(self) -> str:
        """One line for a person."""
        return describe_nodes((self,))


NOUNS = {
    VIRTUAL: "virtual accelerator",
    "NV_GPU": "NVIDIA GPU",
    "AMD_GPU": "AMD GPU",
    "NPU": "Ascend NPU",
    "INTEL_GPU": "Intel GPU",
}


def describe_nodes(nodes: tuple[Node, ...]) -> str:
    """What some nodes have together, in one line: `2 nodes with 16 CPU cores and 8 NVIDIA GPUs (0-7)`."""
    head = f"{several(len(nodes), 'node')} with {several(sum(node.cores for node in nodes), 'CPU core')}"
    others: dict[str, int] = {}
    for node in nodes:
        for name, devices in node.hardware.items():
            others[name] = others.get(name, 0) + len(devices)
    parts = [_accelerators(nodes), *(f"{count} {name}" for name, count in others.items())]
    return f"{head} and {', '.join(parts)}"


def _accelerators(nodes: tuple[Node, ...]) -> str:
    """`8 NVIDIA GPUs (0-7)`."""
    having = [node for node in nodes if node.accelerators]
    if not having:
        return "no accelerator"
    count = sum(node.accelerators for node in having)
    # Virtual ones may pass for another type, such as NV_GPU.
    kinds = {VIRTUAL if node.virtual else node.accelerator_type for node in having}
    noun = NOUNS.get(kinds.pop(), "accelerator") if len(kinds) == 1 else "accelerator"
    return f"{several(count, noun)} ({f'0-{count - 1}' if count > 1 else '0'})"


def several(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
