"""Drawing with MuJoCo, cheaply and for several environments at once. Only imported when an environment is built."""

from __future__ import annotations

import atexit
import functools
import importlib
import weakref
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.rendering.mujoco import Look, require_rendering

_mujoco = importlib.import_module("mujoco")  # whose bindings have no types
_MAX_GEOMS = 5000
_COSTLY = ("SHADOW", "REFLECTION", "SKYBOX", "HAZE", "FOG")


class EnvRenderer:
    """The renderer of one environment, made cheap and kept apart from those of other environments.

    OpenGL draws into whichever context is current. Gymnasium makes a context current when it builds it and never again, so that of
    two environments the first was drawn in the second's context, and black once that was freed. Here it is made current for
    each frame, and for freeing what belongs to it.

    Args:
        env: an environment that was built with `render_mode="rgb_array"`.
        renderer: its `MujocoRenderer`.
        look: see `Look`.
    """

    def __init__(self, env: Any, renderer: Any, look: Look) -> None:
        self._env = env
        self._renderer = renderer
        if look == "fast":
            simplify(model=renderer.model)
        # There is a viewer, and with it a scene, only after the first frame.
        renderer.render("rgb_array")
        if look == "fast":
            simplify(scene=renderer.viewer.scn)
        _close_at_exit().add(self)

    def frame(self) -> NDArray[np.uint8]:
        """What the environment's camera sees now, `[H, W, 3]`."""
        self._renderer.viewer.make_context_current()
        return np.ascontiguousarray(self._env.render())

    def close(self) -> None:
        """Frees the context and what was uploaded to it; the environment may be closed afterwards."""
        _close_at_exit().discard(self)
        viewer = self._renderer.viewer
        viewer.make_context_current()
        viewer.con.free()
        viewer.free()

    def abandon(self) -> None:
        """Leaves the context to the end of the process."""
        _forget(self._renderer.viewer.opengl_context)


class ModelRenderer:
    """Draws a MuJoCo model from any of its cameras, in an OpenGL context of its own.

    Args:
        model: a `mujoco.MjModel`; in the fast look its multisampling is switched off.
        size: pixels, each way.
        look: see `Look`.
        hidden: groups of geoms that aren't drawn.
    """

    def __init__(self, model: Any, size: int, look: Look, *, hidden: tuple[int, ...] = ()) -> None:
        # On Linux a backend always has a name; cgl is that of macOS.
        self._gl: Any = importlib.import_module(f"mujoco.{require_rendering('env.render') or 'cgl'}").GLContext(size, size)
        self._gl.make_current()
        self._model, self._size = model, size
        # The offscreen buffer gets this size; by default it is 640 × 480.
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, size)
        self._scene, self._option, self._camera = _mujoco.MjvScene(model, _MAX_GEOMS), _mujoco.MjvOption(), _mujoco.MjvCamera()
        if look == "fast":
            simplify(model=model, scene=self._scene)
        for group in hidden:
            self._option.geomgroup[group] = 0
        self._camera.type = _mujoco.mjtCamera.mjCAMERA_FIXED
        self._context = _mujoco.MjrContext(model, _mujoco.mjtFontScale.mjFONTSCALE_100)
        _mujoco.mjr_setBuffer(_mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        _close_at_exit().add(self)

    def render(self, data: Any, camera: str) -> NDArray[np.uint8]:
        """What the camera of this name sees, `[size, size, 3]`, the right way up."""
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        every = _mujoco.mjtCatBit.mjCAT_ALL
        _mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, every, self._scene)
        area = _mujoco.MjrRect(0, 0, self._size, self._size)
        _mujoco.mjr_render(area, self._scene, self._context)
        frame = np.empty((self._size, self._size, 3), np.uint8)
        _mujoco.mjr_readPixels(frame, None, area, self._context)
        # OpenGL's rows run upwards.
        return np.ascontiguousarray(frame[::-1])

    def close(self) -> None:
        """Frees the context and what was uploaded to it."""
        _close_at_exit().discard(self)
        self._gl.make_current()
        self._context.free()
        self._gl.free()

    def abandon(self) -> None:
        """Leaves the context to the end of the process."""
        _forget(self._gl)


@functools.cache
def _close_at_exit() -> weakref.WeakSet[Any]:
    """What is still open when the process ends is closed before MuJoCo shuts OpenGL down, which it was told to do earlier."""
    opened: weakref.WeakSet[Any] = weakref.WeakSet()

    def close() -> None:
        for item in list(opened):
            try:
                item.close()
            # Of OpenGL, whose context another thread holds: that of a worker which failed, or which was interrupted.
            except Exception:  # noqa: BLE001
                item.abandon()

    atexit.register(close)
    return opened


def _forget(context: Any) -> None:
    """Keeps MuJoCo's wrapper of a context from freeing it when it is collected, which fails where `close` did, by a traceback."""
    context._context = None


def simplify(*, model: Any = None, scene: Any = None) -> None:
    """Gives the fast look to a model before its first frame, or to the scene of a renderer."""
    if model is not None:
        model.vis.quality.offsamples = 0
    if scene is not None:
        flags = _mujoco.mjtRndFlag
        for name in _COSTLY:
            scene.flags[getattr(flags, f"mjRND_{name}")] = 0


def find_renderer(env: Any) -> Any:
    """The `MujocoRenderer` of an environment, or None if it has none.

    The mazes and the kitchen of gymnasium-robotics keep it in an environment inside.
    """
    bare = env.unwrapped
    owners: list[Any] = [bare, *cast("dict[str, Any]", vars(bare)).values()]
    return next((owner.mujoco_renderer for owner in owners if "mujoco_renderer" in getattr(owner, "__dict__", {})), None)
