"""Ascend NPUs, by their device files."""

from __future__ import annotations

import re
from pathlib import Path

from rlinf.scheduler.hardware.node import Device
from rlinf.scheduler.hardware.registry import Accelerator, register_accelerator

# Not `davinci_manager`, which is no device.
_FILE = re.compile(r"davinci([0-9]+)")


@register_accelerator("NPU")
class AscendNpu(Accelerator):
    """Ascend NPUs in the order of their device files, whose numbers they keep as UUIDs: a container may have some of them only."""

    visible_devices = "ASCEND_RT_VISIBLE_DEVICES"

    def detect(self, root: Path) -> tuple[Device, ...]:
        matches = (_FILE.fullmatch(path.name) for path in (root / "dev").glob("davinci*"))
        numbers = sorted(int(match[1]) for match in matches if match is not None)
        return tuple(Device(model="Ascend NPU", uuid=f"davinci{number}") for number in numbers)
