"""Other libraries' vector environments: what is seen through the wrapper is what single environments, stepped alone, go through."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, ContractError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.interop.from_gymnasium import from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env
from rlinf.envs.spaces import describe
from rlinf.envs.wrappers.contract import EnvMisuse

NEXT, SAME, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = [NEXT, SAME, OFF]
PATTERNS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)


class Counter(gymnasium.Env):
    """Its state is (seed, steps). Episode `seed % 100` lasts as long as `lengths` says; odd ones terminate, solved, others are cut.

    A reset without seed starts the episode after the last one.
    """

    def __init__(self, lengths=(3,), index=0):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.lengths = lengths
        self.start = 100 * index - 1

    def reset(self, *, seed=None, options=None):
        self.start = self.start + 1 if seed is None else seed
        self.count = 0
        return np.array([self.start, 0.0]), {}

    def step(self, action):
        self.count += 1
        episode = self.start % 100
        ended = self.count == self.lengths[episode % len(self.lengths)]
        odd = episode % 2 == 1
        return np.array([self.start, self.count]), self.count + action[0], ended and odd, ended and not odd, {"won": ended and odd}


class OwnVector(VectorEnv):
    """A library that takes no mask: it resets single environments inside `step`, or all at once with one seed."""

    def __init__(self, envs, mode, final="final_obs"):
        self.envs, self.num_envs, self.final = envs, len(envs), final
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.single_observation_space, self.single_action_space = envs[0].observation_space, envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.resets = np.zeros(self.num_envs, bool)
        self.buffer = np.zeros((self.num_envs, 2))

    def reset(self, *, seed=None, options=None):
        assert not options
        assert seed is None or isinstance(seed, int)
        for i, env in enumerate(self.envs):
            self.buffer[i] = env.reset(seed=None if seed is None else seed + 100 * i)[0]
        self.resets[:] = False
        return self.buffer, {}

    def step(self, actions):
        reward, terminated, truncated = np.zeros(self.num_envs), np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        won, final = np.zeros(self.num_envs, bool), np.full((self.num_envs, 2), np.nan)
        final_won = np.zeros(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            if self.mode is NEXT and self.resets[i]:
                self.buffer[i] = env.reset()[0]
                continue
            self.buffer[i], reward[i], terminated[i], truncated[i], info = env.step(actions[i])
            won[i] = info["won"]
            if self.mode is SAME and (terminated[i] or truncated[i]):
                final[i], final_won[i], won[i] = self.buffer[i], won[i], False
                self.buffer[i] = env.reset()[0]
        self.resets = terminated | truncated
        infos = {"won": won}
        if self.mode is SAME:
            infos |= {self.final: final, "final_info": {"won": final_won}}
        return self.buffer, reward, terminated, truncated, infos


def alone(lengths, index, seeds, actions):
    """The transitions of one environment by itself; `seeds` gives each episode's, None where the environment goes on by itself."""
    env = Counter(lengths, index)
    seeds = iter(seeds)
    transitions, ended, before = [], True, None
    for action in actions:
        if ended:
            before, _ = env.reset(seed=next(seeds))
        after, reward, terminated, truncated, info = env.step(action)
        transitions.append((*before, action[0], np.float32(reward), *after, terminated, truncated, info["won"]))
        before, ended = after, terminated or truncated
    return transitions


def through(env, steps, first=3):
    """What the contract shows of each environment, its actions, and its resets: (seed of environment 0, whether all were reset)."""
    n = env.num_envs
    transitions, actions, resets = ([[] for _ in range(n)] for _ in range(3))
    draw = np.random.default_rng(first)

    def reset(done):
        seed = int(draw.integers(1000))
        for i in np.flatnonzero(done):
            resets[i].append((seed, done.all()))
        options = {} if done.all() else {"reset_mask": done}
        return env.reset(seed=[seed + i for i in range(n)], options=options)[0]["states"]

    states = reset(np.ones(n, bool))
    for _ in range(steps):
        action = draw.uniform(-1, 1, (n, 1)).astype(np.float32)
        observation, reward, terminated, truncated, infos = env.step(action)
        after, done = observation["states"], terminated | truncated
        for i in np.flatnonzero(infos.get("executed", np.ones(n, bool))):
            transitions[i].append(
                (*states[i], action[i, 0], reward[i], *after[i], terminated[i], truncated[i], infos["success"][i])
            )
            actions[i].append(action[i])
        assert np.array_equal(infos["_episode"], done)
        assert np.array_equal(infos["episode"]["episode_len"][done], after[done, 1])
        states = after
        if done.any():
            states = reset(done)
            assert np.array_equal(states[~done], after[~done])
    return transitions, actions, resets


def counters(patterns):
    return [lambda i=i, lengths=lengths: Counter(lengths, i) for i, lengths in enumerate(patterns)]


def own(patterns, mode, **settings):
    return OwnVector([make() for make in counters(patterns)], mode, **settings)


def wrap(env, **settings):
    return from_vector_env(env, max_episode_steps=99, success_key="won", **settings)


@settings(max_examples=40)
@given(patterns=PATTERNS, mode=st.sampled_from(MODES), first=st.integers(0, 99))
def test_gymnasiums_vector_loses_and_invents_nothing(patterns, mode, first):
    """Each environment is reset alone, with a seed of its own, in all three modes."""
    seen, actions, resets = through(wrap(SyncVectorEnv(counters(patterns), autoreset_mode=mode)), 12, first)
    for i, lengths in enumerate(patterns):
        assert seen[i] == alone(lengths, i, [seed + i for seed, _ in resets[i]], actions[i])


@settings(max_examples=40)
@given(patterns=PATTERNS, mode=st.sampled_from([SAME, NEXT]), first=st.integers(0, 99))
def test_a_library_that_resets_by_itself_loses_and_invents_nothing(patterns, mode, first):
    """All at once take one seed, 100 apart by this library; alone they go on by themselves, in NEXT_STEP one step later."""
    seen, actions, resets = through(wrap(own(patterns, mode), lagging=mode is NEXT), 12, first)
    for i, lengths in enumerate(patterns):
        assert seen[i] == alone(lengths, i, [seed + 100 * i if full else None for seed, full in resets[i]], actions[i])


@settings(max_examples=20)
@given(patterns=PATTERNS, mode=st.sampled_from([SAME, NEXT]), first=st.integers(0, 99))
def test_environments_of_one_keep_seeds_and_single_resets_in_any_library(patterns, mode, first):
    singles = [lambda i=i, p=p: as_single_env(wrap(OwnVector([Counter(p, i)], mode))) for i, p in enumerate(patterns)]
    env = from_vector_env(SyncVectorEnv(singles, autoreset_mode=OFF), max_episode_steps=99, success_key="success")
    assert not env.metadata["waived"]
    seen, actions, resets = through(env, 12, first)
    for i, lengths in enumerate(patterns):
        assert seen[i] == alone(lengths, i, [seed + i for seed, _ in resets[i]], actions[i])


def test_worker_processes():
    patterns = [[2, 3], [3, 1]]
    env = wrap(AsyncVectorEnv(counters(patterns), autoreset_mode=NEXT))
    seen, actions, resets = through(env, 12)
    env.close()
    for i, lengths in enumerate(patterns):
        assert seen[i] == alone(lengths, i, [seed + i for seed, _ in resets[i]], actions[i])


@pytest.mark.parametrize("mode", MODES)
def test_the_contract_holds_with_gymnasiums_vectors(mode):
    def build():
        envs = [lambda: gymnasium.make("CartPole-v1")] * 3
        return from_vector_env(SyncVectorEnv(envs, autoreset_mode=mode), max_episode_steps=500)

    EnvContract(factory=build).run()


def test_the_limit_is_read_from_the_library_and_never_shorter_than_one_that_it_cannot_follow():
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    assert vector.metadata["autoreset_mode"] is NEXT
    assert from_vector_env(vector).metadata["max_episode_steps"] == 500
    with pytest.raises(ConfigError, match=r"a limit of 20 .* own limit is 500.*Use 500"):
        from_vector_env(vector, max_episode_steps=20)
    with pytest.raises(ConfigError, match="cuts episodes after 500 steps, before 501"):
        from_vector_env(vector, max_episode_steps=501)
    with pytest.raises(ConfigError, match="announces no step limit"):
        from_vector_env(own([[3]], SAME))


def test_a_shorter_limit_of_ours_cuts_episodes_in_mid_air():
    env = from_vector_env(SyncVectorEnv(counters([[9], [2]]), autoreset_mode=NEXT), max_episode_steps=4, success_key="won")
    seen, actions, resets = through(env, 12)
    assert [t[-2] for t in seen[0]] == [False, False, False, True] * 3
    uncut = alone([9], 0, [resets[0][0][0]], actions[0][:4])
    assert [t[:-2] for t in seen[0][:4]] == [t[:-2] for t in uncut]


def test_next_step_with_running_neighbours_is_refused_unless_it_may_lag():
    env = wrap(own([[1], [3]], NEXT))
    assert set(env.metadata["waived"]) == {"partial_reset", "place", "seeds"}
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvMisuse, match=r"environments \[0\] in its next step, for which it needs the actions of all"):
        env.reset(options={"reset_mask": terminated | truncated})
    with pytest.raises(ConfigError, match="can lag"):
        wrap(own([[1], [3]], SAME), lagging=True)
    lagging = wrap(own([[1], [3]], NEXT), lagging=True)
    assert "final_observation" in lagging.metadata["waived"]


def test_ends_that_coincide_need_no_lag():
    seen, actions, resets = through(wrap(own([[2, 3], [2, 3]], NEXT)), 12)
    assert all(full for _, full in resets[1])
    assert seen[1] == alone([2, 3], 1, [seed + 100 for seed, _ in resets[1]], actions[1])


def test_a_running_environment_cannot_be_reset_alone_by_such_a_library():
    env = wrap(own([[5], [5]], SAME))
    env.reset(seed=0)
    with pytest.raises(EnvMisuse, match=r"can't reset environments \[1\] alone"):
        env.reset(options={"reset_mask": np.array([False, True])})


def test_a_final_observation_that_is_missing_is_an_error():
    env = wrap(own([[1], [2]], SAME, final="elsewhere"))
    env.reset(seed=0)
    with pytest.raises(ContractError, match=r"no 'final_obs' for environments \[0\]"):
        env.step(np.zeros((2, 1), np.float32))


def test_final_observation_by_its_older_name():
    seen, _, _ = through(wrap(own([[2], [3]], SAME, final="final_observation")), 12)
    assert [t[5] for t in seen[1]] == [1, 2, 3] * 4


@pytest.mark.parametrize("success_key", [None, "won"])
def test_a_library_without_a_success_key_knows_no_success(success_key):
    env = from_vector_env(SyncVectorEnv([Counter] * 2, autoreset_mode=OFF), max_episode_steps=5, success_key=success_key)
    assert describe(env).knows_success == (success_key is not None)


def test_what_must_be_told():
    vector = own([[1]], SAME)
    vector.metadata = {}
    with pytest.raises(ConfigError, match="where the library resets is not known, found None"):
        wrap(vector)
    wrap(vector, autoreset_mode="SameStep")
    env = from_vector_env(own([[3]], SAME), max_episode_steps=9, success_key="solved")
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"says nothing of 'solved'\. Its infos hold: final_info, final_obs, won"):
        env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(ConfigError, match="without autoreset can't reset by itself"):
        wrap(SyncVectorEnv(counters([[1]]), autoreset_mode=OFF), resets="own")


BOX = gymnasium.spaces.Box
IMAGE = BOX(0, 255, (4, 5, 3), np.uint8)


class Still(gymnasium.Env):
    """Never moves."""

    action_space = BOX(-1, 1, (1,), np.float32)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.seen = self.observation_space.sample()
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, False, False, {}


def still(space, keys=None):
    return from_vector_env(SyncVectorEnv([lambda: Still(space)] * 2, autoreset_mode=SAME), max_episode_steps=3, keys=keys)


def test_observations_by_embodied_key():
    space = gymnasium.spaces.Dict(
        {"camera": IMAGE, "q": BOX(-1, 1, (2, 2)), "mode": gymnasium.spaces.Discrete(3, start=1), "text": gymnasium.spaces.Text(9)}
    )
    env = still(space, {"main_images": "camera", "states": ["mode", "q"], "task_descriptions": "text"})
    observation, _ = env.reset(seed=1)
    raw = env.unwrapped.envs[1].seen
    assert np.array_equal(observation["main_images"][1], raw["camera"])
    assert np.array_equal(observation["states"][1], [*(np.arange(1, 4) == raw["mode"]), *raw["q"].ravel()])
    assert observation["task_descriptions"][1] == raw["text"]
    assert observation in env.observation_space
    assert set(still(IMAGE).single_observation_space) == {"main_images"}
    kept = gymnasium.spaces.Dict({"states": BOX(-1, 1, (2,)), "wrist_images": IMAGE})
    assert set(still(kept).single_observation_space) == {"states", "wrist_images"}
    nested = gymnasium.spaces.Dict({"b": BOX(0, 1, (2,)), "a": gymnasium.spaces.Dict({"x": BOX(2, 3, (3,))})})
    assert still(nested).reset(seed=0)[0]["states"][:, :3].min() >= 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (None, "'states' can't be made of"),
        ({"states": "qq"}, "no observation 'qq'. Did you mean 'q'"),
        ({"state": "q"}, "'state' is no embodied key. Did you mean 'states'"),
        ({"main_images": ["c", "q"]}, "'main_images' can't be made of"),
    ],
)
def test_observations_that_cannot_be_read(keys, message):
    with pytest.raises(ConfigError, match=message):
        still(gymnasium.spaces.Dict({"c": IMAGE, "q": BOX(-1, 1, (2,))}), keys)
