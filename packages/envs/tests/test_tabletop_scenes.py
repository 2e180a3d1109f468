"""The worlds themselves: by hand, and what must hold in all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.envs.tabletop.canvas import BLUE, FLOOR, GREEN, RED, TABLE, Canvas
from rlinf.envs.tabletop.keyed_random import KeyedRandom
from rlinf.envs.tabletop.pick_place import PickPlace
from rlinf.envs.tabletop.push import Push
from rlinf.envs.tabletop.reach import Reach
from rlinf.envs.tabletop.slots import Slots

SCENES = [Reach(), Push(), Slots(), PickPlace()]


def rows(**entries):
    return {key: np.atleast_1d(np.array(value, np.float64))[None] for key, value in entries.items()}


# Draws


def test_draws_depend_on_their_own_key_alone():
    together = KeyedRandom([3, 5, 9], 2).uniform(-1, 1, 4)
    alone = KeyedRandom(5, 2).uniform(-1, 1, 4)
    assert np.array_equal(together[1], alone[0])
    assert not np.array_equal(KeyedRandom(2, 5).uniform(-1, 1, 4), alone)
    steps = KeyedRandom(5, 2)
    assert np.array_equal(np.concatenate([steps.uniform(-1, 1, 2), steps.uniform(-1, 1, 2)], axis=-1), alone)


def test_draws_are_the_same_on_every_machine():
    # SplitMix64's finaliser, by Python's integers.
    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    state = mix((mix((7 + golden) % 2**64) + golden) % 2**64)
    expected = [(mix((state + golden * k) % 2**64) >> 11) / 2**53 for k in (1, 2, 3)]
    assert KeyedRandom(7).uniform(0, 1, 3)[0].tolist() == expected


def test_draws_are_uniform_and_without_correlation():
    u = KeyedRandom(np.arange(20_000)).uniform(0, 1, 3)
    assert np.abs(u.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs(u.var(axis=0) - 1 / 12).max() < 0.002
    assert np.abs(np.corrcoef(np.concatenate([u[:-1], u[1:]], axis=-1).T) - np.eye(6)).max() < 0.03
    assert np.bincount(KeyedRandom(np.arange(3000)).choice(3)).min() > 900
    orders, counts = np.unique(KeyedRandom(np.arange(6000)).order(3), axis=0, return_counts=True)
    assert len(orders) == 6
    assert counts.min() > 850


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.name)
def test_initial_worlds(scene):
    n = 3000
    goal = np.arange(n) % len(scene.goals)
    world = scene.start(KeyedRandom(np.arange(n)), goal)
    assert not scene.solved(world).any()
    assert (np.abs(scene.expert(world)) <= 1).all()
    assert len(np.unique(scene.states(world), axis=0)) == n
    if scene.name == "push":
        assert np.linalg.norm(world["hand"] - world["puck"], axis=-1).min() > 0.23
        assert np.linalg.norm(world["target"] - world["puck"], axis=-1).min() > 0.4
    if scene.name == "pick_place":
        points = [world["plate"], world["blocks"][:, 0, :2], world["blocks"][:, 1, :2]]
        gaps = np.array([np.linalg.norm(points[i] - points[j], axis=-1) for i, j in ((0, 1), (0, 2), (1, 2))])
        assert (gaps < 0.44).mean() < 1e-3


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.name)
def test_a_step_changes_nothing_that_it_was_given(scene):
    world = scene.start(KeyedRandom(np.arange(4)), np.zeros(4, np.int64))
    before = {key: value.copy() for key, value in world.items()}
    action = np.ones((4, scene.action_size))
    after = scene.move(world, action)
    scene.expert(world)
    assert set(after) == set(before)
    for key, value in before.items():
        assert np.array_equal(world[key], value)
        assert after[key].shape == value.shape
    assert (action == 1).all()


# Push


def test_push_by_hand():
    world = rows(hand=[-0.3, 0.0], puck=[0.0, 0.0], target=[0.5, 0.0])
    away = Push().move(world, np.array([[0.5, 0.0]]))
    assert np.allclose(away["hand"], [[-0.25, 0]])
    assert np.array_equal(away["puck"], world["puck"])
    touched = Push().move(world, np.array([[1.0, 0.0]]))
    assert np.allclose(touched["hand"], [[-0.2, 0]])
    assert np.allclose(touched["puck"], [[0.03, 0]])
    assert not Push().solved(touched)[0]
    assert Push().solved(rows(hand=[0.0, 0], puck=[0.41, 0.0], target=[0.5, 0.0]))[0]


def test_the_rim_stops_puck_and_finger():
    world = rows(hand=[0.5, 0.0], puck=[0.8, 0.0], target=[0.0, 0.0])
    for _ in range(5):
        world = Push().move(world, np.array([[1.0, 0.0]]))
    assert np.allclose(world["puck"], [[0.85, 0]])
    assert np.allclose(world["hand"], [[0.62, 0]])


def test_an_oblique_push_moves_along_the_line_of_contact():
    world = rows(hand=[-0.23, 0.1], puck=[0.0, 0.0], target=[0.5, 0.0])
    for _ in range(3):
        before = world
        world = Push().move(world, np.array([[0.25, 0.0]]))
    moved = world["puck"] - before["puck"]
    assert moved[0, 0] > 0 > moved[0, 1]


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), bias=st.tuples(st.floats(-1, 1), st.floats(-1, 1)))
def test_nothing_overlaps_or_leaves_the_table(seed, bias):
    scene, world = Push(), Push().start(KeyedRandom(seed), np.zeros(1, np.int64))
    draw = np.random.default_rng(seed)
    for _ in range(40):
        after = scene.move(world, np.clip(draw.uniform(-1, 1, (1, 2)) + bias, -1, 1))
        assert np.linalg.norm(after["puck"] - after["hand"]) > 0.23 - 1e-6 or np.abs(after["hand"]).max() == 1
        assert np.abs(after["puck"]).max() <= 0.85
        assert np.abs(after["hand"]).max() <= 1
        if not np.array_equal(after["puck"], world["puck"]):
            assert np.linalg.norm(after["puck"] - after["hand"]) < 0.23 + 0.15
        world = after


# Pick and place


def carry(world, *actions):
    for action in actions:
        world = PickPlace().move(world, np.array([action], float))
    return world


def table(**changes):
    world = rows(
        hand=[0.0, 0, 0.05], blocks=[[0.05, 0, 0], [0.5, 0.5, 0]], plate=[-0.5, -0.5], opening=1.0, held=-1.0, goal=0.0, **changes
    )
    return {key: value[:, 0] if key in ("opening", "held", "goal") else value for key, value in world.items()}


OPEN, CLOSE = [0, 0, 0, 1], [0, 0, 0, -1]


def test_grasp_carry_and_drop_by_hand():
    held = carry(table(), CLOSE)
    assert (held["opening"][0], held["held"][0]) == (0.5, 0)
    lifted = carry(held, [1, 0, 1, -1], [0, 1, 1, -1])
    assert np.allclose(lifted["hand"], [[0.1, 0.1, 0.25]])
    assert np.allclose(lifted["blocks"][0, 0], [0.1, 0.1, 0.25])
    assert carry(lifted, OPEN)["held"][0] == 0
    dropped = carry(lifted, OPEN, OPEN, [1, 0, 0, 1])
    assert dropped["held"][0] == -1
    assert np.allclose(dropped["blocks"][0, 0], [0.1, 0.1, 0])
    assert np.array_equal(dropped["blocks"][0, 1], [0.5, 0.5, 0])


def test_what_is_not_grasped():
    shut = {**table(), "opening": np.zeros(1)}
    assert carry(shut, CLOSE)["held"][0] == -1
    high = table()
    high["hand"] = np.array([[0.05, 0, 0.3]])
    assert carry(high, CLOSE)["held"][0] == -1
    far = table()
    far["hand"] = np.array([[-0.1, 0, 0.0]])
    assert carry(far, CLOSE)["held"][0] == -1


def test_success_is_the_named_block_on_the_plate_let_go():
    scene, world = PickPlace(), table()
    world["blocks"] = np.array([[[-0.5, -0.4, 0], [0.5, 0.5, 0]]])
    assert scene.solved(world)[0]
    assert scene.distance(world)[0] == pytest.approx(0.1)
    assert not scene.solved({**world, "goal": np.ones(1)})[0]
    assert not scene.solved({**world, "held": np.zeros(1)})[0]


# Pictures


def test_a_disc_is_where_it_should_be():
    at = np.array([[0.13, -0.31], [-0.4, 0.52]])
    canvas = Canvas(2, 40, reach=1.0)
    canvas.disc(at, 0.2, (0, 0, 0))
    image = canvas.finish()
    dark = (TABLE[0] - image[..., 0].astype(float)) / TABLE[0]
    pixel = (np.arange(40) + 0.5) / 20 - 1
    mass = dark.sum(axis=(1, 2))
    assert np.allclose((dark.sum(axis=1) @ pixel) / mass, at[:, 0], atol=0.003)
    assert np.allclose((dark.sum(axis=2) @ -pixel) / mass, at[:, 1], atol=0.003)
    assert np.allclose(mass / 400, np.pi * 0.2**2, rtol=0.02)


def test_a_box_fills_its_pixels_exactly():
    canvas = Canvas(1, 20, reach=1.0)
    canvas.box(np.array([[0.5, 0.5]]), 0.2, RED)
    image = canvas.finish()[0]
    assert (image[3:7, 13:17] == RED).all()
    assert (image == RED).all(axis=-1).sum() == 16
    assert (image == TABLE).all(axis=-1).sum() == 400 - 16


def test_pictures_do_not_depend_on_each_other():
    world = PickPlace().start(KeyedRandom(np.arange(9)), np.zeros(9, np.int64))
    centre, reach = PickPlace().wrist_view(world)

    def draw(i):
        canvas = Canvas(len(centre[i]), 24, centre=centre[i], reach=reach[i])
        PickPlace().draw(canvas, {key: value[i] for key, value in world.items()})
        return canvas.finish()

    together = draw(slice(None))
    for i in range(9):
        assert np.array_equal(together[i], draw(slice(i, i + 1))[0])


def test_strokes_outside_the_picture_leave_no_trace():
    canvas = Canvas(2, 16, centre=np.array([[0.0, 0.0], [0.9, 0.0]]), reach=0.3)
    canvas.disc(np.array([[0.8, 0.8], [0.5, 0.0]]), 0.1, RED)
    image = canvas.finish()
    assert (image[0] == TABLE).all()
    assert not (image[1] == RED).all(axis=-1).any()
    assert (image[1, :, -5:] == FLOOR).all()


def test_blocks_have_their_colours():
    world = Slots().start(KeyedRandom(np.arange(5)), np.zeros(5, np.int64))
    canvas = Canvas(5, 64, reach=1.0)
    Slots().draw(canvas, world)
    image = canvas.finish()
    for i in range(5):
        for block, color in zip(world["blocks"][i], (RED, GREEN, BLUE), strict=True):
            column, row = int((block[0] + 1) * 32), int((1 - block[1]) * 32)
            assert tuple(image[i, row, column]) == color
