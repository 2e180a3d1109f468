from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorWrapper
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError, UnknownName
from rlinf.envs import Gymnasium
from rlinf.envs.assembly import assemble
from rlinf.envs.wrappers.contract import EnforceContract, EnvMisuse
from rlinf.envs.wrappers.episodes import MaskedActions


@pytest.fixture
def env(counters):
    env = counters(2, 9)
    yield env
    env.close()


ZERO = np.zeros((2, 2), np.float32)


def test_step_before_reset(env):
    with pytest.raises(EnvMisuse, match=r"^env\.step: the environments were never reset"):
        env.step(ZERO)


def test_partial_reset_before_a_full_one(env):
    with pytest.raises(EnvMisuse, match=r"^env\.reset: environments \[1\] were never reset"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})


def test_wrong_shape(env):
    env.reset(seed=1)
    with pytest.raises(ShapeError, match=r"^env\.step: expected actions of shape \[2, 2\], found \[2, 3\]"):
        env.step(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"is nan at index \[0\]\. Find out why"),
        (np.inf, r"is inf at index \[0\]\. Find out why"),
        (1.001, r"outside \[-1"),
        (-2, "outside"),
    ],
)
def test_wrong_value(env, value, message):
    env.reset(seed=1)
    action = ZERO.copy()
    action[1, 0] = value
    with pytest.raises(EnvMisuse, match=r"^env\.step: the action of environment 1 .*" + message):
        env.step(action)
    assert env.step(ZERO)[0]["states"][:, 1].tolist() == [1, 1], "a refused action moves nothing"


class Broken(VectorWrapper):
    """Environment 1 gives the numbers in `wrong` from its second step on."""

    wrong: dict

    def step(self, actions):
        observation, reward, *rest = self.env.step(actions)
        if observation["states"][1, 1] == 2:
            observation["states"][1, 0] = self.wrong.get("states", 0.0)
            reward[1] = self.wrong.get("reward", 0.0)
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": np.nan}, r"the reward of environment 1 is nan"),
        ({"reward": -np.inf}, r"the reward of environment 1 is -inf"),
        ({"states": np.nan}, r"observation 'states' of environment 1 is nan at index \[0\]"),
        ({"states": np.inf}, None),
    ],
)
def test_what_is_not_a_number_is_refused(counters, wrong, message):
    """An infinite observation may be meant, such as a depth where there is nothing."""
    whole = counters(9, 9)
    broken = Broken(whole.env)
    broken.wrong = wrong
    env = EnforceContract(broken)
    env.reset(seed=1)
    env.step(ZERO)
    if message is None:
        env.step(ZERO)
    else:
        with pytest.raises(NonFiniteError, match=r"^env\.step: " + message):
            env.step(ZERO)


def test_a_reset_that_shows_what_is_not_a_number_is_refused(counters):
    class Blind(VectorWrapper):
        def reset(self, **given):
            observation, infos = self.env.reset(**given)
            observation["states"][0, 1] = np.nan
            return observation, infos

    whole = counters(9, 9)
    with pytest.raises(NonFiniteError, match=r"^env\.reset: observation 'states' of environment 0 is nan at index \[1\]"):
        EnforceContract(Blind(whole.env)).reset(seed=1)


def test_rounding_errors_at_the_bound_are_tolerated(env):
    env.reset(seed=1)
    observation, *_ = env.step(np.full((2, 2), 1.0 + 1e-6, np.float32))
    assert observation["states"][:, 1].tolist() == [1.0, 1.0], "the step was taken"


def test_integer_actions():
    env = Gymnasium(env_id="CartPole-v1").make(2, max_episode_steps=5, ignore_terminations=False, render=False)
    env.reset(seed=1)
    for wrong in (2, -1):
        with pytest.raises(EnvMisuse, match=r"the action of environment 1 is -?\d at index \[\], outside \[0, 1\]"):
            env.step(np.array([0, wrong]))
    with pytest.raises(EnvMisuse, match="expected integer actions, found float64"):
        env.step(np.array([0.0, 1.0]))
    env.step(np.array([0, 1], np.int32))
    env.close()


def test_step_after_the_end(env):
    env.reset(seed=1)
    env.step(ZERO)
    done = env.step(ZERO)[2]
    with pytest.raises(EnvMisuse, match=r"^env\.step: the episodes of environments \[0\] have ended.*reset_mask"):
        env.step(ZERO)
    env.reset(seed=2, options={"reset_mask": done})
    env.step(ZERO)


def test_closed(env):
    env.reset(seed=1)
    simulators = env.unwrapped.envs
    env.close()
    env.close()
    assert [simulator.closed for simulator in simulators] == [1, 1]
    assert env.closed
    for call in (lambda: env.step(ZERO), lambda: env.reset(seed=1)):
        with pytest.raises(EnvMisuse, match="closed"):
            call()


def test_closed_above_one_that_forgets_it(counters):
    class Forgets(VectorWrapper):
        def close(self, **kwargs):
            pass

    env = EnforceContract(Forgets(counters(9, 9)))
    env.reset(seed=1)
    env.close()
    with pytest.raises(EnvMisuse, match="closed"):
        env.step(ZERO)


@pytest.mark.parametrize(
    ("mask", "error"),
    [([True], ShapeError), ([1, 0], ShapeError), (np.zeros(2, np.bool_), EnvMisuse)],
)
def test_wrong_mask(env, mask, error):
    env.reset(seed=1)
    with pytest.raises(error, match=r"env\.reset: reset_mask"):
        env.reset(seed=1, options={"reset_mask": np.array(mask)})


def test_a_mask_may_be_a_list(env):
    env.reset(seed=1)
    assert env.reset(seed=[7, 8], options={"reset_mask": [True, False]})[0]["states"][:, 0].tolist() == [7, 2]


def test_wrong_seeds(env):
    with pytest.raises(ShapeError, match=r"expected 2 entries of seed, found 3"):
        env.reset(seed=[1, 2, 3])
    for seed in (-1, 2**31):
        with pytest.raises(EnvMisuse, match=r"seeds must lie in \[0, 2\*\*31\)"):
            env.reset(seed=[1, seed])


def test_one_seed_means_one_for_each(env):
    assert env.reset(seed=7)[0]["states"][:, 0].tolist() == [7, 8]


def test_missing_seeds_are_drawn_and_differ(env):
    starts = [tuple(env.reset()[0]["states"][:, 0]) for _ in range(3)]
    assert len(set(starts)) == 3
    assert all(a != b for a, b in starts)


def test_options_of_the_caller_are_not_changed(env):
    env.reset(seed=1)
    options = {"reset_mask": np.array([True, False])}
    env.reset(seed=1, options=options)
    assert list(options) == ["reset_mask"]


class Asked(gymnasium.Env):
    """Says in its state with what it was reset: seed, task and initial state, -1 where there was none."""

    observation_space = gymnasium.spaces.Dict({"states": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)})
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, takes):
        self.metadata = {"reset_options": takes}

    def reset(self, *, seed=None, options=None):
        assert options is None or set(options) <= set(self.metadata["reset_options"])
        options = options or {}
        return {"states": np.array([seed, options.get("task", -1), options.get("init_id", -1)], np.float64)}, {}


def asked(*takes, num_envs=3):
    return assemble([lambda: Asked(takes)] * num_envs, max_episode_steps=5, camera=None)


def test_each_environment_gets_its_own_row_of_the_options():
    env = asked("task", "init_id")
    assert env.metadata["reset_options"] == ("task", "init_id")
    states = env.reset(seed=7, options={"task": [4, None, 2], "init_id": np.array([None, 1, 1])})[0]["states"]
    assert states[:, 1:].tolist() == [[4, -1], [-1, 1], [2, 1]]
    assert states[0, 0] == 7
    mask = np.array([False, True, False])
    states = env.reset(seed=[None, 3, -5], options={"task": [-1, 6, "no"], "reset_mask": mask})[0]["states"]
    assert states[:, 1:].tolist() == [[4, -1], [6, -1], [2, 1]], "entries outside the mask mean nothing"
    assert states[1, 0] == 3


def test_an_initial_state_sets_the_seed():
    for env in (asked("init_id"), asked()):
        first = env.reset(seed=1, options={"init_id": [5, None, 5]})[0]["states"]
        second = env.reset(seed=2, options={"init_id": 5})[0]["states"]
        other = env.reset(seed=2, options={"init_id": 6})[0]["states"]
        assert (first[[0, 2]] == second[[1, 1]]).all()
        assert (second[:, 0] != other[:, 0]).all()
        assert first[1, 0] == 2, "without an initial state the caller's seed counts"
        assert env.metadata["reset_options"] == ("init_id",)


def test_the_seed_of_an_initial_state_stays_the_same_for_ever():
    states = asked(num_envs=4).reset(options={"init_id": [0, 1, 2, 3]})[0]["states"]
    assert states[:, 0].tolist() == [1044826401, 182601868, 553867858, 1565153328]


def test_a_seed_among_the_options():
    env = asked()
    assert env.reset(options={"seed": 7})[0]["states"][:, 0].tolist() == [7, 8, 9]
    assert env.reset(options={"seed": np.array([3, 2, 1])})[0]["states"][:, 0].tolist() == [3, 2, 1]
    with pytest.raises(EnvMisuse, match="two seeds"):
        env.reset(seed=1, options={"seed": 1})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"init": 1},
            UnknownName,
            r"^env\.reset: no option is named 'init'\. Did you mean 'init_id'\? Options: init_id, reset_mask",
        ),
        ({"task": "red"}, ConfigError, r"^env\.reset: option 'task' was given, but this environment has no tasks"),
        ({"init_id": [1, 2]}, ShapeError, "expected 3 entries of init_id, found 2"),
        ({"init_id": -1}, ConfigError, "init_id must be at least 0, found -1"),
        ({"init_id": 1.5}, ConfigError, r"init_id must be .*, found 1\.5"),
        ({"init_id": [True, 0, 0]}, ConfigError, "init_id must be .*, found True"),
        ({"seed": [1, 2]}, ShapeError, "expected 3 entries of seed, found 2"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        asked().reset(options=options)


def test_a_task_is_a_name_or_a_number():
    with pytest.raises(ConfigError, match=r"name or the number of a task, found 1\.5"):
        asked("task").reset(seed=0, options={"task": [0, "red", 1.5]})


def test_who_can_not_be_seeded_has_no_numbered_states():
    whole = asked()
    whole.unwrapped.metadata["waived"] = {"pure_reset": "the simulator draws by itself"}
    env = EnforceContract(whole.unwrapped)
    assert env.metadata["reset_options"] == ()
    env.reset(seed=0, options={"init_id": None})
    with pytest.raises(ConfigError, match="no numbered initial states"):
        env.reset(seed=0, options={"init_id": 1})


def test_masked_actions_pass_by_what_has_ended(env):
    env.reset(seed=1)
    env.step(ZERO)
    done = env.step(ZERO)[2]
    assert done.tolist() == [True, False]
    observation, reward, terminated, _, infos = env.step(MaskedActions(ZERO + np.float32(0.5), ~done))
    assert observation["states"][:, 1].tolist() == [2, 3]
    assert reward.tolist() == [0, 0.5]
    assert terminated.tolist() == [True, False]
    assert infos["_episode"].tolist() == [False, False]
    with pytest.raises(EnvMisuse, match=r"the episodes of environments \[0\] have ended"):
        env.step(MaskedActions(ZERO, np.array([True, True])))
    with pytest.raises(EnvMisuse, match="is nan"):
        env.step(MaskedActions(np.full((2, 2), np.nan, np.float32), ~done))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_reach_only_who_has_a_device(counters, device):
    torch = pytest.importorskip("torch")
    taken = []

    class Device(VectorWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.metadata = {**env.metadata, **({"device": device} if device else {})}

        def step(self, actions):
            taken.append(type(actions))
            return self.env.step(np.asarray(actions))

    whole = counters(9, 9)
    env = EnforceContract(Device(whole.env))
    env.reset(seed=0)
    env.step(torch.zeros(2, 2))
    assert taken == [torch.Tensor if device else np.ndarray]
    with pytest.raises(EnvMisuse, match=r"is nan at index \[1\]"):
        env.step(torch.tensor([[0.0, float("nan")], [0.0, 0.0]]))


NUMBERS = st.one_of(st.none(), st.integers(0, 5))
ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 2**31 - 1), NUMBERS, NUMBERS), min_size=3, max_size=3)


@settings(max_examples=40)
@given(st.lists(ROWS.filter(lambda rows: any(row[0] for row in rows)), min_size=1, max_size=4))
def test_a_row_is_what_its_own_last_reset_asked_for(resets):
    env, twin = asked("task", "init_id"), asked("task", "init_id", num_envs=1)
    expected = env.reset(seed=0)[0]["states"]
    for rows in resets:
        mask, seeds, tasks, numbers = (list(column) for column in zip(*rows, strict=True))
        options = {"reset_mask": np.array(mask), "task": tasks, "init_id": numbers}
        states = env.reset(seed=seeds, options=options)[0]["states"]
        for i, (chosen, seed, task, number) in enumerate(rows):
            if chosen:
                expected[i] = twin.reset(seed=seed, options={"task": task, "init_id": number})[0]["states"][0]
                assert expected[i, 1:].tolist() == [-1 if task is None else task, -1 if number is None else number]
                assert number is not None or expected[i, 0] == seed
        assert np.array_equal(states, expected)
