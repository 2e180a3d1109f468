"""Rotations in every form that models and simulators use, converted into each other.

Everything goes through unit quaternions (w, x, y, z) in float64, by formulas that lose no digits anywhere: near no rotation,
near half a turn, and where the Euler angles lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.actions.arrays import ActionError, Doubles, Floats, doubles, like

RotationForm = Literal["axis_angle", "quat_wxyz", "quat_xyzw", "rot6d", "rot6d_rows", "euler_xyz", "matrix"]
"""The ways to write a rotation:

- `axis_angle`: the axis times the angle, radians;
- `quat_wxyz`, `quat_xyzw`: a quaternion, the scalar first or last; normalised when read, the scalar ≥ 0 when written;
- `rot6d`: the first two *columns* of the matrix, one after the other (Zhou et al., "On the Continuity of Rotation
  Representations in Neural Networks" (2019), arXiv:1812.07035); made orthonormal when read;
- `rot6d_rows`: the first two *rows*, as PyTorch3D has it;
- `euler_xyz`: roll, pitch, yaw in radians: about the fixed axis x, then y, then z, R = Rz(yaw) Ry(pitch) Rx(roll); when written,
  the pitch is in [−π/2, π/2];
- `matrix`: the nine entries, row by row.
"""

_TINY = 1e-8
_ORTHONORMAL = 1e-3


def convert_rotation(rotation: ArrayLike, source: RotationForm, target: RotationForm) -> Floats:
    """A rotation in another form.

    Args:
        rotation: `[..., S]`, S numbers of the form `source`.
        source: the form that is given.
        target: the form that is wanted.

    Returns:
        `[..., S']`, of the type of `rotation`.

    Raises:
        ConfigError: there is no such form.
        ShapeError: the last axis has another size, or the numbers are no floats.
        ActionError: the numbers are no rotation.
    """
    read, write = _form(source)[1], _form(target)[2]
    given = doubles(rotation, "rotation", rotation_size(source))
    return like(write(read(given)), rotation)


def rotation_size(form: RotationForm) -> int:
    """How many numbers a rotation of that form has.

    Raises:
        ConfigError: there is no such form.
    """
    return _form(form)[0]


def multiply(a: Doubles, b: Doubles) -> Doubles:
    """The Hamilton product of quaternions (w, x, y, z), `[..., 4]`."""
    aw, ax, ay, az = (a[..., i] for i in range(4))
    bw, bx, by, bz = (b[..., i] for i in range(4))
    parts = (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )
    return np.stack(parts, axis=-1)


def _from_axis_angle(rotation: Doubles) -> Doubles:
    half = 0.5 * np.linalg.norm(rotation, axis=-1, keepdims=True)
    # sin(half)/angle, which np.sinc knows at 0 too.
    return np.concatenate([np.cos(half), 0.5 * np.sinc(half / np.pi) * rotation], axis=-1)


def _to_axis_angle(q: Doubles) -> Doubles:
    q = _canonical(q)
    w, v = q[..., :1], q[..., 1:]
    sine = np.linalg.norm(v, axis=-1, keepdims=True)
    # The arc cosine of w would lose half of the digits near no rotation.
    angle = 2.0 * np.arctan2(sine, w)
    # At 0 the quotient has the limit 2.
    return v * np.divide(angle, sine, out=np.full_like(sine, 2.0), where=sine != 0.0)


def _from_wxyz(rotation: Doubles) -> Doubles:
    return _unit(rotation, "quaternion")


def _from_xyzw(rotation: Doubles) -> Doubles:
    return _from_wxyz(np.roll(rotation, 1, axis=-1))


def _canonical(q: Doubles) -> Doubles:
    # q and −q are the same rotation; the one with w ≥ 0 has the angle up to π.
    return np.where(q[..., :1] < 0.0, -q, q)


def _to_xyzw(q: Doubles) -> Doubles:
    return np.roll(_canonical(q), -1, axis=-1)


def _from_euler(angles: Doubles) -> Doubles:
    cos, sin = np.cos(0.5 * angles), np.sin(0.5 * angles)
    zero = np.zeros(angles.shape[:-1])
    about = [np.stack([cos[..., i], *(sin[..., i] if i == j else zero for j in range(3))], axis=-1) for i in range(3)]
    return multiply(about[2], multiply(about[1], about[0]))


def _to_euler(q: Doubles) -> Doubles:
    """By sums and differences of the outer angles, each exact even where pitch is ±π/2 and only one of the two is known.

    With P = cos(pitch/2) + sin(pitch/2) and M = cos(pitch/2) − sin(pitch/2):
    (w + y, x − z) = P (cos, sin)((roll − yaw)/2), (w − y, x + z) = M (cos, sin)((roll + yaw)/2) and 4 (wy − xz) = (P − M)(P + M).
    """
    w, x, y, z = (q[..., i] for i in range(4))
    total, difference = np.arctan2(x + z, w - y), np.arctan2(x - z, w + y)
    pitch = 2.0 * np.arctan2(4.0 * (w * y - x * z), (np.hypot(w + y, x - z) + np.hypot(w - y, x + z)) ** 2)
    pitch = np.clip(pitch, -0.5 * np.pi, 0.5 * np.pi)
    return np.stack([_wrap(total + difference), pitch, _wrap(total - difference)], axis=-1)


def _wrap(angle: Doubles) -> Doubles:
    """The angle in [−π, π], unchanged where it already is."""
    outside = np.abs(angle) > np.pi
    return np.where(outside, angle - 2.0 * np.pi * np.round(angle / (2.0 * np.pi)), angle)


def _from_matrix(rotation: Doubles) -> Doubles:
    m = rotation.reshape(*rotation.shape[:-1], 3, 3)
    excess = np.abs(m @ np.swapaxes(m, -1, -2) - np.eye(3)).max(axis=(-1, -2))
    # NaN compares as False and passes, so that it is refused as an action, where the environment can be named.
    with np.errstate(invalid="ignore"):
        wrong = (excess > _ORTHONORMAL) | (np.linalg.det(m) < 0.0)
    if wrong.any():
        raise ActionError("rotation", "a matrix is not a rotation", "Its columns must be orthonormal and right-handed; see rot6d.")
    return _from_orthonormal(m)


def _from_orthonormal(m: Doubles) -> Doubles:
    """From the row of 4 q qᵀ with the greatest diagonal, so that nothing small is divided by."""
    a, b, c = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    d, e, f = m[..., 1, 0] + m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 2, 1] + m[..., 1, 2]
    x, y, z = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    rows = ((1 + x + y + z, a, b, c), (a, 1 + x - y - z, d, e), (b, d, 1 - x + y - z, f), (c, e, f, 1 - x - y + z))
    outer = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    largest = np.argmax(np.stack([row[i] for i, row in enumerate(rows)], axis=-1), axis=-1)
    return _unit(np.take_along_axis(outer, largest[..., None, None], axis=-2)[..., 0, :], "matrix")


def _to_matrix(q: Doubles) -> Doubles:
    w, x, y, z = (q[..., i] for i in range(4))
    entries = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack(entries, axis=-1)


def _from_columns(rotation: Doubles) -> Doubles:
    return _from_orthonormal(np.stack(_orthonormal(rotation), axis=-1))


def _from_rows(rotation: Doubles) -> Doubles:
    return _from_orthonormal(np.stack(_orthonormal(rotation), axis=-2))


def _orthonormal(rotation: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Gram–Schmidt: the first vector keeps its direction, the second gives up what it shares with the first."""
    first = _unit(rotation[..., :3], "first vector of rot6d")
    # Of length 1 first, so that the check below finds parallel vectors whatever their lengths.
    second = _unit(rotation[..., 3:], "second vector of rot6d")
    second = _unit(second - (first * second).sum(axis=-1, keepdims=True) * first, "second vector of rot6d, without the first,")
    return first, second, np.cross(first, second)


def _to_columns(q: Doubles) -> Doubles:
    return _to_matrix(q)[..., [0, 3, 6, 1, 4, 7]]


def _to_rows(q: Doubles) -> Doubles:
    return _to_matrix(q)[..., :6]


def _unit(vector: Doubles, name: str) -> Doubles:
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    if (length < _TINY).any():
        raise ActionError("rotation", f"the {name} has the length 0, so it names no rotation", "Look at what gave it.")
    return vector / length


_Map = Callable[[Doubles], Doubles]
_FORMS: Final[dict[str, tuple[int, _Map, _Map]]] = {
    "axis_angle": (3, _from_axis_angle, _to_axis_angle),
    "quat_wxyz": (4, _from_wxyz, _canonical),
    "quat_xyzw": (4, _from_xyzw, _to_xyzw),
    "rot6d": (6, _from_columns, _to_columns),
    "rot6d_rows": (6, _from_rows, _to_rows),
    "euler_xyz": (3, _from_euler, _to_euler),
    "matrix": (9, _from_matrix, _to_matrix),
}


def _form(name: str) -> tuple[int, _Map, _Map]:
    if name not in _FORMS:
        raise ConfigError("rotation", f"no form of rotations is named '{name}'", did_you_mean(name, list(_FORMS)))
    return _FORMS[name]
