"""NVIDIA GPUs, by `nvidia-smi`; without it, by what the driver lists in /proc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlinf.scheduler.hardware.node import Device
from rlinf.scheduler.hardware.registry import Accelerator, register_accelerator

PATIENCE_S = 20.0
# The name comes last, as it may have a comma.
_QUERY = ["--query-gpu=uuid,memory.total,name", "--format=csv,noheader,nounits"]
_MIB = 2**20


@register_accelerator("NV_GPU")
class NvidiaGpu(Accelerator):
    """NVIDIA GPUs in the order of their PCI addresses."""

    visible_devices = "CUDA_VISIBLE_DEVICES"

    def detect(self, root: Path) -> tuple[Device, ...]:
        driver = root / "proc/driver/nvidia/gpus"
        folders = sorted(driver.iterdir()) if driver.is_dir() else []
        # A look at files first: without a driver no program is run.
        if not folders and not (root / "dev/nvidiactl").exists():
            return ()
        return _ask(root) or tuple(_read(folder) for folder in folders)

    def environment(self, ids: Sequence[str]) -> dict[str, str]:
        """See `Accelerator`; in the order of PCI addresses, which is that of `nvidia-smi`."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", self.visible_devices: ",".join(ids)}


def _ask(root: Path) -> tuple[Device, ...]:
    """What `nvidia-smi` says; nothing if it is not there or does not answer."""
    places = ":".join(str(root / folder) for folder in ("usr/bin", "usr/local/bin", "bin", "usr/local/nvidia/bin"))
    program = shutil.which("nvidia-smi", path=places) or (shutil.which("nvidia-smi") if root == Path("/") else None)
    if program is None:
        return ()
    try:
        done = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=PATIENCE_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_row(line) for line in done.stdout.splitlines() if line.count(",") >= 2)


def _row(line: str) -> Device:
    uuid, memory, model = (piece.strip() for piece in line.split(",", 2))
    return Device(model=model, memory=int(memory) * _MIB if memory.isdigit() else None, uuid=uuid)


def _read(folder: Path) -> Device:
    """One GPU of /proc/driver/nvidia/gpus; its folder may be empty in a container."""
    try:
        lines = (folder / "information").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Device()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return Device(model=facts.get("Model", ""), uuid=facts.get("GPU UUID", ""))
