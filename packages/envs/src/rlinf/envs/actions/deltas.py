"""Actions as changes and as targets, one step or a chunk of K steps.

`relative_to` says what a change in a chunk `[..., K, A]` counts from: `start`, the state in which the chunk was decided, for all
of them (π0, UMI); or `previous`, the target of the step before (the first counts from the state).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf.core.errors import ShapeError
from rlinf.envs.actions.arrays import Doubles, Floats, doubles, like
from rlinf.envs.actions.rotations import RotationForm, compose_rotations, invert_rotation, rotate, rotation_size

RelativeTo = Literal["start", "previous"]
Frame = Literal["base", "body"]
"""The axes of a pose's change: those of the world (`base`: p + Δp, ΔR · R) or of the hand itself (`body`: p + R Δp, R · ΔR)."""


def to_absolute(change: ArrayLike, state: ArrayLike, *, mask: ArrayLike | None = None, relative_to: RelativeTo = "start") -> Floats:
    """Targets from changes that add up, such as joint angles.

    Args:
        change: `[..., K, A]`.
        state: `[..., A]`, where the chunk starts.
        mask: `[A]` bool, what is a change; the rest (a gripper, as a rule) is a target already. None: all.
        relative_to: what a change counts from.

    Returns:
        `[..., K, A]`, of the type of `change`.

    Raises:
        ShapeError: sizes disagree.
    """
    given, start, chosen = _chunk(change, state, mask)
    total = np.cumsum(given, axis=-2) if relative_to == "previous" else given
    return like(np.where(chosen, total + start[..., None, :], given), change)


def to_change(target: ArrayLike, state: ArrayLike, *, mask: ArrayLike | None = None, relative_to: RelativeTo = "start") -> Floats:
    """Changes from targets, the inverse of `to_absolute`."""
    given, start, chosen = _chunk(target, state, mask)
    return like(np.where(chosen, given - _before(given, start, relative_to), given), target)


def pose_to_absolute(
    change: ArrayLike, pose: ArrayLike, *, rotation: RotationForm, frame: Frame = "base", relative_to: RelativeTo = "start"
) -> Floats:
    """Target poses from changes of a pose.

    Args:
        change: `[..., K, 3 + S + G]`: position, rotation of the given form, and G numbers that pass unchanged.
        pose: `[..., 3 + S]`, the pose where the chunk starts; more numbers are ignored.
        rotation: the form of the rotation in both.
        frame: the axes of the change.
        relative_to: what a change counts from.

    Raises:
        ShapeError: sizes disagree.
    """
    given, start, size = _poses(change, pose, rotation)
    now: Floats = start
    steps: list[Floats] = []
    for k in range(given.shape[-2]):
        step = _move(given[..., k, :size], now, rotation, frame)
        steps.append(step)
        now = step if relative_to == "previous" else now
    # A chunk may have no steps, which `np.stack` refuses.
    moved = np.stack(steps, axis=-2) if steps else given[..., :size]
    return like(np.concatenate([moved, given[..., size:]], axis=-1), change)


def pose_to_change(
    target: ArrayLike, pose: ArrayLike, *, rotation: RotationForm, frame: Frame = "base", relative_to: RelativeTo = "start"
) -> Floats:
    """Changes of a pose from target poses, the inverse of `pose_to_absolute`."""
    given, now, size = _poses(target, pose, rotation)
    before = _before(given[..., :size], now, relative_to)
    old, new = before[..., 3:], given[..., 3:size]
    back = invert_rotation(old, rotation)
    if frame == "base":
        position = given[..., :3] - before[..., :3]
        turn = compose_rotations(new, back, rotation)
    else:
        position = rotate(back, given[..., :3] - before[..., :3], rotation)
        turn = compose_rotations(back, new, rotation)
    return like(np.concatenate([position, turn, given[..., size:]], axis=-1), target)


def _move(change: Floats, pose: Floats, rotation: RotationForm, frame: Frame) -> Floats:
    shift, turn, old = change[..., :3], change[..., 3:], pose[..., 3:]
    if frame == "base":
        return np.concatenate([pose[..., :3] + shift, compose_rotations(turn, old, rotation)], axis=-1)
    return np.concatenate([pose[..., :3] + rotate(old, shift, rotation), compose_rotations(old, turn, rotation)], axis=-1)


def _before(target: Doubles, start: Doubles, relative_to: RelativeTo) -> Doubles:
    """What each step of the chunk counts from, `[..., K, A]`."""
    first = np.broadcast_to(start[..., None, :], target.shape)
    if relative_to == "start":
        return first
    return np.concatenate([first[..., :1, :], target[..., :-1, :]], axis=-2)


def _chunk(action: ArrayLike, state: ArrayLike, mask: ArrayLike | None) -> tuple[Doubles, Doubles, NDArray[np.bool_]]:
    given = doubles(action, "action")
    start = doubles(state, "state", given.shape[-1])
    _refuse_other_batch(given, start)
    chosen = np.ones(given.shape[-1], np.bool_) if mask is None else np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.shape != given.shape[-1:]:
        raise ShapeError("mask", f"expected bool of shape [{given.shape[-1]}], found {chosen.dtype} {list(chosen.shape)}")
    return given, start, chosen


def _poses(action: ArrayLike, pose: ArrayLike, rotation: RotationForm) -> tuple[Doubles, Doubles, int]:
    size = 3 + rotation_size(rotation)
    given, start = doubles(action, "action"), doubles(pose, "pose")
    for name, array in (("action", given), ("pose", start)):
        if array.shape[-1] < size:
            raise ShapeError(name, f"a position and a rotation as {rotation} are {size} numbers, found {array.shape[-1]}")
    _refuse_other_batch(given, start)
    return given, start[..., :size], size


def _refuse_other_batch(action: Doubles, state: Doubles) -> None:
    if action.ndim < 2 or action.shape[:-2] != state.shape[:-1]:
        problem = f"expected [..., K, A] for states [..., A], found {list(action.shape)} for {list(state.shape)}"
        raise ShapeError("action", problem, "A single step is a chunk of one: action[..., None, :].")
