"""Our environments in the hands of others: Gymnasium's vectors agree, its checker passes, a PPO that knows nothing of us learns."""

from __future__ import annotations

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_seed
from rlinf.core.testing.env import EnvContract
from rlinf.envs import Gymnasium, Tabletop
from rlinf.envs.interop.from_gymnasium import from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env, with_autoreset
from rlinf.envs.wrappers.rewards import ShapedReward

NEXT, SAME, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
CARTPOLE = Gymnasium(env_id="CartPole-v1")
REACH = Tabletop(task="reach", reward_mode="progress")


def make(config, num_envs, limit=None):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=False, render=False)


class Keyed(gymnasium.Wrapper):
    """A single environment whose resets without a seed take the seeds that `with_autoreset` takes."""

    def reset(self, *, seed=None, options=None):
        self.first, self.episode = (seed, 0) if seed is not None else (self.first, self.episode + 1)
        if seed is None:
            seed = keyed_seed(self.first, "autoreset", self.episode) % 2**31
        return self.env.reset(seed=seed)


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_every_step_is_that_of_gymnasiums_own_vector(mode):
    """200 steps of three poles, some of which fall and some of which reach the limit of 15 steps."""
    theirs = SyncVectorEnv([lambda: Keyed(gymnasium.make("CartPole-v1", max_episode_steps=15))] * 3, autoreset_mode=mode)
    ours = with_autoreset(make(CARTPOLE, 3, limit=15), mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert np.array_equal(ours.reset(seed=4)[0]["states"], theirs.reset(seed=4)[0])
    ends = np.zeros(2, int)
    ours.action_space.seed(0)
    for _ in range(200):
        action = ours.action_space.sample()
        observation, *flags, infos = ours.step(action)
        their_observation, *their_flags, their_infos = theirs.step(action)
        assert np.array_equal(observation["states"], their_observation)
        assert observation in ours.observation_space
        for flag, their_flag in zip(flags, their_flags, strict=True):
            assert np.array_equal(flag, their_flag)
        ends += [flag.sum() for flag in flags[1:]]
        assert ("final_obs" in infos) == ("final_obs" in their_infos)
        if "final_obs" in infos:
            assert np.array_equal(infos["_final_obs"], their_infos["_final_obs"])
            assert np.array_equal(infos["_final_info"], their_infos["_final_info"])
            for row, their_row in zip(infos["final_obs"], their_infos["final_obs"], strict=True):
                assert (row is None) == (their_row is None)
                assert row is None or np.array_equal(row["states"], their_row)
    assert ends.min() > 5


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_there_and_back_again_the_contract_holds(mode):
    def build():
        return from_vector_env(with_autoreset(make(REACH, 3), mode), max_episode_steps=30, success_key="success", resets="each")

    EnvContract(factory=build).run()


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_statistics_are_told_once_where_other_libraries_look_for_them(mode):
    env = with_autoreset(make(REACH, 4, limit=6), mode)
    env.reset(seed=0)
    total, told = np.zeros(4), 0
    for step in range(1, 22):
        _, reward, terminated, truncated, infos = env.step(np.ones((4, 2), np.float32))
        total += reward
        assert np.array_equal(infos["_episode"], terminated | truncated)
        for i in np.flatnonzero(infos["_episode"]):
            told += 1
            assert infos["episode"]["r"][i] == pytest.approx(total[i], abs=1e-5)
            assert infos["episode"]["l"][i] == 6
            assert step % (7 if mode is NEXT else 6) in (6, 0)
            total[i] = 0
        if mode is SAME and infos["_episode"].any():
            assert np.array_equal(infos["final_info"]["_episode"], infos["_episode"])
            assert not infos["_success"].any()
    assert told == 12


STATISTICS = {"r", "l", "t"}


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("mode", [OFF, NEXT, SAME])
def test_gymnasiums_statistics_stand_beside_ours(mode, shaped):
    """And `infos` is read as before, by position or through copies."""
    env = make(REACH, 3, limit=6)
    env = ShapedReward(env, reward_coef=2.0) if shaped else env
    env = RecordEpisodeStatistics(env if mode is OFF else with_autoreset(env, mode))
    env.reset(seed=0)
    # Before 1.4 that wrapper knows NEXT_STEP alone, and leaves out the first step of each episode but the first.
    exact = mode is not SAME or tuple(map(int, gymnasium.__version__.split(".")[:2])) >= (1, 4)
    total, ends = np.zeros(3), 0
    for _ in range(20):
        _, reward, terminated, truncated, infos = env.step(np.ones((3, 2), np.float32))
        total += reward
        ended = terminated | truncated
        assert np.array_equal(infos["_episode"], ended)
        if ended.any():
            ends += 1
            assert "episode" in infos
            assert STATISTICS | {"success_once", "return", "episode_len"} <= set(infos["episode"])
            assert infos["episode"]["episode_len"][ended].tolist() == [6] * ended.sum()
            if exact:
                assert infos["episode"]["l"][ended].tolist() == [6] * ended.sum()
                assert infos["episode"]["r"][ended] == pytest.approx(total[ended], abs=1e-5)
            assert infos["episode"]["return"][ended] == pytest.approx(total[ended], abs=1e-5)
            total[ended] = 0
            if mode is OFF:
                env.reset(seed=1, options={"reset_mask": ended})
    assert ends >= 2
    assert env.episode_count == 3 * ends


def test_gymnasiums_statistics_of_a_single_environment():
    env = gymnasium.wrappers.RecordEpisodeStatistics(as_single_env(REACH, max_episode_steps=4))
    env.reset(seed=0)
    for _ in range(4):
        *_, info = env.step(np.ones(2, np.float32))
    assert STATISTICS | {"success_once"} <= set(info["episode"])
    assert info["episode"]["r"] == pytest.approx(info["episode"]["return"], abs=1e-5)


def test_infos_are_an_ordinary_mapping_otherwise():
    env = make(REACH, 2, limit=6)
    env.reset(seed=0)
    infos = env.step(np.zeros((2, 2), np.float32))[4]
    for same in (pickle.loads(pickle.dumps(infos)), copy.deepcopy(infos), copy.copy(infos)):
        assert list(same) == list(infos) == ["success", "episode", "_episode"]
        assert set(same["episode"]) == set(infos.get("episode", {})) == set(dict(infos)["episode"])
        assert "success" in same
        assert "episode" not in same
    assert "episode" in dict(infos)
    assert "episode" in infos.keys()  # noqa: SIM118


def test_rendering_or_a_reason():
    env = as_single_env(CARTPOLE)
    assert env.render_mode is None
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"env\.render: .* built without images\. .*render=True"):
        env.render()
    vector = make(CARTPOLE, 2)
    vector.reset(seed=0)
    with pytest.raises(ConfigError, match=r"env\.render: .* built without images\. .*render=True"):
        vector.render()


def test_a_single_environment_renders():
    pytest.importorskip("imageio_ffmpeg")
    env = as_single_env(Tabletop(task="reach"), render=True)
    assert env.render_mode == "rgb_array"
    check_env(env)
    env.reset(seed=0)
    first = env.render()
    env.step(np.ones(2, np.float32))
    assert first.dtype == np.uint8
    assert first.shape[-1] == 3
    assert not np.array_equal(first, env.render())


def test_a_run_can_be_repeated_and_its_episodes_differ():
    def starts(env, **seed):
        first, ended = [env.reset(**seed)[0]["states"]], False
        for _ in range(20):
            observation, _, terminated, truncated, _ = env.step(np.zeros((2, 2), np.float32))
            if ended:
                first.append(observation["states"])
            ended = (terminated | truncated).any()
        return np.concatenate(first)

    env = with_autoreset(make(REACH, 2, limit=4), NEXT)
    once = starts(env, seed=3)
    assert len(np.unique(once, axis=0)) == len(once) == 10
    assert np.array_equal(once, starts(env, seed=3))
    assert np.array_equal(once, starts(env, options={"seed": [3, 4]}))
    assert not np.array_equal(once, starts(env))


def test_misuse():
    with pytest.raises(ConfigError, match="without autoreset"):
        with_autoreset(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]))
    with pytest.raises(ConfigError, match=r"expected NEXT_STEP or SAME_STEP, found AutoresetMode\.DISABLED"):
        with_autoreset(make(CARTPOLE, 1), OFF)
    with pytest.raises(ConfigError, match="vector environment of one, found 2"):
        as_single_env(make(CARTPOLE, 2))


@pytest.mark.parametrize(
    "config",
    [CARTPOLE, REACH, Tabletop(task="slots", obs_mode="rgb", image_size=16), Tabletop(task="pick_place", obs_mode="rgb")],
    ids=["cartpole", "reach", "slots", "pick_place"],
)
def test_gymnasiums_checker_passes(config):
    env = as_single_env(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env, skip_close_check=True)
    env.close()
    env.close()


def test_a_single_environment_takes_its_seed_as_the_vector_does_and_draws_the_next():
    single, vector = as_single_env(REACH, max_episode_steps=3, ignore_terminations=True), make(REACH, 1)
    first = single.reset(seed=9)[0]["states"]
    assert np.array_equal(first, vector.reset(seed=9)[0]["states"][0])
    second = single.reset()[0]["states"]
    assert not np.array_equal(first, second)
    single.reset(seed=9)
    assert np.array_equal(second, single.reset()[0]["states"])
    for step in range(3):
        _, reward, terminated, truncated, info = single.step(np.zeros(2, np.float32))
        assert (type(reward), terminated, truncated) == (float, False, step == 2)
    assert info["episode"]["l"] == 3


class Adam:
    """Kingma and Ba (2015), arXiv:1412.6980. torch.optim loads Triton, which dies where Mesa has loaded another LLVM before."""

    def __init__(self, weights, rate=1e-3):
        self.weights, self.rate, self.steps = weights, rate, 0
        self.mean, self.square = ([w.detach() * 0 for w in weights] for _ in range(2))

    def step(self, gradient):
        self.steps += 1
        for w, g, m, v in zip(self.weights, gradient, self.mean, self.square, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            w -= self.rate * (m / (1 - 0.9**self.steps)) / ((v / (1 - 0.999**self.steps)).sqrt() + 1e-5)


def ppo(env, seed, updates, horizon=15, epochs=6, batches=2):
    """Proximal policy optimisation in one function, as CleanRL writes it; knows nothing of this project.

    Schulman et al. (2017), arXiv:1707.06347. Returns the return of each finished episode, in the order of their ends.
    """
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    n, size = env.num_envs, env.single_observation_space["states"].shape[0]
    acts = env.single_action_space.shape[0]

    def network(out):
        hidden = [torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
        return torch.nn.Sequential(*hidden, torch.nn.Linear(64, out))

    actor, critic, spread = network(acts), network(1), torch.nn.Parameter(torch.full((acts,), -0.5))
    weights = [*actor.parameters(), *critic.parameters(), spread]
    adam = Adam(weights)
    returns = []
    state = torch.as_tensor(env.reset(seed=seed)[0]["states"])
    for _ in range(updates):
        states, actions, logprobs, rewards, dones, values = [], [], [], [], [], []
        for _ in range(horizon):
            with torch.no_grad():
                policy = torch.distributions.Normal(actor(state), spread.exp())
                action = policy.sample()
                value = critic(state)[:, 0]
            low, high = env.single_action_space.low, env.single_action_space.high
            observation, reward, terminated, truncated, infos = env.step(np.clip(action.numpy(), low, high))
            for kept, entry in ((states, state), (actions, action), (logprobs, policy.log_prob(action).sum(-1)), (values, value)):
                kept.append(entry)
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            dones.append(torch.as_tensor(terminated | truncated).float())
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
            state = torch.as_tensor(observation["states"])
        with torch.no_grad():
            following, advantage, advantages = critic(state)[:, 0], torch.zeros(n), []
            for reward, done, value in zip(reversed(rewards), reversed(dones), reversed(values), strict=True):
                advantage = reward + 0.95 * following * (1 - done) - value + 0.95 * 0.9 * (1 - done) * advantage
                advantages.insert(0, advantage)
                following = value
        states, actions, logprobs, advantages, values = (torch.cat(x) for x in (states, actions, logprobs, advantages, values))
        targets = advantages + values
        for _ in range(epochs):
            for rows in torch.randperm(len(states)).chunk(batches):
                policy = torch.distributions.Normal(actor(states[rows]), spread.exp())
                ratio = (policy.log_prob(actions[rows]).sum(-1) - logprobs[rows]).exp()
                credit = advantages[rows]
                credit = (credit - credit.mean()) / (credit.std() + 1e-8)
                clipped = torch.minimum(ratio * credit, ratio.clamp(0.8, 1.2) * credit).mean()
                loss = -clipped + 0.5 * (critic(states[rows])[:, 0] - targets[rows]).square().mean()
                gradient = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    norm = torch.sqrt(sum(g.square().sum() for g in gradient))
                    adam.step([g * (0.5 / norm).clamp(max=1.0) for g in gradient])
    return returns


@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_that_knows_nothing_of_us_learns_on_one_of_ours(seed):
    returns = ppo(with_autoreset(make(REACH, 64), SAME), seed, updates=14)
    assert np.mean(returns[:64]) < 0.9
    assert np.mean(returns[-300:]) > 1.7
