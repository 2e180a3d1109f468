"""Frames: MuJoCo without a display, and drawings where a simulator cannot render."""

from rlinf.envs.rendering.mujoco import can_render as can_render
from rlinf.envs.rendering.mujoco import gl_backend as gl_backend
