from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.envs.actions import (
    ActionError,
    convert_rotation,
)

SCIPY = pytest.importorskip("scipy.spatial.transform").Rotation
ROOT = np.sqrt(0.5)

# A quarter turn about z, in every form, by hand.
QUARTER = {
    "axis_angle": [0, 0, np.pi / 2],
    "quat_wxyz": [ROOT, 0, 0, ROOT],
    "quat_xyzw": [0, 0, ROOT, ROOT],
    "rot6d": [0, 1, 0, -1, 0, 0],
    "rot6d_rows": [0, -1, 0, 1, 0, 0],
    "euler_xyz": [0, 0, np.pi / 2],
    "matrix": [0, -1, 0, 1, 0, 0, 0, 0, 1],
}
TO_SCIPY = {
    "axis_angle": SCIPY.from_rotvec,
    "quat_wxyz": lambda r: SCIPY.from_quat(np.roll(r, -1, axis=-1)),
    "quat_xyzw": SCIPY.from_quat,
    "rot6d": lambda r: SCIPY.from_matrix(np.stack([r[..., :3], r[..., 3:], np.cross(r[..., :3], r[..., 3:])], axis=-1)),
    "rot6d_rows": lambda r: SCIPY.from_matrix(np.stack([r[..., :3], r[..., 3:], np.cross(r[..., :3], r[..., 3:])], axis=-2)),
    "euler_xyz": lambda r: SCIPY.from_euler("xyz", r),
    "matrix": lambda r: SCIPY.from_matrix(r.reshape(*r.shape[:-1], 3, 3)),
}
PAIRS = list(itertools.product(QUARTER, QUARTER))

unit = (
    arrays(np.float64, 3, elements=st.floats(-1, 1)).filter(lambda v: np.linalg.norm(v) > 1e-3).map(lambda v: v / np.linalg.norm(v))
)
# Angles everywhere, and many near 0 and near half a turn.
angle = st.one_of(
    st.floats(0, np.pi),
    st.floats(-16, 0).map(lambda e: 10**e),
    st.floats(-16, 0).map(lambda e: np.pi - 10**e),
    st.sampled_from([0.0, np.pi, np.pi / 2]),
)


def distance(a, b):
    """The angle between two SciPy rotations, to full precision."""
    return (a * b.inv()).magnitude()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_quarter_turn_by_hand(source, target):
    found = convert_rotation(np.array(QUARTER[source], float), source, target)
    assert np.allclose(found, QUARTER[target], atol=1e-15)


@settings(max_examples=60)
@given(axis=unit, angle=angle)
def test_every_pair_agrees_with_scipy(axis, angle):
    for source, target in PAIRS:
        given_ = convert_rotation(axis * angle, "axis_angle", source)
        found = convert_rotation(given_, source, target)
        assert distance(TO_SCIPY[target](found), SCIPY.from_rotvec(axis * angle)) < 5e-15, (source, target)


@settings(max_examples=200)
@given(axis=unit, exponent=st.floats(-150, 0))
def test_small_rotations_keep_their_digits(axis, exponent):
    small = axis * 10.0**exponent
    for form in ("quat_wxyz", "quat_xyzw", "euler_xyz"):
        back = convert_rotation(convert_rotation(small, "axis_angle", form), form, "axis_angle")
        assert np.abs(back - small).max() <= 1e-14 * np.abs(small).max()


@settings(max_examples=200)
@given(roll=st.floats(-3, 3), yaw=st.floats(-3, 3), gap=st.floats(-18, 0), sign=st.sampled_from([-1, 1]))
def test_euler_angles_near_their_lock(roll, yaw, gap, sign):
    angles = np.array([roll, sign * (np.pi / 2 - 10**gap), yaw])
    back = convert_rotation(convert_rotation(angles, "euler_xyz", "quat_wxyz"), "quat_wxyz", "euler_xyz")
    assert distance(TO_SCIPY["euler_xyz"](back), TO_SCIPY["euler_xyz"](angles)) < 5e-15
    assert np.abs(back[1]) <= np.pi / 2
    assert (np.abs(back) <= np.pi).all()


def test_pitch_beyond_a_quarter_turn_is_folded_back():
    back = convert_rotation(np.array([0.1, 2.0, 0.2]), "euler_xyz", "quat_wxyz")
    assert np.allclose(convert_rotation(back, "quat_wxyz", "euler_xyz"), [0.1 - np.pi, np.pi - 2.0, 0.2 - np.pi])


def test_half_a_turn_about_each_axis():
    for axis in np.eye(3):
        for form in QUARTER:
            there = convert_rotation(np.pi * axis, "axis_angle", form)
            assert np.allclose(np.abs(convert_rotation(there, form, "axis_angle")), np.pi * axis, atol=1e-15)


def test_angles_beyond_half_a_turn_come_back_the_short_way():
    assert np.allclose(convert_rotation([0.0, 0.0, 1.5 * np.pi], "axis_angle", "euler_xyz"), [0, 0, -np.pi / 2])
    there = convert_rotation([0.0, 0.0, 1.5 * np.pi], "axis_angle", "quat_wxyz")
    assert there[0] > 0
    assert np.allclose(convert_rotation(there, "quat_wxyz", "axis_angle"), [0, 0, -np.pi / 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_batches_and_types(shape, dtype):
    axis_angles = np.random.default_rng(0).normal(size=(*shape, 3)).astype(dtype)
    before = axis_angles.copy()
    for form in QUARTER:
        found = convert_rotation(axis_angles, "axis_angle", form)
        assert found.dtype == dtype
        assert found.shape == (*shape, len(QUARTER[form]))
        rows = [convert_rotation(axis_angles[i], "axis_angle", form) for i in np.ndindex(shape)]
        assert np.array_equal(found.reshape(-1, found.shape[-1]), np.array(rows, dtype).reshape(-1, found.shape[-1]))
    assert np.array_equal(axis_angles, before)


def test_networks_are_imprecise():
    twice = convert_rotation(np.array([0.0, 2, 0, 0, 0, 0.2]), "rot6d", "matrix")
    assert np.allclose(twice.reshape(3, 3)[:, :2].T, [[0, 1, 0], [0, 0, 1]])
    assert np.allclose(convert_rotation([0.0, 0, 0, -3], "quat_xyzw", "quat_wxyz"), [1, 0, 0, 0])
    skew = convert_rotation([1.0, 0, 0, 5, 1, 0], "rot6d", "axis_angle")
    assert np.allclose(skew, 0)


@pytest.mark.parametrize(
    ("form", "numbers", "message"),
    [
        ("quat_wxyz", [0, 0, 0, 0], "quaternion has the length 0"),
        ("rot6d", [0, 0, 0, 1, 0, 0], "first vector of rot6d"),
        ("rot6d", [1, 0, 0, 2, 0, 0], "without the first"),
        ("matrix", [1, 0, 0, 0, 1, 0, 0, 0, -1], "not a rotation"),
        ("matrix", [2, 0, 0, 0, 1, 0, 0, 0, 1], "not a rotation"),
    ],
)
def test_numbers_that_are_no_rotation(form, numbers, message):
    with pytest.raises(ActionError, match=message):
        convert_rotation(np.array(numbers, float), form, "axis_angle")


def test_what_is_not_a_number_stays_so():
    for form in QUARTER:
        found = convert_rotation(np.full(len(QUARTER[form]), np.nan), form, "axis_angle")
        assert np.isnan(found).all()


def test_misuse():
    with pytest.raises(ConfigError, match=r"'quat_wxzy'.*Did you mean 'quat_wxyz'"):
        convert_rotation(np.zeros(4), "quat_wxzy", "matrix")
    with pytest.raises(ShapeError, match=r"expected the shape \[..., 4\], found \[3\]"):
        convert_rotation(np.zeros(3), "quat_wxyz", "matrix")
    with pytest.raises(ShapeError, match="expected floats, found int64"):
        convert_rotation(np.zeros(3, np.int64), "axis_angle", "matrix")
