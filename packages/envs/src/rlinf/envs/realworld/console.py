"""`rlinf robot console`: a person at the robot, by keyboard, and by SpaceMouse where there is one."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Generator, Mapping
from typing import Any, Final

from rlinf.core.installing import is_there
from rlinf.envs.realworld.client import ControllerClient

SPEED: Final = 0.15
"""Metres per second."""
_TURN: Final = 0.4
"""Radians per second."""
_PERIOD_S: Final = 0.05
_HELD_S: Final = 0.3
"""A terminal repeats a key that is held; for so long it counts as held."""
MOTIONS: Final[Mapping[str, tuple[float, ...]]] = {
    "w": (SPEED, 0, 0, 0, 0, 0),
    "s": (-SPEED, 0, 0, 0, 0, 0),
    "a": (0, SPEED, 0, 0, 0, 0),
    "d": (0, -SPEED, 0, 0, 0, 0),
    "r": (0, 0, SPEED, 0, 0, 0),
    "f": (0, 0, -SPEED, 0, 0, 0),
    "q": (0, 0, 0, 0, 0, _TURN),
    "e": (0, 0, 0, 0, 0, -_TURN),
}
PRESSED: Final = {"\r": "ready", "\n": "ready", "y": "success", "n": "failure"}
_HELP: Final = (
    "w/s forward and back, a/d left and right, r/f up and down, q/e turn: the arm follows you instead of the policy\n"
    "Enter: the scene is ready, y: success, n: failure, space: EMERGENCY STOP, c: recover, x: leave\n"
)
_SPACEMOUSE: Final = ((0x046D, 0xC626), (0x046D, 0xC62B), (0x256F, 0xC62E), (0x256F, 0xC62F), (0x256F, 0xC635))
"""Vendor and product of 3Dconnexion's SpaceNavigator, SpaceMouse Pro, Wireless and Compact."""
# What a device reports at full deflection, and the share of it below which nobody touches it.
_FULL: Final = 350.0
_DEAD: Final = 0.05


def run_console(client: ControllerClient) -> int:
    """Sends what a person does, until they leave.

    Returns:
        The exit code.
    """
    sys.stdout.write(_HELP)
    mouse = SpaceMouse.found()
    motion: tuple[float, ...] | None = None
    until = 0.0
    with _raw_terminal():
        while True:
            pressed: list[str] = []
            leaves = False
            for key in _arrived():
                leaves = leaves or key in ("x", "\x03", "")
                if key == " ":
                    client.stop("emergency stop at the console")
                if key == "c":
                    client.recover()
                if key in MOTIONS:
                    motion, until = MOTIONS[key], time.monotonic() + _HELD_S
                if key in PRESSED:
                    pressed.append(PRESSED[key])
            # Only now: a stop beside the key that leaves counts.
            if leaves:
                return 0
            by_mouse = None if mouse is None else mouse.motion()
            state = client.human(by_mouse or (motion if time.monotonic() < until else None), pressed)
            sys.stdout.write(f"\r{state.stopped or ('you' if state.human else 'policy'):40} {state.verdict:30}")
            sys.stdout.flush()


class SpaceMouse:
    """A 3Dconnexion device, read through `hidapi`. Written to its report format; never run with a device.

    Args:
        device: an open `hid.device`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._axes = [0.0] * 6

    @classmethod
    def found(cls) -> SpaceMouse | None:
        """The first one; None if there is none, or `hidapi` is not installed."""
        if not is_there("hid"):
            return None
        hid: Any = importlib.import_module("hid")
        for vendor, product in _SPACEMOUSE:
            if hid.enumerate(vendor, product):
                device = hid.device()
                device.open(vendor, product)
                device.set_nonblocking(True)
                return cls(device)
        return None

    def motion(self) -> tuple[float, ...] | None:
        """`[6]` metres and radians per second; None while nobody touches it."""
        # Until none is left: reports that pile up would let the arm follow the hand late.
        while report := self._device.read(13):
            self._take(bytes(report))
        if max(abs(axis) for axis in self._axes) < _DEAD:
            return None
        x, y, z, roll, pitch, yaw = self._axes
        # The device's x points right and its y towards the person, its z down; the arm's x points away from its base.
        return (-y * SPEED, -x * SPEED, -z * SPEED, -pitch * _TURN, -roll * _TURN, -yaw * _TURN)

    def _take(self, report: bytes) -> None:
        """A report: 1 is of translation, 2 of rotation, and 1 of both where it is long; numbers are signed, 16 bits each."""
        first = {1: 0, 2: 3}.get(report[0])
        if first is None:
            return
        values = [int.from_bytes(report[at : at + 2], "little", signed=True) / _FULL for at in range(1, len(report) - 1, 2)]
        for index, value in enumerate(values[: 6 - first]):
            self._axes[first + index] = max(-1.0, min(1.0, value))


def _arrived() -> list[str]:
    """The keys pressed within a period; an empty text at the end of the input, which would be readable for ever."""
    if not select.select([sys.stdin], [], [], _PERIOD_S)[0]:
        return []
    # Not by `sys.stdin`: it would keep all but the first key in a buffer, of which `select` knows nothing.
    return list(os.read(sys.stdin.fileno(), 1024).decode("ascii", "replace")) or [""]


@contextlib.contextmanager
def _raw_terminal() -> Generator[None]:
    """Keys come one by one, without Enter."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        # Not `setraw`: Ctrl-C shall still interrupt.
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
