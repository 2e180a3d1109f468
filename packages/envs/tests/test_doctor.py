"""What `rlinf doctor` says of pictures and of the sandbox."""

from __future__ import annotations

import pytest

from rlinf.envs import doctor
from rlinf.envs.rendering import mujoco
from rlinf.envs.sandbox.levels import LEVELS


def test_pictures_that_nothing_can_draw_come_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_there", lambda module: module != "imageio_ffmpeg")
    monkeypatch.setattr(mujoco, "gl_backend", lambda: None)
    monkeypatch.setattr(doctor, "has_vulkan_driver", lambda: False)
    robots, maniskill = doctor.rendering()
    assert (robots.state, maniskill.state) == ("no", "no")
    assert "apt-get install libegl1" in robots.remedy
    assert "mesa-vulkan-drivers" in maniskill.remedy
    monkeypatch.setattr(mujoco, "gl_backend", lambda: "egl")
    monkeypatch.setattr(doctor, "has_vulkan_driver", lambda: True)
    assert [finding.state for finding in doctor.rendering()] == ["ok", "ok"]


def test_what_is_not_installed_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_there", lambda module: False)
    assert list(doctor.rendering()) == []


def test_each_level_of_the_sandbox_is_told() -> None:
    assert tuple(finding.subject for finding in doctor.sandbox()) == LEVELS
