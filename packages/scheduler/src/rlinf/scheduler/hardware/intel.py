"""Intel GPUs with a memory of their own, by sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf.scheduler.hardware.files import read_text
from rlinf.scheduler.hardware.node import Device
from rlinf.scheduler.hardware.registry import Accelerator, register_accelerator, visible

_VENDOR = "0x8086"
_PCI = re.compile(r"[0-9a-f]{4,}:([0-9a-f]{2}):[0-9a-f]{2}\.[0-9a-f]")
_BACK_END = "level_zero:"


@register_accelerator("INTEL_GPU")
class IntelGpu(Accelerator):
    """Intel GPUs in the order of their PCI addresses; those built into a CPU (on bus 0) are not accelerators here."""

    visible_devices = "ONEAPI_DEVICE_SELECTOR"

    def detect(self, root: Path) -> tuple[Device, ...]:
        found: dict[str, Device] = {}
        for card in sorted((root / "sys/class/drm").glob("renderD[0-9]*")):
            folder = (card / "device").resolve()
            address = _PCI.fullmatch(folder.name)
            if address is not None and address[1] != "00" and read_text(folder / "vendor") == _VENDOR:
                found[folder.name] = Device(model=_model(folder), memory=_memory(folder))
        return tuple(found[address] for address in sorted(found))

    def environment(self, ids: Sequence[str]) -> dict[str, str]:
        return {self.visible_devices: _BACK_END + ",".join(ids)}

    def select(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> tuple[Device, ...]:
        """See `Accelerator`; of the selector's language only `level_zero:` with a list of numbers restricts what we use."""
        named = super().select(devices, {})
        names = environ.get(self.visible_devices, "").removeprefix(_BACK_END)
        return visible(named, names.split(",")) if re.fullmatch(r"[0-9]+(,[0-9]+)*", names) else named


def _model(folder: Path) -> str:
    return read_text(folder / "label") or f"Intel GPU {read_text(folder / 'device')}".strip()


def _memory(folder: Path) -> int | None:
    for file in sorted(folder.glob("drm/card*/lmem_total_bytes")):
        text = read_text(file)
        return int(text) if text.isascii() and text.isdigit() else None
    return None
