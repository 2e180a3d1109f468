"""AMD GPUs, by the compute driver's topology in sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlinf.scheduler.hardware.files import read_facts, read_text
from rlinf.scheduler.hardware.node import Device
from rlinf.scheduler.hardware.registry import Accelerator, register_accelerator, visible

_VIDEO_MEMORY = ("1", "2")
"""Heap types of the topology: video memory that the host sees, and that it does not see."""


@register_accelerator("AMD_GPU")
class AmdGpu(Accelerator):
    """AMD GPUs in the order of the topology, which is that of HIP."""

    visible_devices = "HIP_VISIBLE_DEVICES"

    def detect(self, root: Path) -> tuple[Device, ...]:
        folder = root / "sys/class/kfd/kfd/topology/nodes"
        nodes = sorted((node for node in folder.glob("[0-9]*") if node.name.isdigit()), key=lambda node: int(node.name))
        # The topology has CPUs, too, whose `gpu_id` is 0.
        return tuple(_device(root, node) for node in nodes if read_text(node / "gpu_id") not in ("", "0"))

    def select(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> tuple[Device, ...]:
        """See `Accelerator`; `ROCR_VISIBLE_DEVICES` is applied first, and the indices start again after it."""
        below = environ.get("ROCR_VISIBLE_DEVICES")
        if below is not None:
            devices = tuple(replace(device, id="") for device in visible(devices, below.split(",")))
        return super().select(devices, environ)


def _device(root: Path, node: Path) -> Device:
    facts = read_facts(node / "properties")
    banks = [read_facts(bank / "properties") for bank in (node / "mem_banks").glob("[0-9]*")]
    memory = sum(int(bank.get("size_in_bytes", "0")) for bank in banks if bank.get("heap_type") in _VIDEO_MEMORY)
    product = read_text(root / f"sys/class/drm/renderD{facts.get('drm_render_minor', '')}/device/product_name")
    serial = int(facts.get("unique_id", "0"))
    return Device(model=product or read_text(node / "name"), memory=memory or None, uuid=f"GPU-{serial:016x}" if serial else "")
