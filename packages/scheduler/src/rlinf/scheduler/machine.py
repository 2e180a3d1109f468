"""`look_around`: what the machine that runs it says of itself."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from rlinf.core.process import own_cores
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.detection import detect
from rlinf.scheduler.hardware.files import read_text
from rlinf.scheduler.hardware.node import Node
from rlinf.scheduler.hardware.registry import ACCELERATORS
from rlinf.scheduler.membership import Machine, NodeInfo

LOOPBACK = "127.0.0.1"
# Of linux/sockios.h; Python has no name for it.
_SIOCGIFADDR = 0x8915


def look_around(config: ClusterConfig, ip: str, environment: Mapping[str, str] | None = None) -> Machine:
    """This machine.

    Args:
        config: with `virtual_accelerators`, no hardware is looked for.
        ip: its address in the cluster.
        environment: that in which the cluster was started here; None takes the process's own.
    """
    inherited = dict(os.environ) if environment is None else dict(environment)
    return Machine(
        hostname=platform.node(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        interpreter=sys.executable,
        environment=inherited,
        interface=interface_of(ip),
        node=_own_node(config, inherited),
    )


def this_node(config: ClusterConfig, rank: int = 0) -> NodeInfo:
    """This machine as a node of a cluster that no other machine has a part in."""
    return informed(rank, LOOPBACK, look_around(config, LOOPBACK))


def informed(rank: int, ip: str, machine: Machine, *, cores: int = 0, ray_id: str = "", ray_port: int = 0) -> NodeInfo:
    """A machine as a node; `cores` of 0 are those that it has."""
    return NodeInfo(
        node_rank=rank,
        node_ip=ip,
        hostname=machine.hostname,
        num_cpus=cores or machine.node.cores,
        memory=machine.memory,
        python_interpreter_path=machine.interpreter,
        default_env_vars=machine.environment,
        hardware=machine.node,
        ray_id=ray_id,
        ray_port=ray_port,
        interface=machine.interface,
    )


def _own_node(config: ClusterConfig, environment: Mapping[str, str]) -> Node:
    if config.virtual_accelerators is not None:
        return Node(cores=own_cores(), accelerators=0, virtual=False)
    return detect(config, environ=environment)


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment in which a process was started; None if it can't be read."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def name_of(pid: int) -> str:
    """What the kernel calls a process; "" if it is gone."""
    return read_text(Path(f"/proc/{pid}/comm"))


def unhidden(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Ray has hidden all devices from a task, without that."""
    hiding = {ACCELERATORS.get(name).visible_devices for name in ACCELERATORS.names()}
    return {name: value for name, value in environment.items() if value or name not in hiding}


def interface_of(ip: str) -> str:
    """The network interface that has an address; "" if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                # The kernel has room for 15 bytes of a name and a null byte.
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            # A `struct ifreq`: 16 bytes of name, then family and port in 4 bytes, then the address.
            if socket.inet_ntoa(found[20:24]) == ip:
                return name
    return ""
