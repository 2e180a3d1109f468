"""What this machine has, found by public means and without importing a heavy library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rlinf.core.process import own_cores
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.node import Device, Node
from rlinf.scheduler.hardware.registry import ACCELERATORS
from rlinf.scheduler.memory_size import parse_memory
from rlinf.scheduler.virtual import VirtualNode

PLACE = "cluster.virtual_accelerators"
PREFERRED = ("nv_gpu", "amd_gpu", "npu", "intel_gpu")
"""Which accelerators a machine with several kinds is taken to have; others follow by name."""
ROOT = Path("/")


def detect(config: ClusterConfig, *, root: Path = ROOT, environ: Mapping[str, str] | None = None) -> Node:
    """This machine as node 0, as the configuration wants it seen.

    Args:
        config: with `virtual_accelerators`, nothing is looked for.
        root: where /proc, /sys and /dev are; a made-up tree in a test.
        environ: the environment variables; None takes the process's own.
    """
    if config.virtual_accelerators is not None:
        return virtual_nodes(config)[0]
    kind, devices = find_accelerators(root, os.environ if environ is None else environ)
    return Node(cores=own_cores(), accelerators=len(devices), virtual=False, accelerator_type=kind, devices=devices)


def find_accelerators(root: Path, environ: Mapping[str, str]) -> tuple[str, tuple[Device, ...]]:
    """The first kind of accelerator that this process may use, and its devices; "" and nothing if there is none."""
    names = ACCELERATORS.names()
    for name in (*PREFERRED, *(name for name in names if name not in PREFERRED)):
        accelerator = ACCELERATORS.get(name)()
        devices = accelerator.select(accelerator.detect(root), environ)
        if devices:
            return name.upper(), devices
    return "", ()


def virtual_nodes(config: ClusterConfig) -> tuple[Node, ...]:
    """The nodes that `virtual_accelerators` describes, `num_nodes` of them.

    Raises:
        ConfigError: the section names a node that is not there, or names one twice.
    """
    virtual = config.virtual_accelerators
    described = virtual.on_nodes(max(1, config.num_nodes), place=PLACE) if virtual is not None else ()
    kind = virtual.type if virtual is not None else ""
    return tuple(_virtual(rank, node, kind) for rank, node in enumerate(described))


def _virtual(rank: int, node: VirtualNode, kind: str) -> Node:
    memory = parse_memory(node.memory) if node.memory is not None else None
    count = node.count or 0
    return Node(
        rank=rank,
        cores=node.cores or own_cores(),
        accelerators=count,
        virtual=True,
        accelerator_type=kind,
        devices=(Device(model=node.model or "", memory=memory),) * count,
    )
