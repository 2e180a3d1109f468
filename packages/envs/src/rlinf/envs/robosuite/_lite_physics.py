"""Control steps of robosuite 1.4 without what it computes twice."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def lite_physics(simulation: Any) -> Generator[None]:
    """While it is entered, a substep computes once what follows from the state, and not three times; 1.5 does the same by default.

    robosuite 1.4 calls `forward` before the controller, `forward` once more in it, and `step`, which is a `forward` again. The
    first half of a step is all that the controller reads; the second half follows when the torques are there. What changes is the
    number of times that MuJoCo's solver starts, and so a rounding: at most 6e-5 of a coordinate in sixty control steps.

    Args:
        simulation: the `sim` of a robosuite environment.
    """
    mujoco: Any = importlib.import_module("mujoco")
    model, data = simulation.model._model, simulation.data._data
    ready = False

    def forward() -> None:
        nonlocal ready
        if not ready:
            mujoco.mj_step1(model, data)
        ready = True

    def step(with_udd: bool = True) -> None:
        nonlocal ready
        mujoco.mj_step2(model, data)
        ready = False

    simulation.forward, simulation.step = forward, step
    try:
        yield
    finally:
        del simulation.forward, simulation.step
