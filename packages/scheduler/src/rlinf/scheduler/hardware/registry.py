"""Which kinds of hardware there are: accelerators that are detected, and what a configuration says stands at a node.

A kind of another project is registered by a decorator, or by an entry point of an installed package:

    @register_accelerator("TPU")
    class Tpu(Accelerator):
        visible_devices = "TPU_VISIBLE_CHIPS"

        def detect(self, root):
            return tuple(Device(model="TPU") for _ in root.glob("dev/accel[0-9]*"))

    @register_hardware("Gripper")
    @dataclass(frozen=True, kw_only=True)
    class Gripper:
        node_rank: int
        port: str = field(metadata=UNIQUE)  # no two grippers have the same
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

from rlinf.core.registry import Registry
from rlinf.scheduler.hardware.node import Device


class Accelerator(ABC):
    """One kind of accelerator: how to find it, and how a process is told which ones are its own."""

    visible_devices: ClassVar[str]
    """The environment variable that restricts a process to some devices."""

    @abstractmethod
    def detect(self, root: Path) -> tuple[Device, ...]:
        """The devices of this machine in the order of their indices.

        Only public means: files below /proc, /sys and /dev, and the vendor's command-line tools; never a heavy library.

        Args:
            root: "/", or a made-up tree in a test.
        """
        ...

    def environment(self, ids: Sequence[str]) -> dict[str, str]:
        """The variables of a process that may use the devices of these ids only."""
        return {self.visible_devices: ",".join(ids)}

    def select(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> tuple[Device, ...]:
        """Those devices that this process itself may use, each with the id that names it to a child."""
        named = tuple(device if device.id else replace(device, id=str(index)) for index, device in enumerate(devices))
        value = environ.get(self.visible_devices)
        return named if value is None else visible(named, value.split(","))


def visible(devices: tuple[Device, ...], names: Sequence[str]) -> tuple[Device, ...]:
    """The devices that a list names by index or by the start of a UUID; the first name of no device ends it, as in the drivers.

    A name with letters that fits no known UUID is kept as it is: it may be a part of a device (`MIG-…`), and its user knows.
    """
    chosen: list[Device] = []
    for name in (name.strip() for name in names):
        if name.isascii() and name.isdigit():
            # No machine has so many devices, and `int` raises for thousands of digits.
            found = list(devices[int(name[:9]) : int(name[:9]) + 1])
        else:
            found = [device for device in devices if device.uuid.startswith(name)] if name[:1].isalpha() else []
            found = found or ([Device(id=name, uuid=name)] if name[:1].isalpha() and devices else [])
        if len(found) != 1 or found[0] in chosen:
            break
        chosen.append(found[0])
    return tuple(chosen)


ACCELERATORS: Registry[type[Accelerator]] = Registry("accelerator", "rlinf.accelerators")
HARDWARE: Registry[type[Any]] = Registry("hardware", "rlinf.hardware")
"""Dataclasses with a field `node_rank`: what `node_groups[i].hardware.configs` is read into."""

UNIQUE = {"unique": True}
"""The metadata of a field that no two pieces of a kind have in common, such as an address."""


def identity(piece: Any) -> tuple[object, ...]:
    """What tells a piece of hardware from all others: its unique fields, or else all of them."""
    every = fields(piece)
    unique = [field for field in every if field.metadata.get("unique")]
    return tuple(repr(getattr(piece, field.name)) for field in unique or every)


register_accelerator = ACCELERATORS.register
register_hardware = HARDWARE.register
