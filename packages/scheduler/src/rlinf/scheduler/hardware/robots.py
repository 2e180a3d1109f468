"""Robots as hardware: what a configuration says stands at a node, so that a component can be placed on it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Literal

from rlinf.core.errors import ConfigError
from rlinf.scheduler.hardware.registry import UNIQUE, register_hardware


@register_hardware("Franka")
@dataclass(frozen=True, slots=True, kw_only=True)
class Franka:
    """A Franka arm."""

    node_rank: int
    """The node that controls it."""
    robot_ip: str = field(metadata=UNIQUE)
    """Where its controller answers."""
    camera_serials: tuple[str, ...] = ()
    """Its cameras, in the order in which they are seen."""
    camera_type: str = "realsense"
    """What the cameras are."""
    gripper_type: str = "franka"
    """What it grips with."""
    gripper_connection: str | None = None
    """The port of a gripper that is not Franka's own."""
    controller_node_rank: int | None = None
    """The node of its real-time controller; None is `node_rank`."""
    controller: str = "127.0.0.1:7000"
    """`host:port` of the process that drives it (`rlinf robot serve`), as seen from its node: where an environment finds it."""
    disable_validate: bool = False
    """Whoever drives it must not ask it whether it is there."""

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.robot_ip)
        except ValueError as error:
            raise ConfigError("robot_ip", f"expected an address such as 172.16.0.2, found '{self.robot_ip}'") from error
        _expect_controller(self.controller)


@register_hardware("SimulatedArm")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedArm:
    """An arm that exists in a simulator only, so that a placement for robots runs without one."""

    node_rank: int
    """The node that simulates it."""
    model: Literal["panda", "ur5e", "xarm7"] = "panda"
    """Which arm."""
    seed: int = 0
    """Of its noise."""
    controller: str | None = None
    """`host:port` of the process that drives it (`rlinf robot serve`); None: the environment starts one."""

    def __post_init__(self) -> None:
        if self.controller is not None:
            _expect_controller(self.controller)


def _expect_controller(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigError("controller", f"expected host:port, found '{address}'", "Write for instance 127.0.0.1:7000.")
