from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlinf.core.errors import ConfigError, ShapeError, UnknownName
from rlinf.envs.actions import (
    ACTION_FORMATS,
    ActionError,
    Chain,
    Gripper,
    Identity,
    Pick,
    Rotation,
    Unscale,
    binarise,
    convert_gripper,
    from_unit,
    register_action_format,
    to_unit,
)

VLA = np.array([0.01, -0.02, 0.03, 0.1, -0.2, 0.3, 0.9], np.float32)
SIMULATORS = ["libero", "maniskill", "maniskill_panda", "calvin", "metaworld", "franka_sim", "roboverse"]
GRIPPER_SIGNS = ["unit_open", "unit_closed", "sign_open", "sign_closed"]
finite = st.floats(-10, 10, width=32)


# Grippers


@pytest.mark.parametrize(
    ("sign", "closed", "opened", "half"),
    [("unit_open", 0, 1, 0.5), ("unit_closed", 1, 0, 0.5), ("sign_open", -1, 1, 0), ("sign_closed", 1, -1, 0)],
)
def test_gripper_by_hand(sign, closed, opened, half):
    assert np.array_equal(convert_gripper(np.array([0.0, 1.0, 0.5]), "unit_open", sign), [closed, opened, half])


@pytest.mark.parametrize(("source", "target"), list(itertools.product(GRIPPER_SIGNS, GRIPPER_SIGNS)))
@settings(max_examples=20)
@given(value=arrays(np.float64, (3,), elements=st.floats(-2, 2)))
def test_gripper_round_trip(source, target, value):
    assert np.allclose(convert_gripper(convert_gripper(value, source, target), target, source), value, atol=1e-15)


def test_binarise():
    found = binarise(np.array([0.2, 0.5, 0.51, np.nan], np.float32), threshold=0.5, above=1, below=-1)
    assert found.dtype == np.float32
    assert np.array_equal(found, [-1, -1, 1, np.nan], equal_nan=True)
    assert binarise(0.7, threshold=0.5, above=1, below=0) == 1


# Scaling


def test_scaling_by_hand():
    low, high = np.array([-2.0, 0, 3]), np.array([2.0, 10, 3])
    unit = to_unit(np.array([1.0, 2.5, 3.0], np.float32), low, high)
    assert unit.dtype == np.float32
    assert np.allclose(unit, [0.5, -0.5, 0])
    assert np.allclose(from_unit(unit, low, high), [1, 2.5, 3])
    assert np.allclose(to_unit(np.array([4.0, -5, 3]), low, high), [2, -2, 0])
    assert np.allclose(to_unit(np.array([4.0, -5, 3]), low, high, clip=True), [1, -1, 0])
    assert np.allclose(from_unit(np.array([1.5, -3, 9.0]), low, high, clip=True), [2, 0, 3])


def test_scaling_leaves_masked_dimensions_alone():
    mask = np.array([True, False])
    assert np.allclose(to_unit(np.array([4.0, 7.0]), [0.0, 0.0], [4.0, 1.0], mask=mask, clip=True), [1, 7])
    assert np.allclose(from_unit(np.array([1.0, 7.0]), [0.0, 0.0], [4.0, 1.0], mask=mask, clip=True), [4, 7])


def test_openvla_statistics_by_hand():
    # decode: 0.5 (a' + 1)(q99 − q01 + 1e-8) + q01
    q01, q99 = np.array([-0.02, 0.0]), np.array([0.04, 1.0])
    found = from_unit(np.array([0.5, 0.25]), q01, q99, mask=np.array([True, False]), epsilon=1e-8)
    assert np.allclose(found, [0.75 * (0.06 + 1e-8) - 0.02, 0.25], rtol=0, atol=1e-16)


@given(
    action=arrays(np.float32, (2, 3, 4), elements=finite),
    low=arrays(np.float64, 4, elements=st.floats(-5, 5)),
    span=arrays(np.float64, 4, elements=st.floats(0.1, 5)),
    mask=arrays(np.bool_, 4),
    epsilon=st.sampled_from([0.0, 1e-8]),
)
def test_scaling_round_trip(action, low, span, mask, epsilon):
    before = action.copy()
    there = to_unit(action, low, low + span, mask=mask, epsilon=epsilon)
    assert there.dtype == np.float32
    assert np.array_equal(there[..., ~mask], action[..., ~mask])
    assert np.allclose(from_unit(there, low, low + span, mask=mask, epsilon=epsilon), action, atol=2e-5)
    assert np.array_equal(action, before)
    inside = to_unit(low + span * 0.3, low, low + span, clip=True)
    assert np.allclose(inside, -0.4)


def test_what_is_not_a_number_stays_so_when_scaled():
    nan = np.array([np.nan, np.nan])
    for clip in (False, True):
        assert np.isnan(to_unit(nan, [0.0, 3.0], [1.0, 3.0], clip=clip)).all()
        assert np.isnan(from_unit(nan, [0.0, 3.0], [1.0, 3.0], clip=clip)).all()


@pytest.mark.parametrize(
    ("low", "high", "mask", "error", "message"),
    [
        ([0.0], [1.0], None, ShapeError, "one number for each of 2"),
        ([0.0, 0.0], [1.0, np.inf], None, ConfigError, "infinite"),
        ([0.0, 2.0], [1.0, 1.0], None, ConfigError, r"above the upper one at index \[1\]"),
        ([0.0, 0.0], [1.0, 1.0], np.array([1, 0]), ShapeError, "mask: expected bool"),
        ([0.0, 0.0], [1.0, 1.0], np.array([True]), ShapeError, r"mask: expected bool of shape \[2\]"),
    ],
)
def test_scaling_refuses(low, high, mask, error, message):
    for scale in (to_unit, from_unit):
        with pytest.raises(error, match=message):
            scale(np.zeros(2), low, high, mask=mask)


# Formats


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libero", [*VLA[:6], -1]),
        ("maniskill", [*VLA[:6], 1]),
        ("maniskill_panda", VLA),
        ("calvin", [*VLA[:6], 1]),
        ("metaworld", [*VLA[:3], VLA[6]]),
        ("franka_sim", [*VLA[:3], VLA[6]]),
        ("roboverse", [*VLA[:6], 0]),
    ],
)
def test_simulators_by_hand(name, expected):
    found = ACTION_FORMATS.get(name)(VLA)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array(expected, np.float32))


def test_a_closing_gripper():
    closing = VLA.copy()
    closing[6] = 0.1
    assert [float(ACTION_FORMATS.get(name)(closing)[-1]) for name in ("libero", "maniskill")] == [1, -1]
    closing[6] = -0.5
    assert [float(ACTION_FORMATS.get(name)(closing)[-1]) for name in ("calvin", "roboverse")] == [-1, 1]


@pytest.mark.parametrize("name", SIMULATORS)
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3)])
def test_simulators_take_batches_and_change_no_input(name, shape):
    actions = np.random.default_rng(1).uniform(-1, 1, size=(*shape, 7)).astype(np.float32)
    before = actions.copy()
    convert = ACTION_FORMATS.get(name)
    found = convert(actions)
    assert found.shape[:-1] == shape
    for at in np.ndindex(shape):
        assert np.array_equal(found[at], convert(actions[at]))
    if found.size:
        found += 1
    assert np.array_equal(actions, before)
    nan = np.full((*shape, 7), np.nan, np.float32)
    assert np.isnan(convert(nan)).all()


@pytest.mark.parametrize("name", sorted(set(SIMULATORS) - {"maniskill_panda"}))
def test_simulators_refuse_other_actions(name):
    with pytest.raises(ShapeError, match=r"expected the shape \[..., 7\], found \[6\]"):
        ACTION_FORMATS.get(name)(np.zeros(6))


def test_formats_are_built_from_parameters():
    built = ACTION_FORMATS.build("gripper", {"source": "unit_open", "target": "sign_closed", "threshold": 0.5}, place="env.action")
    assert built == Gripper(source="unit_open", target="sign_closed", threshold=0.5)
    with pytest.raises(ConfigError, match=r"env\.action"):
        ACTION_FORMATS.build("gripper", {"source": "unit_open", "target": "closed"}, place="env.action")
    with pytest.raises(UnknownName, match=r"no action format named 'libro'. Did you mean 'libero'"):
        ACTION_FORMATS.get("libro")


def test_a_format_of_a_stranger():
    @register_action_format("test_double")
    def double(action):
        return 2 * np.asarray(action)

    assert ACTION_FORMATS.get("test_double")(VLA)[0] == 2 * VLA[0]


@pytest.mark.parametrize("source", GRIPPER_SIGNS)
@pytest.mark.parametrize("target", GRIPPER_SIGNS)
def test_the_gripper_format_opens_what_is_open(source, target):
    convert = Gripper(source=source, target=target, index=1, threshold=float(convert_gripper(0.6, "unit_open", source)))
    openness = np.array([0.0, 0.59, 0.61, 1.0])
    actions = np.stack([openness, convert_gripper(openness, "unit_open", source)], axis=-1)
    assert np.array_equal(convert(actions)[:, 1], convert_gripper(np.array([0.0, 0, 1, 1]), "unit_open", target))
    assert np.array_equal(convert(actions)[:, 0], openness)


@given(action=arrays(np.float64, (2, 3, 7), elements=st.floats(-1, 1)))
def test_a_chain_and_its_inverse(action):
    chain = Chain(
        (
            Unscale(low=(-0.1,) * 3 + (-0.5,) * 3 + (0.0,), high=(0.2,) * 3 + (0.5,) * 3 + (1.0,), mask=(True,) * 6 + (False,)),
            Rotation(source="axis_angle", target="rot6d"),
            Gripper(source="unit_open", target="sign_closed"),
        )
    )
    found = chain(action)
    assert found.shape == (2, 3, 10)
    assert np.allclose(found[..., -1], 1 - 2 * action[..., -1])
    assert np.allclose(found[..., :3], 0.15 * (action[..., :3] + 1) - 0.1)
    assert np.allclose(chain.inverse(found), action, atol=1e-12)


def test_what_loses_numbers_has_no_inverse():
    for last, name in ((Pick(columns=(0, 1)), "Pick"), (ACTION_FORMATS.get("libero"), "OfSevenNumbers")):
        with pytest.raises(ConfigError, match=f"{name} has no inverse"):
            Chain((Identity(), last)).inverse(np.zeros(2))


def test_columns_from_an_end_that_nobody_knows_have_no_bounds():
    ones = np.ones(1)
    assert np.array_equal(Pick(columns=(-1,), size=3).accepts(-2 * ones, 2 * ones), [[-1, -1, -2], [1, 1, 2]])
    for columns in ((-1,), (0, -1)):
        bound = np.ones(len(columns))
        with pytest.raises(ShapeError, match="count from its end"):
            Pick(columns=columns).accepts(-bound, bound)


def test_formats_refuse_columns_that_are_not_there():
    for convert in (
        Gripper(source="unit_open", target="sign_open", index=7),
        Pick(columns=(0, -8)),
        Rotation(source="quat_wxyz", target="rot6d", start=4),
    ):
        with pytest.raises(ShapeError, match="expected an action with the column"):
            convert(np.zeros(7))
    with pytest.raises(ActionError, match="length 0"):
        Rotation(source="quat_wxyz", target="rot6d")(np.zeros(7))
