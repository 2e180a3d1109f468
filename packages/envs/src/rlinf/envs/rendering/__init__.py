"""Frames: MuJoCo without a display, and drawings where a simulator cannot render."""

from rlinf.envs.rendering.mujoco import can_render as can_render
from rlinf.envs.rendering.mujoco import gl_backend as gl_backend
from rlinf.envs.rendering.mujoco import require_rendering as require_rendering
from rlinf.envs.rendering.mujoco import use_rendering as use_rendering
