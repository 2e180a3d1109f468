"""Whether MuJoCo can draw here, and with what. Importing this imports no simulator."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError

Look = Literal["fast", "full"]
"""How MuJoCo draws: `fast` leaves out shadows, reflections, the sky and multisampling, `full` is the simulator's own look.

A 256² frame drawn by a processor costs about a tenth in the fast look. Train and evaluate a policy in one of them.
"""

_logger = logging.getLogger("rlinf.envs")
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
_PROBE_S = 30.0


def gl_backend() -> str | None:
    """The backend that MuJoCo draws with: `MUJOCO_GL` where it is set and works, else the first of egl, osmesa and glfw that does.

    Returns:
        Its name; None if nothing can be drawn here. Elsewhere than on Linux MuJoCo needs no choice: "" then.
    """
    if sys.platform != "linux":
        return os.environ.get("MUJOCO_GL", "")
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    names = (wanted,) if wanted else ("egl", "osmesa", "glfw")
    return next((name for name in names if _works(name)), None)


def can_render() -> bool:
    """Whether MuJoCo can draw on this machine."""
    return gl_backend() is not None


def require_rendering(place: str) -> str:
    """The backend, or an error that says what to install.

    Args:
        place: the dotted path of what needs pictures.

    Raises:
        ConfigError: nothing can be drawn here, or not with what `MUJOCO_GL` asks for.
    """
    backend = gl_backend()
    if backend is None:
        wanted = os.environ.get("MUJOCO_GL")
        problem = (
            f"MuJoCo can't draw here with MUJOCO_GL={wanted}" if wanted else "MuJoCo can't draw here: neither EGL nor OSMesa works"
        )
        remedy = "Install one of them (apt-get install libegl1 libgl1-mesa-dri, or libosmesa6), or observe states alone."
        raise ConfigError(place, problem, remedy)
    return backend


def check_images(place: str, image_size: int, *, observed: bool) -> None:
    """Refuses images that have no pixels, or that MuJoCo can't draw here.

    Args:
        place: of the environment's parameters.
        image_size: pixels, each way.
        observed: whether images are observed at all.

    Raises:
        ConfigError: names `image_size`, or `obs_mode`.
    """
    expect_at_least(f"{place}.image_size", image_size, 1)
    if observed:
        require_rendering(f"{place}.obs_mode")


def use_rendering(place: str) -> None:
    """Settles the backend for this process; call it before a simulator is imported.

    Raises:
        ConfigError: see `require_rendering`.
    """
    backend = require_rendering(place)
    if backend:
        os.environ["MUJOCO_GL"] = backend
    # Triton crashes if it is first imported (as torch's optimizers do) after the LLVM of Mesa's software driver was loaded.
    if importlib.util.find_spec("triton") is not None:
        importlib.import_module("triton")


def settle_rendering(simulator: str, *, images: bool, render: bool) -> bool:
    """Settles how an environment on MuJoCo is drawn, before its simulator is imported.

    Args:
        simulator: its name, for the log.
        images: whether it observes images.
        render: whether it is filmed.

    Returns:
        Whether MuJoCo films it; where it can't, videos are schematics.

    Raises:
        ConfigError: see `require_rendering`.
    """
    native = render and can_render()
    if native or images:
        use_rendering("env.obs_mode")
    if render and not native:
        _logger.warning("MuJoCo can't draw here: videos of %s are drawn schematics", simulator)
    return native


def _works(backend: str) -> bool:
    if backend == "glfw":
        # glfw draws only where there is a window system.
        return "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return _egl_works() if backend == "egl" else backend == "osmesa" and _library("osmesa") is not None


def _library(backend: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_LIBRARIES[backend])
    except OSError:
        return None


@functools.cache
def _egl_works() -> bool:
    """Whether EGL has a device that can be initialised, asked in a process of its own, because asking loads its drivers."""
    if _library("egl") is None:
        return False
    # The probe needs the standard library alone, so no site-packages and none of the user's variables.
    command = [sys.executable, "-IS", str(Path(__file__).with_name("_egl_probe.py")), _LIBRARIES["egl"]]
    try:
        return subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False).returncode == 0  # noqa: S603 - our own file
    except (OSError, subprocess.TimeoutExpired):
        return False
