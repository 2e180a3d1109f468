import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from env_worker_toy import connected

from rlinf.core.data import Decision, Trajectory
from rlinf.core.errors import ConfigError, NonFiniteError, RLinfError
from rlinf.core.evaluation import EvalReport
from rlinf.core.random import keyed_seed
from rlinf.core.registry import ENVS
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Reply


def worker(data: dict[str, Any]) -> EnvWorker:
    return connected(read_embodied(data), actors=2)[0]


def collected(data: dict[str, Any], channels: Any, trajectories: Any) -> tuple[list[Any], list[Any]]:
    results = worker(data).interact(0, *channels, trajectories).episodes
    return results, [received(trajectories, rank) for rank in (0, 1)]


def received(trajectories: Any, rank: int) -> Any:
    """What an actor got of an iteration."""
    return Trajectory.concat([trajectories.get(key=rank)[1] for _ in range(trajectories.qsize(key=rank))])


def test_an_iteration_by_hand(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    """The value of an observation is ten times the steps left, so every value in every row is known."""
    results, parts = collected(toy_data, channels, queues())
    assert sum(int(part.mask.sum()) for part in parts) == 24
    ends = sum(int(part.terminated.sum()) for part in parts)
    assert ends == len(results) > 4, "episodes end inside the rollout and are reset"
    for part in parts:
        for row in range(len(part)):
            n = int(part.mask[row].sum())
            states = part.context["states"][row, :n, 0]
            assert part.value[row, : n + 1].tolist() == [10 * s for s in states] + [10 * (states[-1] - 1)]
            assert (part.version[row, :n] == 7).all()
            assert part.terminated[row, n - 1] == (states[-1] == 1)
    groups = [set((part.group % 4).tolist()) for part in parts]
    assert groups == [{0, 1}, {2, 3}]


def test_the_same_configuration_gives_the_same_trajectories(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    (_, first), (_, second) = (collected(toy_data, channels, queues()) for _ in range(2))
    assert all(np.array_equal(a.reward, b.reward) and np.array_equal(a.value, b.value) for a, b in zip(first, second, strict=True))


def test_members_of_a_group_start_alike(toy_data: dict[str, Any]) -> None:
    toy_data["env"]["train"] |= {"group_size": 2, "total_num_envs": 8}
    toy_data["env"]["eval"]["total_num_envs"] = 8
    env = worker(toy_data)
    env.prepare(0)
    left = [int(x) for env_slot in env._env_slots for x in env_slot._env.left]
    assert left[0::2] == left[1::2]
    assert len(set(left)) > 1


def drifting(data: dict[str, Any], **train: Any) -> dict[str, Any]:
    data["env"]["train"] |= {"env_type": "drifting", "group_size": 2, "total_num_envs": 8, **train}
    data["env"]["eval"]["total_num_envs"] = 8
    data["rollout"] = {"pipeline_stage_num": 2}
    return data


def played(env: EnvWorker, step: int, channels: Any, queues: Any) -> list[Any]:
    trajectories = queues()
    env.interact(step, *channels, trajectories)
    channels[1].items.clear()
    return [received(trajectories, rank) for rank in (0, 1)]


@pytest.mark.parametrize("auto_reset", [True, False])
def test_rows_of_a_group_come_of_one_initial_state(toy_data: dict[str, Any], channels: Any, queues: Any, auto_reset: bool) -> None:
    """Across ends inside a rollout, rollout epochs, iterations, slots and a resume."""
    data = drifting(toy_data, rollout_epoch=3, auto_reset=auto_reset)
    env, start_of, members = worker(data), dict[int, float](), dict[int, set[int]]()
    begun: list[int] = []
    continued = 0
    for step in range(6):
        if step == 3:
            env = worker(data)  # as after a resume
        for part in played(env, step, channels, queues):
            states = part.context["states"][:, 0]
            for row, group in enumerate(part.group.tolist()):
                assert start_of.setdefault(group, states[row, 1]) == states[row, 1], "one group, two initial states"
                members.setdefault(group, set()).add(int(part.episode[row]))
            continued += int((states[:, 2] > 0).sum())
            begun += part.episode[states[:, 2] == 0].tolist()
    assert len(set(begun)) == len(begun), "one number, two episodes"
    assert len(set(start_of.values())) == len(start_of), "one initial state, two groups"
    assert max(map(len, members.values())) == 2
    assert sum(len(episodes) == 2 for episodes in members.values()) > len(members) / 4
    assert (continued > 0) == auto_reset


def test_environments_that_are_closed_between_rollouts_play_the_same(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    """And they are open while somebody plays in them alone; of each only one is built at a time."""
    data = drifting(toy_data, rollout_epoch=2, auto_reset=False)
    found: list[list[Any]] = []
    for offload in (False, True):
        data["env"]["offload"] = offload
        env, parts = worker(data), list[Any]()
        assert [env_slot._env.closed for env_slot in env._env_slots] == [offload] * 2
        for step in range(2):
            before = [env_slot._env for env_slot in env._env_slots]
            parts += played(env, step, channels, queues)
            assert [env_slot._env.closed for env_slot in env._env_slots] == [offload] * 2
            assert [env_slot._env is one for env_slot, one in zip(env._env_slots, before, strict=True)] == [not offload] * 2
            protocol = episode_protocol(env.cfg, final=False)
            for watch, *asked in ((env.evaluate, protocol), (env.film, protocol, [])):
                watch(*asked, *channels)
                channels[1].items.clear()
                assert len(env._eval_env_slots) == (0 if offload else 2)
        found.append(parts)
        env.close()
        env.close()
    for kept, closed in zip(*found, strict=True):
        for name in ("reward", "group", "episode", "mask"):
            assert np.array_equal(getattr(kept, name), getattr(closed, name)), name


def test_no_episode_goes_on_in_environments_that_were_closed(toy_data: dict[str, Any]) -> None:
    toy_data["env"]["offload"] = True
    with pytest.raises(ConfigError, match=r"^env\.offload: closes .*auto_reset: true.*Set env\.train\.auto_reset: false"):
        read_embodied(toy_data)


def test_rollout_epochs_are_numbered_over_the_run(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    env, found = worker(drifting(toy_data, rollout_epoch=3)), list[int]()
    for step in range(2):
        trajectories = queues()
        env.interact(step, *channels, trajectories)
        channels[1].items.clear()
        found += [trajectories.get(key=1)[2] for _ in range(trajectories.qsize(key=1))]
    assert found == [0, 1, 2, 3, 4, 5]


def test_the_members_of_an_environment_group_play_the_same_episodes_in_the_same_order(
    toy_data: dict[str, Any], channels: Any, queues: Any
) -> None:
    env = worker(drifting(toy_data, rollout_epoch=2))
    starts: list[list[float]] = [[] for _ in range(8)]
    for step in range(4):
        for part in played(env, step, channels, queues):
            first = part.context["states"][:, 0]
            for row in np.flatnonzero(first[:, 2] == 0):
                starts[2 * (part.group[row] % 4) + part.episode[row] % 2].append(float(first[row, 1]))
    for even, odd in zip(starts[0::2], starts[1::2], strict=True):
        common = min(len(even), len(odd))
        assert common > 3
        assert even[:common] == odd[:common]
        assert len(even) > len(odd), "episodes of odd environments are longer"


def test_every_actor_has_as_many_environment_groups(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    parts = played(worker(drifting(toy_data, total_num_envs=8)), 0, channels, queues)
    assert [int(part.mask.sum()) for part in parts] == [24, 24]


def test_unfinished_episodes_go_on_only_with_auto_reset(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    for auto_reset in (True, False):
        toy_data["env"]["train"] |= {"auto_reset": auto_reset, "max_steps_per_rollout_epoch": 1}
        toy_data["actor"]["global_batch_size"] = 4
        env = worker(toy_data)
        env.interact(0, *channels, queues())
        channels[1].items.clear()
        before = np.concatenate([env_slot._env.left for env_slot in env._env_slots])
        lengths_before = np.concatenate([env_slot._env.length for env_slot in env._env_slots])
        env.prepare(1)
        lengths = np.concatenate([env_slot._env.length for env_slot in env._env_slots])
        running = before > 0
        assert running.any()
        assert (lengths[running] == (lengths_before[running] if auto_reset else 0)).all()
        assert (lengths[~running] == 0).all()


def test_every_evaluation_episode_starts_from_its_own_state_exactly_once(
    toy_data: dict[str, Any], channels: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    toy_data["rollout"] = {"pipeline_stage_num": 2}
    env = worker(toy_data)
    protocol = episode_protocol(replace(env.cfg, env=replace(env.cfg.env, eval=replace(env.cfg.env.eval, episodes=8))), final=False)
    results = env.evaluate(protocol, *channels, "film.mp4")
    expected = [keyed_seed(3, "eval", number) % 2**31 for number in range(8)]
    envs: list[Any] = [env_slot._env for env_slot in env._eval_env_slots]
    assert {seed for e in envs for seed in e.seeds_seen if seed} == set(expected)
    assert EvalReport(protocol=protocol, results=tuple(results)).total is not None
    assert {r.episode.number: r.episode_len for r in results} == {n: s % 5 + 1 for n, s in enumerate(expected)}
    assert [film for e in envs for film in e.recorded] == ["film.mp4"]
    monkeypatch.setattr("rlinf.runners.embodied.playing.evaluating.TELL_EVERY_S", 0.0)
    with caplog.at_level("INFO"):
        again = env.evaluate(protocol, *channels)
    told = [int(text.split()[1]) for text in caplog.messages if text.endswith("of 8 episodes are played")]
    assert told == sorted(told)
    assert told[-1] in range(1, 8), "it is said while they are played"
    assert len(envs) > 1, "others are not filmed"
    assert [film for e in envs for film in e.recorded] == ["film.mp4"]
    assert EvalReport(protocol=protocol, results=tuple(again)) == EvalReport(protocol=protocol, results=tuple(results))


def test_a_policy_is_told_of_what_it_was_trained_in_wherever_it_is_evaluated(toy_data: dict[str, Any]) -> None:
    trained = worker(toy_data).init_worker(slot_layout(read_embodied(toy_data), 1)["train"])
    for env_type, same in (("drifting", False), (toy_data["env"]["train"]["env_type"], True)):
        toy_data["env"]["eval"]["env_type"] = env_type
        cfg = read_embodied(toy_data)
        env = EnvWorker(cfg)
        assert env.init_evaluation(slot_layout(cfg, 1)["eval"]) == trained
        assert (env._eval_env_slots[0].spec == trained) == same


def test_a_worker_that_knows_nobody_says_so(toy_data: dict[str, Any], queues: Any) -> None:
    env = EnvWorker(read_embodied(toy_data))
    with pytest.raises(RLinfError, match=r"Call connect\(topology\) first"):
        env.interact(0, queues(), queues(), queues())


def chunks_of_two(queues: Any) -> tuple[Any, Any]:
    answers = queues()

    def reply(request: Any) -> None:
        if request.obs is not None:
            obs = request.obs["states"]
            zeros = np.zeros(len(obs), np.float32)
            action = np.zeros((len(obs), 2, 1), np.float32)
            decision = Decision(action=action, logprob=zeros, value=10 * obs[:, 0], context={"states": obs}, version=7)
            answers.put(Reply(slot=request.slot, decision=decision), key=request.env_rank)

    return queues(reply), answers


def test_a_chunk_stops_where_the_episode_ends(toy_data: dict[str, Any], queues: Any) -> None:
    trajectories = queues()
    played = worker(toy_data).interact(0, *chunks_of_two(queues), trajectories)
    steps, decisions = 0, 0
    for rank in (0, 1):
        part = trajectories.get(key=rank)[1]
        left = part.context["states"][..., 0]
        executed = np.minimum(left, 2) * part.mask
        assert (part.reward == executed).all(), "one of reward for each step that was executed"
        assert (part.terminated == (part.mask & (left <= 2))).all()
        steps += int(executed.sum())
        decisions += int(part.mask.sum())
    assert decisions == 24
    assert played.env_steps == steps < 48
    assert all(result.episode_len == result.episode_return for result in played.episodes)


def test_a_step_limit_that_belongs_to_the_task_is_an_end(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    toy_data["env"]["train"] |= {"max_episode_steps": 2}
    for bootstrap in (True, False):
        toy_data["env"]["train"]["bootstrap_truncated"] = bootstrap
        _, parts = collected(toy_data, channels, queues())
        assert any(part.truncated.any() for part in parts) == bootstrap
        channels[1].items.clear()


def test_a_cut_episode_is_worth_nothing_where_success_alone_is_rewarded(
    toy_data: dict[str, Any], channels: Any, queues: Any, monkeypatch: Any
) -> None:
    toy_data["env"]["train"] |= {"max_episode_steps": 2}
    simulator = type(read_embodied(toy_data).env.train.init_params)
    monkeypatch.setattr(simulator, "success_only", True, raising=False)
    for bootstrap, expected in ((None, False), (True, True)):
        toy_data["env"]["train"]["bootstrap_truncated"] = bootstrap
        _, parts = collected(toy_data, channels, queues())
        assert any(part.truncated.any() for part in parts) == expected
        channels[1].items.clear()


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_reward_that_is_no_number_is_refused_with_its_place(
    toy_data: dict[str, Any], channels: Any, queues: Any, bad: float
) -> None:
    toy_data["rollout"] = {"pipeline_stage_num": 2}
    env = worker(toy_data)
    simulator = env._env_slots[1]._env
    simulator.broken = (1, 3, bad)
    message = rf"env\[0\]: the reward of environment 1 is {bad}, in slot 1 \(environments 2 to 3\), iteration 4, epoch 0, step 2"
    with pytest.raises(NonFiniteError, match=message):
        env.interact(4, *channels, queues())


def test_rows_know_their_tasks(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    env = worker(toy_data)
    env._env_slots[0]._env.tasks = np.array([5, 2, 0, 7])
    parts = played(env, 0, channels, queues)
    for part in parts:
        assert part.task.tolist() == [[5, 2, 0, 7][group % 4] for group in part.group.tolist()]
    assert {task for part in parts for task in part.task.tolist()} == {5, 2, 0, 7}


@pytest.mark.parametrize(("group_size", "waived"), [(2, {"place": "one seed"}), (2, {}), (1, {"place": "one seed"})])
def test_a_simulator_that_cannot_start_a_group_alike_is_told_of(
    toy_data: dict[str, Any], caplog: Any, monkeypatch: Any, group_size: int, waived: dict[str, str]
) -> None:
    toy_data["env"]["train"]["group_size"] = group_size
    monkeypatch.setattr(ENVS.get("countdown").made, "metadata", {"waived": waived})
    with caplog.at_level("WARNING"):
        worker(toy_data)
    assert ("does not keep place (one seed)" in caplog.text) == (group_size == 2 and bool(waived))


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("env.max_episode_steps", "env.train.max_episode_steps"),
        ("env.level", "env.train.init_params.level"),
        ("env.level.low", "env.train.init_params.level.low"),
        ("env.keys", "env.keys"),
        ("env", "env"),
    ],
)
def test_what_a_simulator_refuses_when_it_is_built_has_its_key(
    toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, place: str, key: str
) -> None:
    def make(*args: Any, **options: Any) -> Any:
        raise ConfigError(place, "can't be so")

    monkeypatch.setattr(ENVS.get("countdown"), "make", make)
    with pytest.raises(ConfigError) as caught:
        worker(toy_data)
    assert str(caught.value) == f"{key}: can't be so"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
