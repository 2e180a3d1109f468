from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorWrapper

from rlinf.core.errors import ConfigError, ContractError, ShapeError
from rlinf.core.evaluation import EpisodePlayer, EpisodeProtocol, EvalProtocol, EvalReport, RealTimeChunking
from rlinf.core.registry import ENVS
from rlinf.envs.evaluation import evaluate, play, protocol_env
from rlinf.envs.spaces import describe
from rlinf.envs.tabletop import Tabletop

GOALS = {"reach": ("target",), "push": ("goal",), "slots": ("red", "green", "blue"), "pick_place": ("red", "blue")}


def table(num_envs, task="slots", ignore=False, limit=None, **config):
    return Tabletop(task=task, **config).make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)


def on_table(task, inits=4, **changes):
    horizon = {"reach": 30, "push": 64, "slots": 8, "pick_place": 60}[task]
    fields = {"env": f"tabletop/{task}", "tasks": GOALS[task], "init_ids": tuple(range(inits)), "max_episode_steps": horizon}
    return EpisodeProtocol(**{**fields, **changes})


def expert(env):
    return lambda seen, turns: env.unwrapped.expert_actions()[[turn.slot for turn in turns]]


def noisy(env, chunk=1):
    """The expert with noise that each episode draws for itself."""
    size = env.single_action_space.shape[0]

    def decide(seen, turns):
        noise = np.stack([turn.generator().normal(0, 0.3, (chunk, size)) for turn in turns])
        actions = expert(env)(seen, turns)[:, None] + noise
        return np.clip(actions, -1, 1).astype(np.float32)

    return decide


def linear(env):
    """Any function of the observation, with noise."""
    space = env.single_action_space
    size = env.single_observation_space["states"].shape[0]
    weight = np.linspace(-1, 1, size * space.shape[0]).reshape(size, -1)

    def decide(seen, turns):
        noise = np.stack([turn.generator().normal(0, 0.3, space.shape) for turn in turns])
        # A matrix product may differ in the last bit for another number of rows.
        actions = np.stack([np.sum(row[:, None] * weight, axis=0) for row in seen["states"]]) + noise
        return np.clip(actions, space.low, space.high).astype(np.float32)

    return decide


@pytest.mark.parametrize("policy", [expert, noisy])
@pytest.mark.parametrize("task", GOALS)
def test_the_number_of_environments_changes_no_episode(task, policy):
    reports = []
    for n in (1, 4, 7):
        env = table(n, task)
        reports.append(evaluate(env, policy(env), on_table(task)))
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].total.n == 4 * len(GOALS[task])
    if policy is expert:
        assert reports[0].total.rate == 1
    else:
        assert len({r.episode_len for r in reports[0].results}) > 1


def test_noise_keyed_by_the_slot_would_be_noticed():
    reports = []
    for n in (1, 4):
        env = table(n, "push")

        def decide(seen, turns, env=env):
            noise = np.stack([np.random.default_rng((turn.slot, turn.step)).normal(0, 0.3, 2) for turn in turns])
            return np.clip(expert(env)(seen, turns) + noise, -1, 1).astype(np.float32)

        reports.append(evaluate(env, decide, on_table("push")))
    assert reports[0] != reports[1]


SIMULATORS = {
    "pendulum": ("gymnasium", "gymnasium", {"env_id": "Pendulum-v1"}),
    "fetch_reach": ("gymnasium_robotics", "gymnasium", {"env_id": "FetchReachDense-v4", "success_key": "is_success"}),
    "half_cheetah": ("mujoco", "gymnasium", {"env_id": "HalfCheetah-v5"}),
    "push_cube": ("mani_skill", "maniskill", {"task_id": "PushCube-v1"}),
    "metaworld": ("metaworld", "metaworld", {"task_id": "push-v3"}),
}


@pytest.mark.parametrize(
    ("name", "initial_states"),
    [
        ("pendulum", "id"),
        ("pendulum", "seed"),
        ("fetch_reach", "id"),
        ("half_cheetah", "id"),
        pytest.param("push_cube", "id", marks=pytest.mark.slow),
        pytest.param("metaworld", "id", marks=pytest.mark.slow),
    ],
)
def test_the_number_of_environments_changes_no_episode_of_a_simulator(name, initial_states):
    module, registered, fields = SIMULATORS[name]
    pytest.importorskip(module)
    config = ENVS.build(registered, fields, place="env")
    protocol = EpisodeProtocol(env=name, init_ids=tuple(range(9)), max_episode_steps=12, initial_states=initial_states)
    reports = []
    for n in (1, 4):
        env = config.make(n, max_episode_steps=12, ignore_terminations=False, render=False)
        reports.append(evaluate(env, linear(env), protocol))
        env.close()
    assert reports[0] == reports[1]
    assert len({r.episode_return for r in reports[0].results}) == 9


def test_chunks_are_carried_out_and_end_with_the_episode():
    reports, steps = [], []
    for n in (1, 4, 7):
        env = table(n, "reach")
        decide = noisy(env, chunk=3)

        def watched(seen, turns, decide=decide):
            steps.extend(turn.step for turn in turns)
            return decide(seen, turns)

        reports.append(evaluate(env, watched, on_table("reach", inits=9)))
    assert reports[0] == reports[1] == reports[2]
    assert set(steps) <= set(range(0, 30, 3))
    assert any(r.episode_len % 3 for r in reports[0].results)


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_step_may_be_begun_before_the_rest_of_it_is_decided(begun):
    protocol = on_table("reach", inits=9)
    whole, parted = table(4, "reach"), table(4, "reach")
    player, results = EpisodePlayer(parted, describe(parted), protocol, protocol.work_list()), []
    while not player.done:
        asked = player.turns
        actions = noisy(parted, chunk=3)(player.observations, asked)
        for k in range(begun):
            player.begin(actions[:, k : k + 1])
        assert player.turns == asked, "what is decided meanwhile is for these"
        results += player.step(actions[:, begun:])
    assert EvalReport(protocol=protocol, results=tuple(results)) == evaluate(whole, noisy(whole, chunk=3), protocol)


def test_decisions_that_overlap_with_their_execution_are_not_for_a_plain_function():
    env = table(2, "reach")
    with pytest.raises(
        ConfigError, match=r"protocol\.real_time_chunking: here everything stands still .* Use `rlinf eval --protocol`"
    ):
        evaluate(env, expert(env), on_table("reach", real_time_chunking=RealTimeChunking(delay=1, execution_horizon=1)))


def test_each_seed_plays_the_list_with_other_noise():
    env = table(5, "slots")
    report = evaluate(env, noisy(env), on_table("slots", seeds=(0, 1)))
    halves = [[(r.episode_len, r.episode_return) for r in report.results if r.episode.seed == s] for s in (0, 1)]
    assert len(halves[0]) == len(halves[1]) == 12
    assert halves[0] != halves[1]


def test_the_task_asked_for_is_the_one_played():
    env = table(3, "slots", obs_mode="rgb", image_size=8)
    seen_texts = {}

    def decide(seen, turns):
        assert set(seen) == {"main_images", "states", "task_descriptions"}
        assert all(len(value) == len(turns) for value in seen.values())
        for text, turn in zip(seen["task_descriptions"], turns, strict=True):
            seen_texts.setdefault(turn.episode.task, set()).add(str(text))
        return expert(env)(seen, turns)

    evaluate(env, decide, on_table("slots"))
    assert seen_texts == {goal: {f"move to the block that is {goal}"} for goal in GOALS["slots"]}


def test_workers_share_the_list():
    protocol = on_table("push", inits=7)
    shares = []
    for rank, n in enumerate((1, 3)):
        env = table(n, "push")
        shares += play(env, noisy(env), protocol, protocol.work_list()[rank::2])
    env = table(4, "push")
    assert EvalReport(protocol=protocol, results=tuple(shares)) == evaluate(env, noisy(env), protocol)
    assert play(env, noisy(env), protocol, ()) == []


def test_results_are_told_as_they_come_and_idle_environments_are_not_asked():
    env, told, asked = table(7, "slots"), [], []

    def decide(seen, turns):
        asked.extend((turn.episode.number, turn.step) for turn in turns)
        return expert(env)(seen, turns)

    report = evaluate(env, decide, on_table("slots", inits=3), report=told.append)
    assert sorted(r.episode.number for r in told) == list(range(9))
    assert len(asked) == len(set(asked)) == sum(r.episode_len for r in report.results)


class Tensors(VectorWrapper):
    """Gives what an environment on a device gives."""

    def reset(self, **arguments):
        observation, infos = self.env.reset(**arguments)
        return {"states": self.tensor(observation["states"])}, infos

    def step(self, actions):
        observation, *flags, infos = self.env.step(actions)
        return {"states": self.tensor(observation["states"])}, *map(self.tensor, flags), infos


def test_tensors_are_played_like_arrays():
    torch = pytest.importorskip("torch")
    Tensors.tensor = staticmethod(torch.from_numpy)
    env = table(3, "push")

    def decide(seen, turns):
        assert isinstance(seen["states"], torch.Tensor)
        return torch.from_numpy(noisy(env)(seen, turns))

    assert evaluate(Tensors(env), decide, on_table("push")) == evaluate(env, noisy(env), on_table("push"))


class Faulty(VectorWrapper):
    def __init__(self, env, fault):
        super().__init__(env)
        self.fault = fault

    def step(self, actions):
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        if self.fault == "no end":
            truncated[:] = False
        if self.fault == "no statistics":
            infos = {}
        return observation, reward, terminated, truncated, infos


@pytest.mark.parametrize(
    ("fault", "ignore", "changes", "error", "message"),
    [
        ("no end", True, {}, ContractError, r"environments \[0, 1\] go on after 8 steps, the limit"),
        ("no statistics", False, {}, ContractError, "no statistics of episodes.*EpisodeStatistics"),
        (
            "",
            False,
            {"ignore_terminations": True},
            ContractError,
            "terminated, which the protocol ignores.*ignore_terminations=True",
        ),
        ("", False, {"max_episode_steps": 9}, ConfigError, r"has max_episode_steps 9, the environment has 8.*max_episode_steps=9"),
        ("wide", False, {}, ShapeError, r"expected \[M, K, \*\] = \[2, K, 2\] with K at least 1, found \[2, 3\]"),
        ("", False, {"tasks": ("purple",)}, ConfigError, "purple"),
    ],
)
def test_an_environment_that_is_not_the_protocols(fault, ignore, changes, error, message):
    env = Faulty(table(2, "slots", ignore=ignore), fault)
    decide = (lambda seen, turns: np.zeros((len(turns), 3))) if fault == "wide" else expert(env)
    with pytest.raises(error, match=message):
        evaluate(env, decide, on_table("slots", **changes))


def test_ignored_terminations():
    env = table(2, "slots", ignore=True)
    report = evaluate(env, expert(env), on_table("slots", ignore_terminations=True))
    assert {r.episode_len for r in report.results} == {8}
    assert report.total.rate == 1


def test_the_environment_that_a_protocol_states():
    """As `summary.json` of a run states it."""
    stated = {"env_type": "tabletop", "init_params": {"task": "slots"}}
    protocol = EvalProtocol.from_dict(on_table("slots", env=stated).to_dict())
    env = protocol_env(protocol, 2)
    assert evaluate(env, expert(env), protocol).total.rate == 1
    with pytest.raises(ConfigError, match=r"protocol\.env: expected env_type and init_params, found 'tabletop/slots'"):
        protocol_env(on_table("slots"), 2)


def test_a_task_that_knows_no_success_is_judged_by_its_return():
    env = ENVS.build("gymnasium", {"env_id": "Pendulum-v1"}, place="env").make(
        2, max_episode_steps=5, ignore_terminations=False, render=False
    )
    report = evaluate(
        env, lambda seen, turns: np.zeros((len(turns), 1), np.float32), EpisodeProtocol(env="pendulum", init_ids=(0, 1))
    )
    assert (report.metric, report.total) == ("return", None)
    assert "success_once" not in report.means
