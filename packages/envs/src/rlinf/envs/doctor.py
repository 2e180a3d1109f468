"""What `rlinf doctor` says of environments: what can be drawn and filmed here, and how far programs can be confined."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.core.doctor import Finding
from rlinf.core.errors import ConfigError
from rlinf.core.installing import is_there
from rlinf.envs.maniskill.maniskill import INSTALL_VULKAN, has_vulkan_driver
from rlinf.envs.rendering.mujoco import require_rendering
from rlinf.envs.sandbox.levels import LEVELS, MEANING
from rlinf.envs.sandbox.process import ProcessSandbox


def rendering() -> Iterator[Finding]:
    """Pictures of MuJoCo and ManiSkill where they are installed, and films."""
    if is_there("mujoco"):
        try:
            backend = require_rendering("MuJoCo")
            yield Finding(subject="MuJoCo's pictures", state="ok", told=f"drawn by {backend or 'the system'}")
        except ConfigError as error:
            yield Finding(subject="MuJoCo's pictures", state="no", told=error.problem, remedy=error.remedy)
    if is_there("mani_skill"):
        there = has_vulkan_driver()
        told, remedy = (
            ("a Vulkan driver is installed", "")
            if there
            else ("no Vulkan driver; states are simulated all the same", INSTALL_VULKAN)
        )
        yield Finding(subject="ManiSkill's pictures", state="ok" if there else "no", told=told, remedy=remedy)
    if is_there("imageio_ffmpeg"):
        from imageio_ffmpeg import get_ffmpeg_version

        yield Finding(subject="films", state="ok", told=f"ffmpeg {get_ffmpeg_version()}")


def sandbox() -> Iterator[Finding]:
    """The levels at which model-written programs can be confined here."""
    for level in LEVELS:
        refusal = ProcessSandbox(level=level).refusal()
        yield Finding(subject=level, state="no" if refusal else "ok", told=f"a program {MEANING[level]}", remedy=refusal or "")
