"""`cluster.node_groups`: nodes under a label, with their environment and their hardware.

    node_groups:
      - label: train
        node_ranks: 0-3
        env_configs:
          - node_ranks: 0-1
            env_vars: [{NCCL_DEBUG: WARN}, {GLOO_SOCKET_IFNAME: eth0}]
            python_interpreter_path: /opt/train/bin/python
      - label: arms
        node_ranks: "4,5"
        hardware:
          type: Franka
          configs:
            - {node_rank: 4, robot_ip: 10.0.0.4}
            - {node_rank: 5, robot_ip: 10.0.0.5}

A group's resource is its hardware: `hardware.type`, or `hardware_type`, or the accelerators of its nodes if they have any;
otherwise, and with `ignore_hardware`, it is the node itself. Two groups always exist: `cluster`, all nodes with their
accelerators, and `node`, all nodes as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import ConfigError
from rlinf.scheduler.ranks import read_spans

CLUSTER = "cluster"
NODE = "node"
RESERVED = (CLUSTER, NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment of some nodes of a group."""

    node_ranks: int | str
    """Which nodes of the group; each node at most once in a group."""
    env_vars: tuple[Mapping[str, str | int | float], ...] | Mapping[str, str | int | float] = ()
    """Environment variables of the workers there: a list of sections, or one section."""
    python_interpreter_path: str | None = None
    """The interpreter of the workers there; None is that of the node, with which `ray start` was run."""

    def __post_init__(self) -> None:
        read_spans(self.node_ranks, place="node_ranks")
        names: set[str] = set()
        for name in (name for section in self._sections() for name in section):
            if not name or "=" in name or "\0" in name:
                raise ConfigError("env_vars", f"'{name}' can't be the name of an environment variable")
            if name in names:
                raise ConfigError(f"env_vars.{name}", "given twice", "Give each variable one value.")
            names.add(name)
        if self.python_interpreter_path == "":
            raise ConfigError("python_interpreter_path", "is empty", "Leave it out to take the node's.")

    def variables(self) -> dict[str, str]:
        """All variables, as text."""
        return {name: str(value) for section in self._sections() for name, value in section.items()}

    def _sections(self) -> tuple[Mapping[str, str | int | float], ...]:
        return (self.env_vars,) if isinstance(self.env_vars, Mapping) else self.env_vars


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    """What stands at the nodes of a group, and can't be detected."""

    type: str
    """A name of `rlinf.scheduler.hardware.HARDWARE`, such as "Franka"."""
    configs: tuple[Mapping[str, Any], ...] = ()
    """One section for each piece: `node_rank`, and the fields of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupConfig:
    """Nodes under a label."""

    label: str
    """What `node_group` of a placement names."""
    node_ranks: int | str
    """`3`, `0-3`, `0,2,5-7` or `all`."""
    env_configs: tuple[EnvConfig, ...] = ()
    """The environment of its workers, by node."""
    hardware: HardwareConfig | None = None
    """What stands at its nodes; None if nothing does that can't be detected."""
    hardware_type: str | None = None
    """What a resource of the group is; None takes `hardware.type`, or the accelerators of its nodes, or the nodes."""
    ignore_hardware: bool = False
    """A resource of the group is a node, whatever it has."""

    def __post_init__(self) -> None:
        if self.label in RESERVED:
            raise ConfigError("label", f"'{self.label}' always exists", "Choose another label.")
        # A placement separates labels by commas.
        if not self.label or "," in self.label or self.label != self.label.strip():
            raise ConfigError("label", f"'{self.label}' can't be a label", "Use text without commas and outer spaces.")
        read_spans(self.node_ranks, place="node_ranks")
        if self.hardware is not None and self.hardware_type not in (None, self.hardware.type):
            problem = f"'{self.hardware_type}' is not the '{self.hardware.type}' of hardware.type"
            raise ConfigError("hardware_type", problem, "A group has one type of hardware; make two groups.")
        if self.ignore_hardware and self.hardware_type is not None:
            raise ConfigError("ignore_hardware", f"contradicts hardware_type '{self.hardware_type}'", "Keep one of the two.")
