"""Off-policy runs without their algorithms: what env workers keep, what the actor stores and draws, and what acts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from env_worker_toy import connected
from off_policy_toy import Adds, Constant, Learns, Sees, ToyNormalized, ToyObjective, ToyValues, expect_refusal

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.random import RowGenerators
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.off_policy.actor_worker import OffPolicyActor
from rlinf.runners.off_policy.exploration import Exploration
from rlinf.runners.off_policy.rules import check_actions, read_off_policy
from rlinf.runners.off_policy.schema import OffPolicyConfig

BOX = ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -1.0, np.float32), high=np.full(1, 3.0, np.float32))
STATES = {"states": ArraySpec(shape=(1,), dtype="float32")}


@pytest.fixture
def data(off_policy_data: dict[str, Any]) -> dict[str, Any]:
    off_policy_data["algorithm"]["gamma"] = 0.5
    return off_policy_data


def trajectories(cfg: OffPolicyConfig, channels: Any, queues: Any, steps: int = 1, actors: int = 1) -> Any:
    """What an env worker sends in so many iterations."""
    (env, _), sent = connected(cfg, actors), queues()
    for step in range(steps):
        env.interact(step, *channels, sent)
    return sent


def actor(cfg: OffPolicyConfig, rank: int = 0, world_size: int = 1, **bounds: Any) -> Any:
    with injected(WorkerContext(group="actor", rank=rank, world_size=world_size)):
        worker: Any = OffPolicyActor(cfg)
    spec = EnvSpec(observation=STATES, action=ArraySpec(shape=(1,), dtype="float32", **bounds), max_episode_steps=100)
    topology: Any = SimpleNamespace(spec=spec)
    worker.init_worker(topology)
    return worker


def test_rows_carry_what_was_seen_and_what_followed(data: dict[str, Any], channels: Any, queues: Any) -> None:
    sent = trajectories(read_off_policy(data), channels, queues)
    ends = 0
    for _ in range(sent.qsize(key=0)):
        _, rows, _ = sent.get(key=0)
        for row, length in enumerate(rows.mask.sum(1)):
            seen = rows.observation["states"][row, :, 0]
            states = rows.context["states"][row, :length, 0]
            # The steps that are left, and one less after the last decision: a final observation is that of before the reset.
            assert seen[: length + 1].tolist() == [*states, states[-1] - 1]
            assert not seen[length + 1 :].any()
            ends += int(rows.terminated[row].sum())
    assert ends > 4


def test_the_actor_keeps_all_and_draws_as_often_as_it_is_told(data: dict[str, Any], channels: Any, queues: Any) -> None:
    data["algorithm"] |= {"utd": 0.3, "replay_buffer": {"capacity": 100, "min_buffer_size": 48, "n_step": 2}}
    data["actor"]["micro_batch_size"] = 5
    data["runner"]["max_steps"] = 4
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues, steps=4), actor(cfg)
    found: list[tuple[int, int]] = []
    for step in range(4):
        assert worker.recv_rollout_batch(sent, 1) == 24
        metrics = worker.run_training(step)
        found.append((len(worker._trainer.seen), int(metrics["replay_buffer/size"].mean)))
    # ⌊48 · 0.3⌋ − ⌊24 · 0.3⌋ = 14 − 7, then 21 − 14 and 28 − 21; of 100 places some hold final observations.
    assert [updates for updates, _ in found] == [0, 7, 14, 21]
    assert cfg.optimizer_steps == 21
    assert [size for _, size in found[:2]] == [24, 48]
    assert 60 < found[3][1] < 96
    lengths = set[float]()
    for parts in worker._trainer.seen:
        assert [len(part) for part in parts] == [5, 5, 2]
        for part in parts:
            steps = np.log(part.discount) / np.log(0.5)
            lengths |= set(np.round(steps, 3))
            # Each step is paid 1 and takes one of those that are left; an episode ends with the last.
            np.testing.assert_allclose(part.reward, 1 + 0.5 * (steps - 1), rtol=1e-6)
            left = part.observation["states"][:, 0] - part.observation_next["states"][:, 0]
            np.testing.assert_allclose(left, steps, rtol=1e-6)
            assert (part.terminated == (part.observation_next["states"][:, 0] == 0)).all()
    assert lengths == {1.0, 2.0}


@pytest.mark.parametrize(("objective", "chosen"), [(ToyObjective(), Learns), (ToyNormalized(), type(None))])
def test_a_library_multiplies_for_the_policy_unless_its_critics_know_batches(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, objective: Any, chosen: type
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("rlinf.runners.off_policy.actor_worker.choose_products", asked.append)
    cfg = read_off_policy(data)
    actor(replace(cfg, algorithm=replace(cfg.algorithm, objective=objective)))
    assert [type(policy) for policy in asked] == [chosen]


def test_all_rollout_epochs_of_an_iteration_are_kept(data: dict[str, Any], channels: Any, queues: Any) -> None:
    data["env"]["train"]["rollout_epoch"] = 2
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues), actor(cfg)
    assert worker.recv_rollout_batch(sent, 1) == 48
    assert sent.qsize(key=0) == 0


def test_actions_are_kept_as_they_were_executed(data: dict[str, Any], channels: Any, queues: Any) -> None:
    cfg = read_off_policy(data)
    low, high = np.full(1, -0.5, np.float32), np.full(1, 0.25, np.float32)
    kept: list[Any] = []
    for worker in (actor(cfg), actor(cfg, low=low, high=high)):
        sent = trajectories(cfg, channels, queues)
        worker.recv_rollout_batch(sent, 1)
        kept.append(worker._replay._columns["action"])
    assert (kept[0] > 0.25).any()
    np.testing.assert_array_equal(kept[1], np.clip(kept[0], -0.5, 0.25))


def test_what_a_policy_chose_is_kept_in_place_of_what_was_executed(data: dict[str, Any], channels: Any, queues: Any) -> None:
    data["actor"]["model"] |= {"latent": True}
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues), actor(cfg)
    worker.recv_rollout_batch(sent, 1)
    drawn = worker._replay.sample(50)
    states = drawn.observation["states"]
    np.testing.assert_array_equal(drawn.action, np.stack([states, -states], axis=-1))


def test_what_nobody_chose_is_refused(data: dict[str, Any], intervening: Any) -> None:
    data["actor"]["model"] |= {"latent": True}
    data["algorithm"]["start_steps"] = 24
    with pytest.raises(ConfigError, match=r"algorithm\.start_steps: 'toy_q' learns of what it chose.* 24 actions"):
        read_off_policy(data)
    data["algorithm"]["start_steps"] = 0
    data["env"]["train"]["wrappers"] = intervening
    with pytest.raises(ConfigError, match=r"env\.train\.wrappers: 'toy_q' learns of what it chose.*somebody else"):
        read_off_policy(data)
    del data["env"]["train"]["wrappers"]
    data["algorithm"]["loss_type"] = "off_policy_toy:Adds"
    with pytest.raises(ConfigError, match=r"algorithm\.loss_type: 'toy_q' learns of what it chose.*adds noise"):
        read_off_policy(data)


def test_ranks_keep_their_own_environments(data: dict[str, Any], channels: Any, queues: Any) -> None:
    cfg = read_off_policy(data)
    sent = trajectories(cfg, channels, queues, actors=2)
    workers = [actor(cfg, rank, 2) for rank in (0, 1)]
    assert [worker.recv_rollout_batch(sent, 1) for worker in workers] == [12, 12]
    assert [sorted(worker._replay._rings.names) for worker in workers] == [[0, 1], [2, 3]]
    # Half of the 60 places each, for two environments; and numbers of their own.
    assert [worker._replay._sizes for worker in workers] == [(2, 15), (2, 15)]
    assert len({worker._replay._random.integers(2**62) for worker in workers}) == 2
    for worker in workers:
        worker.run_training(0)
        assert {sum(map(len, parts)) for parts in worker._trainer.seen} == {6}
    with pytest.raises(ConfigError, match=r"actor\.global_batch_size: 12 transitions can't be parted over 5 actors"):
        actor(cfg, 0, 5)
    with pytest.raises(ConfigError, match=r"env\.train\.total_num_envs: 4 groups"):
        actor(cfg, 5, 6)
    normalized = replace(cfg, algorithm=replace(cfg.algorithm, objective=ToyNormalized()))
    actor(normalized)
    with pytest.raises(ConfigError, match=r"cluster\.component_placement\.actor: critics of .* which 2 actors share"):
        actor(normalized, 0, 2)


def test_what_is_drawn_after_a_break_is_the_same(data: dict[str, Any], channels: Any, queues: Any, tmp_path: Path) -> None:
    cfg = read_off_policy(data)
    sent, worker, other = trajectories(cfg, channels, queues), actor(cfg), actor(cfg)
    worker.recv_rollout_batch(sent, 1)
    worker.run_training(0)
    worker.save_checkpoint(str(tmp_path))
    other.load_checkpoint(str(tmp_path))
    worker._trainer.seen.clear()
    for each in (worker, other):
        each.run_training(1)
    for first, second in zip(worker._trainer.seen, other._trainer.seen, strict=True):
        np.testing.assert_array_equal(first[0].observation["states"], second[0].observation["states"])


def test_fractions_of_updates_add_up_over_iterations(data: dict[str, Any]) -> None:
    """24 decisions an iteration."""
    data["algorithm"] |= {"utd": 0.1}
    data["runner"]["max_steps"] = 5
    cfg = read_off_policy(data)
    assert [cfg.updates(step) for step in range(5)] == [2, 2, 3, 2, 3]
    assert cfg.optimizer_steps == 12


def test_what_people_did_is_kept_apart_in_pieces_and_in_a_checkpoint(
    data: dict[str, Any], intervening: Any, channels: Any, queues: Any, tmp_path: Path
) -> None:
    data["env"]["train"]["wrappers"] = intervening
    data["algorithm"] |= {"demo_buffer": {"type": "toy_recorded"}, "replay_buffer": {"capacity": 600, "n_step": 3}}
    cfg = read_off_policy(data)
    sent, worker, other = trajectories(cfg, channels, queues), actor(cfg), actor(cfg)
    (rows,) = worker._arrivals.next(sent, 1)
    # Of each row the first two decisions; what comes again is another piece.
    rows = replace(rows, intervened=rows.mask & (torch.arange(rows.mask.shape[1]) < 2))
    longest = rows.rows(slice(int(rows.mask.sum(1).argmax()), None)).rows(slice(0, 1))
    for each in (rows, longest, longest):
        worker._add(each)
    kept = worker._interventions
    assert len(kept) == int(rows.intervened.sum()) + 4
    drawn = kept.take(np.argwhere(kept._columns["decided"]))
    assert set(drawn.discount.tolist()) == {0.5, 0.25}, "no transition goes on over the end of a piece"
    left = drawn.observation["states"][:, 0] - drawn.observation_next["states"][:, 0]
    np.testing.assert_allclose(left, np.log(drawn.discount) / np.log(0.5))
    worker.save_checkpoint(str(tmp_path))
    other.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(other._interventions.draw(20), kept.draw(20))


class Judges(Sees):
    """Errs by what was seen before each transition."""

    @property
    def td_error(self) -> Any:
        return np.concatenate([part.observation["states"][:, 0] for part in self.seen[-1]])


def test_priorities_follow_errors_and_weights_follow_the_run(data: dict[str, Any], channels: Any, queues: Any) -> None:
    sampling = {"type": "prioritized", "alpha": 1.0, "beta": 0.2, "final_beta": 0.6, "epsilon": 1e-9}
    data["algorithm"]["replay_buffer"] |= {"sampling": sampling}
    data["algorithm"]["utd"] = 4
    data["actor"]["micro_batch_size"] = 5
    data["runner"]["max_steps"] = 2
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues, steps=2), actor(cfg)
    worker.recv_rollout_batch(sent, 1)
    worker._trainer = Judges()
    worker.run_training(0)
    for update, parts in enumerate(worker._trainer.seen):
        assert [len(part) for part in parts] == [5, 5, 2]
        weight = np.concatenate([part.weight for part in parts])
        assert weight.max() == 1.0
        if update > 60:
            # By now each was drawn; with α = 1 its priority is its error.
            seen = np.concatenate([part.observation["states"][:, 0] for part in parts])
            beta = 0.2 + 0.4 * update / cfg.optimizer_steps
            np.testing.assert_allclose(weight, (seen / seen.min()) ** -beta, rtol=1e-4)
    held = np.argwhere(worker._replay._columns["decided"])
    powers = worker._replay._priorities.powers.reshape(4, -1)[held[:, 0], held[:, 1]]
    np.testing.assert_allclose(powers, worker._replay.take(held).observation["states"][:, 0], rtol=1e-6)


def test_errors_of_demonstrations_are_no_priorities_of_the_replay_buffer(data: dict[str, Any], channels: Any, queues: Any) -> None:
    sampling = {"type": "prioritized", "alpha": 1.0, "epsilon": 1e-9}
    data["algorithm"] |= {"demo_buffer": {"type": "toy_recorded"}, "replay_buffer": {"capacity": 60, "sampling": sampling}}
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues), actor(cfg)
    worker.recv_rollout_batch(sent, 1)
    worker._trainer = Judges()
    worker.run_training(0)
    assert max(part.observation["states"].max() for parts in worker._trainer.seen for part in parts) >= 1000
    assert 1 < worker._replay._priorities.powers.max() < 100


@pytest.mark.parametrize("log_path", ["{}", "~/"])
def test_observations_lie_in_the_folder_of_the_run(
    data: dict[str, Any], channels: Any, queues: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_path: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    data["algorithm"]["replay_buffer"] |= {"storage": "disk"}
    data["runner"]["logger"] = {"log_path": log_path.format(tmp_path)}
    cfg = read_off_policy(data)
    sent, worker = trajectories(cfg, channels, queues), actor(cfg)
    worker.recv_rollout_batch(sent, 1)
    assert isinstance(worker._replay._columns["observation.states"].base, np.memmap)
    assert (tmp_path / cfg.runner.experiment_name / "replay").is_dir()


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("algorithm", {"loss_type": "toy_loss"}, "algorithm.loss_type: no off-policy objective named 'toy_loss'"),
        ("algorithm", {"gamma": 1.5}, "algorithm.gamma"),
        ("algorithm", {"utd": -1}, "algorithm.utd"),
        ("algorithm", {"replay_buffer": {"capacity": 7}}, "algorithm.replay_buffer.capacity: 7 transitions are fewer than the 12"),
        (
            "algorithm",
            {"replay_buffer": {"capacity": 7, "min_buffer_size": 2}},
            "algorithm.replay_buffer.capacity: 7 transitions can't be parted over 4 environments with two each",
        ),
        ("algorithm", {"start_steps": 50}, "runner.max_steps: the run collects 48 transitions, and the first update needs 50"),
        ("actor", {"model": {"model_type": "toy_q", "heads": 0}}, "actor.model.num_q_heads: 'toy_objective' learns Q-functions"),
        ("actor", {"training_backend": "toy_trainer"}, "actor.training_backend: 'toy_trainer' does not train off-policy"),
        ("actor", {"gate": "step_zero"}, "actor.gate: unknown key"),
    ],
)
def test_a_configuration_that_learns_nothing_is_refused(
    data: dict[str, Any], section: str, changes: dict[str, Any], said: str
) -> None:
    expect_refusal(data, section, changes, said)


def test_what_the_simulator_tells_is_refused(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = read_off_policy(data)
    spec = EnvSpec(observation=STATES, action=BOX, max_episode_steps=9)
    numbered = replace(spec, action=ArraySpec(shape=(), dtype="int64", low=np.array(0), high=np.array(1)))
    several = replace(spec, action=ArraySpec(shape=(2,), dtype="int64", low=np.zeros(2), high=np.ones(2)))
    check_actions(cfg, spec)
    with pytest.raises(ConfigError, match=r"algorithm\.loss_type: 'toy_objective' learns vectors of numbers"):
        check_actions(cfg, numbered)
    values = replace(cfg, algorithm=replace(cfg.algorithm, loss_type="toy_values", objective=ToyValues()))
    check_actions(values, numbered)
    for wrong, found in ((spec, "vectors of numbers"), (several, "several numbers")):
        with pytest.raises(ConfigError, match=f"'toy_values' chooses one numbered action.*{found}"):
            check_actions(values, wrong)
    unbounded = replace(spec, action=ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -np.inf), high=np.full(1, np.inf)))
    check_actions(cfg, unbounded)
    drawn = replace(cfg, algorithm=replace(cfg.algorithm, start_steps=9))
    with pytest.raises(ConfigError, match=r"algorithm\.start_steps: 9 decisions"):
        check_actions(drawn, unbounded)
    # 60 transitions of 4 + 4 + 7 bytes.
    monkeypatch.setattr("rlinf.runners.off_policy.rules.available_memory", lambda: 60 * 15)
    check_actions(cfg, spec)
    monkeypatch.setattr("rlinf.runners.off_policy.rules.available_memory", lambda: 60 * 15 - 1)
    with pytest.raises(ConfigError, match=r"algorithm\.replay_buffer\.capacity: 60 transitions of 15 bytes.*at most 53"):
        check_actions(cfg, spec)


def test_a_disk_without_room_is_refused_before_the_run(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec(observation=STATES, action=BOX, max_episode_steps=9)
    data["runner"] |= {"logger": {"log_path": str(tmp_path / "new")}, "save_interval": 1, "max_steps": 2}
    for storage, needed in (("memory", 2 * 60 * 15), ("disk", 60 * 4 + 2 * 60 * 15)):
        data["algorithm"]["replay_buffer"] |= {"storage": storage}
        cfg = read_off_policy(data)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=needed: SimpleNamespace(free=free))
        check_actions(cfg, spec)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=needed: SimpleNamespace(free=free - 1))
        with pytest.raises(ConfigError, match=rf"capacity: 60 transitions and their checkpoints.*disk of '{tmp_path}'"):
            check_actions(cfg, spec)


def test_memory_lowers_the_capacity(data: dict[str, Any]) -> None:
    spec = EnvSpec(observation=STATES, action=BOX, max_episode_steps=9)
    data["algorithm"]["replay_buffer"] |= {"max_gib": 15 * 40 / 2**30}
    assert read_off_policy(data).capacity(spec) == 40
    data["algorithm"]["replay_buffer"] |= {"max_gib": 15 * 11 / 2**30}
    with pytest.raises(ConfigError, match=r"max_gib.*hold 11 transitions of 15 bytes, and the run needs 12"):
        read_off_policy(data).capacity(spec)


def acting(objective: Any, start_steps: int = 0) -> Any:
    exploration = Exploration(objective=objective, start_steps=start_steps, decisions_per_iteration=10)
    return exploration(Constant(1.0, 2.0), EnvSpec(observation=STATES, action=BOX, max_episode_steps=9))


def generators(*rows: int) -> RowGenerators:
    return RowGenerators(tuple((count, torch.Generator().manual_seed(number)) for number, count in enumerate(rows)))


def test_the_first_decisions_are_drawn_within_the_bounds() -> None:
    # Ten in each iteration: the first two have all of the twenty.
    policy, obs = acting(ToyObjective(), start_steps=20), {"states": torch.zeros(4000, 1)}
    for step, uniform in ((0, True), (1, True), (2, False)):
        policy.set_global_step(step)
        action = policy.predict_action_batch(obs, generator=torch.Generator().manual_seed(0)).action
        assert (len(action.unique()) > 1) == uniform
        if uniform:
            assert action.min() >= -1
            assert action.max() <= 3
            assert float(action.mean()) == pytest.approx(1.0, abs=0.1)
        assert (policy.predict_action_batch(obs, "eval").action == 2).all(), "an evaluation is never disturbed"


def test_an_objective_explores_around_the_best_action() -> None:
    policy, obs = acting(Adds()), {"states": torch.zeros(3, 1)}
    policy.set_global_step(2)
    together = policy.predict_action_batch(obs, generator=generators(2, 1)).action.flatten()
    assert ((together >= 22) & (together < 23)).all()
    assert together[0] == together[1] != together[2], "each request draws its own numbers"
    alone = policy.predict_action_batch({"states": torch.zeros(1, 1)}, generator=torch.Generator().manual_seed(1)).action
    assert alone.flatten()[0] == together[2]
    assert policy.version == 4
