"""The embodied actor without a cluster, on a trainer that says what it is told to."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from embodied_actor_toy import SEEN, Tells, actor, rows
from ranks_toy import Meeting

from rlinf.core.data import Trajectory
from rlinf.core.errors import ConfigError, NonFiniteError
from rlinf.runners.embodied.filtering import without_cut_off, without_filtered
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.training.finite import SkippedSteps


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def test_the_gate_is_asked_once_and_in_micro_batches(toy_data: dict[str, Any]) -> None:
    trainer = Tells()
    worker = actor(toy_data, trainer, rows(4), micro_batch_size=3)
    worker.compute_advantages_and_returns()
    metrics = worker.run_training(0)
    assert trainer.asked == [3, 3, 2]
    ((gate, scores),) = SEEN
    assert (scores.rollout - scores.trainer).unique().tolist() == [0.5], "each decision with its own"
    assert scores.mask.shape == scores.rollout.shape == _shape(scores.version) == (8, 1, 2, 2)
    assert scores.trainer_version == 3
    assert (gate.tolerance, gate.allowed_share) == (1e-3, 0.0)
    assert metrics["gap"].mean == 1.0
    worker._trajectory = rows(4)
    worker.compute_advantages_and_returns()
    worker.run_training(1)
    assert len(SEEN) == 1


def test_a_library_multiplies_for_the_policy_that_is_trained(toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("rlinf.runners.embodied.actor_worker.choose_products", asked.append)
    worker = actor(toy_data, Tells(), rows(4))
    assert asked == [worker._policy]


def test_without_micro_batches_a_pass_is_no_larger_than_in_training(toy_data: dict[str, Any]) -> None:
    trainer = Tells()
    worker = actor(toy_data, trainer, rows(4), global_batch_size=4)
    worker.compute_advantages_and_returns()
    worker.run_training(0)
    assert trainer.asked == [4, 4]


def test_a_policy_with_a_memory_learns_from_whole_pieces_of_episodes(toy_data: dict[str, Any]) -> None:
    """Micro-batches of 7 decisions are 2 rows of 3; 8 decisions in batches of 6 are 2 optimizer steps in each epoch."""
    trainer, taken = Tells(), list[Any]()
    trainer.step = lambda parts, loss: taken.append(parts) or {}
    worker = actor(toy_data, trainer, rows(4), micro_batch_size=7, global_batch_size=6)
    worker._policy = SimpleNamespace(initial_state=dict, next_state=dict)
    credit = worker.compute_advantages_and_returns()
    assert (credit["rewards"].sum, credit["rewards"].weight) == (8, 8), "padding does not count"
    worker.run_training(0)
    assert trainer.asked == [2, 2]
    steps = 2 * worker.cfg.algorithm.update_epoch
    assert [[_shape(part.trajectory.reward) for part in parts] for parts in taken] == [[(2, 3)]] * steps
    first = torch.cat([part.trajectory.context["number"][:, 0] for parts in taken[:2] for part in parts])
    assert sorted(first.tolist()) == [0, 3, 6, 9], "every row once in an epoch"
    ((_, scores),) = SEEN
    assert scores.mask.sum() == 8 * 4


@pytest.mark.parametrize(
    ("precision", "changes", "expected"),
    [
        ("bf16", {}, (0.1, 0.01)),
        ("fp16", {}, (0.02, 0.01)),
        (None, {}, (1e-3, 0.0)),
        ("bf16", {"logprob_tolerance": 0.3}, (0.3, 0.01)),
        ("bf16", {"logprob_outliers": 0.0}, (0.1, 0.0)),
    ],
)
def test_the_tolerance_follows_the_precision_unless_it_is_set(
    toy_data: dict[str, Any], precision: str | None, changes: dict[str, Any], expected: tuple[float, float]
) -> None:
    worker = actor(toy_data, Tells(precision), rows(2), **changes)
    worker.compute_advantages_and_returns()
    worker.run_training(0)
    assert (SEEN[0][0].tolerance, SEEN[0][0].allowed_share) == expected


def test_a_gate_that_nobody_registered_is_refused(toy_data: dict[str, Any]) -> None:
    toy_data["actor"] |= {"gate": "sees_score"}
    with pytest.raises(ConfigError, match=r"actor\.gate: no gate named 'sees_score'\. Did you mean 'sees_scores'"):
        read_embodied(toy_data).actor.build_gate()


@pytest.mark.parametrize(("key", "value"), [("logprob_tolerance", 0), ("logprob_outliers", 1.0), ("logprob_tolerance", math.nan)])
def test_a_tolerance_that_is_none_is_refused(toy_data: dict[str, Any], key: str, value: float) -> None:
    toy_data["actor"] |= {key: value}
    with pytest.raises(ConfigError, match=rf"actor\.{key}"):
        read_embodied(toy_data)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_reward_that_is_no_number_is_refused_unless_it_is_padding(toy_data: dict[str, Any], bad: float) -> None:
    trajectory = rows(3)
    trajectory.reward[1, 2] = bad
    worker = actor(toy_data, Tells(), trajectory)
    worker.compute_advantages_and_returns()
    trajectory.reward[2, 1] = bad
    worker._trajectory = trajectory
    message = rf"actor\[0\]: expected a finite reward, found {bad} for decision 1 of row 2 \(group 2\), and 1 such of 6 in all"
    with pytest.raises(NonFiniteError, match=message):
        worker.compute_advantages_and_returns()


def test_an_advantage_that_is_no_number_is_refused(toy_data: dict[str, Any]) -> None:
    worker = actor(toy_data, Tells(), rows(3), advantage=math.nan)
    with pytest.raises(NonFiniteError, match=r"finite advantage, found nan for decision 1 of row 0 .* Look at algorithm\.adv_type"):
        worker.compute_advantages_and_returns()


@pytest.mark.parametrize(
    ("column", "whose"),
    [("logprob", "that the rollout gave"), ("reference", "under the reference policy"), ("proximal", "under the weights before")],
)
def test_a_log_probability_that_is_no_number_is_refused_with_whose_it_is(toy_data: dict[str, Any], column: str, whose: str) -> None:
    trajectory = rows(3)
    bad = torch.zeros_like(trajectory.logprob)
    # One of four of a decision, and one of padding.
    bad[2, 1, 1, 0], bad[0, 2] = math.nan, math.nan
    worker = actor(toy_data, Tells(), replace(trajectory, **{column: bad}))
    message = rf"finite log-probability {whose}.*, found nan for decision 1 of row 2 \(group 2\), and 1 such of 6 in all"
    with pytest.raises(NonFiniteError, match=message):
        worker.compute_advantages_and_returns()


def test_a_skipped_step_names_the_numbers_that_are_none() -> None:
    skipped = SkippedSteps()
    assert skipped.add({"train/skipped": 0.5, "train/loss": math.nan, "train/clip": 0.1, "train/grad_norm": math.inf}) == [
        "skipped 50% of optimizer steps: train/loss is nan, train/grad_norm is inf"
    ]
    skipped = SkippedSteps()
    skipped.add({"train/skipped": 1.0, "train/loss": 0.5, "train/grad_norm": math.nan})
    skipped.add({"train/skipped": 1.0, "train/loss": math.nan})
    with pytest.raises(NonFiniteError, match=r"no weight has changed, first in iteration 1: train/grad_norm is nan\. "):
        skipped.check()


def test_steps_that_were_skipped_are_told_and_a_run_of_nothing_else_is_refused() -> None:
    skipped = SkippedSteps()
    skipped.check()
    why = "of optimizer steps: gradients are not finite, or nothing had weight"
    assert skipped.add({"train/skipped": 1.0}) == [f"skipped 100% {why}"]
    with pytest.raises(NonFiniteError, match=r"train/skipped: every optimizer step of 1 iterations was skipped"):
        skipped.check()
    assert skipped.add({"train/skipped": 0.25}) == [f"skipped 25% {why}"]
    assert skipped.add({}) == []
    skipped.check()


def test_steps_without_a_response_that_was_not_cut_off_say_so() -> None:
    skipped = SkippedSteps()
    (told,) = skipped.add({"train/skipped": 1.0, "rollout/overlong_filtered": 1.0})
    assert told == "skipped 100% of optimizer steps: algorithm.overlong_filtering left out all responses"
    with pytest.raises(NonFiniteError, match=r"In 1 of them algorithm\.overlong_filtering left out all .*max_new_tokens"):
        skipped.check()
    (told,) = skipped.add({"train/skipped": 1.0, "rollout/overlong_filtered": 0.5})
    assert "gradients are not finite" in told


def returns(*per_row: float) -> Trajectory[Any]:
    """Rows of three decisions, the third of them padding, in groups of two; the reward is paid with the first."""
    found = rows(len(per_row))
    found.reward[:, 0] = torch.tensor(per_row)
    found.reward[:, 1:] = torch.tensor([0.0, 99.0])
    return replace(found, group=torch.arange(len(per_row)) // 2 * 7)


def filtering(data: dict[str, Any], *, train: Any = (), **bounds: Any) -> None:
    data["algorithm"] |= {"filter_rewards": True, **bounds}
    data["env"]["train"] |= {"group_size": 2, "auto_reset": False, **dict(train)}


def test_groups_whose_mean_return_is_out_of_bounds_are_not_trained_on(toy_data: dict[str, Any]) -> None:
    filtering(toy_data, rewards_lower_bound=0.1, rewards_upper_bound=0.9)
    taken, trainer = list[Any](), Tells()
    trainer.step = lambda parts, loss: taken.append(parts) or {}
    worker = actor(toy_data, trainer, returns(0, 0, 0, 1, 1, 1, 0.1, 0.1), global_batch_size=24)
    credit = worker.compute_advantages_and_returns()
    assert (credit["filtered_groups"].sum, credit["filtered_groups"].weight) == (2, 4)
    assert credit["rewards"].sum == pytest.approx(3.2), "what was filtered is still told"
    worker.run_training(0)
    groups = {int(group) for parts in taken for part in parts for group in part.trajectory.group}
    assert groups == {7, 21}, "those that fail always and that succeed always are left out, the bounds belong to what is kept"
    assert sum(len(part) for part in taken[0]) == 8


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [({"rewards_lower_bound": 0.5}, {1, 2}), ({"rewards_upper_bound": 0.5}, {0, 1}), ({"rewards_upper_bound": 9}, {0, 1, 2})],
)
def test_one_bound_is_enough(toy_data: dict[str, Any], bounds: dict[str, float], kept: set[int]) -> None:
    filtering(toy_data, **bounds)
    found, _ = without_filtered(returns(0, 0, 0, 1, 2, 1), read_embodied(toy_data).algorithm)
    assert {int(group) // 7 for group in found.group[found.mask.any(1)]} == kept


def test_an_episode_that_began_late_and_was_cut_off_is_no_failure_of_its_group(toy_data: dict[str, Any]) -> None:
    """Two environments, six decisions in an epoch, all from one state: one is solved in two decisions, and its next episode has
    only four, too few to be solved; the other one is not solved in six. The mean of all three rows is 1/3; of what
    is known, 1 and 0, it is 1/2."""
    toy_data["env"]["train"] |= {"group_size": 2, "auto_reset": False, "max_steps_per_rollout_epoch": 6}
    toy_data["algorithm"] |= {"filter_rewards": True, "rewards_upper_bound": 0.9}
    cfg = read_embodied(toy_data)
    envs = cfg.env.train.total_num_envs
    found = returns(1, 0, 0)
    terminated = torch.zeros_like(found.terminated)
    terminated[0, 1] = True
    # The third rollout epoch begins with the 12th episode of each environment.
    number = torch.tensor([12 * envs, 13 * envs, 12 * envs + 1])
    found = replace(
        found, terminated=terminated, truncated=torch.zeros_like(terminated), group=torch.zeros(3).long(), episode=number
    )
    kept, told = without_cut_off(found, cfg)
    assert kept.mask.any(1).tolist() == [True, False, True]
    assert (told["cut_off_rows"].sum, told["cut_off_rows"].weight) == (1, 3)
    bounded, _ = without_filtered(kept, replace(cfg.algorithm, rewards_upper_bound=0.45))
    assert not bounded.mask.any(), "the mean of the group is that of what is known"
    solved = replace(found, terminated=terminated | torch.tensor([[False], [True], [False]]))
    assert without_cut_off(solved, cfg)[0].mask.any(1).all(), "one that ended counts, however late it began"
    limited = replace(found, truncated=torch.zeros_like(terminated) | torch.tensor([[False], [True], [False]]))
    assert without_cut_off(limited, cfg)[0].mask.any(1).all(), "one that its own limit ended, too"
    behind = replace(solved, mask=solved.mask & torch.tensor([[True], [False], [True]]))
    assert without_cut_off(behind, cfg)[1]["cut_off_rows"].sum == 1, "an end behind a row is none"
    alone = replace(cfg, algorithm=replace(cfg.algorithm, filter_rewards=False, rewards_upper_bound=None))
    assert without_cut_off(found, alone) == (found, {}), "nothing is compared"


def test_an_iteration_in_which_everything_is_filtered_changes_nothing(toy_data: dict[str, Any]) -> None:
    filtering(toy_data, rewards_lower_bound=2.0)
    trainer: Any = Tells()
    trainer.step = None
    worker = actor(toy_data, trainer, returns(0, 0, 1, 1))
    assert worker.compute_advantages_and_returns()["filtered_groups"].mean == 1.0
    assert worker.run_training(0) == {}


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"filter_rewards": True}, r"algorithm\.filter_rewards: true with rewards_lower_bound None"),
        ({"rewards_upper_bound": 0.5}, r"algorithm\.filter_rewards: false with .* rewards_upper_bound 0\.5"),
        (
            {"filter_rewards": True, "rewards_lower_bound": 1.0, "rewards_upper_bound": 0.5},
            r"algorithm\.rewards_lower_bound: expected at most rewards_upper_bound = 0\.5, found 1",
        ),
        (
            {"reward_type": "action_level"},
            r"algorithm\.reward_type: unknown key\. Leave it out: a chunk of actions is one",
        ),
    ],
)
def test_a_filter_that_filters_nothing_is_refused(toy_data: dict[str, Any], algorithm: dict[str, Any], message: str) -> None:
    toy_data["algorithm"] |= algorithm
    with pytest.raises(ConfigError, match=message):
        read_embodied(toy_data)


def train_together(workers: list[Any]) -> None:
    """An iteration of all ranks, each in a thread."""

    def train(worker: Any) -> None:
        worker.compute_advantages_and_returns()
        worker.run_training(0)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(train, workers))


def test_ranks_ask_equally_often(toy_data: dict[str, Any]) -> None:
    meeting, trainers, workers = Meeting(2), [Tells(), Tells()], list[Any]()
    for rank, count in enumerate((4, 1)):
        trainer: Any = trainers[rank]
        worker = actor(toy_data, trainer, rows(count), ranks=(rank, 2), micro_batch_size=3)
        trainer.all_reduce = partial(meeting.add, rank)
        workers.append(worker)

    train_together(workers)
    assert [trainer.asked for trainer in trainers] == [[3, 3, 2], [2, 2, 2]]
    assert sorted(len(scores.rollout) for _, scores in SEEN) == [2, 8]


def test_a_rank_whose_groups_are_all_filtered_keeps_pace(toy_data: dict[str, Any]) -> None:
    filtering(toy_data, rewards_lower_bound=0.5)
    meeting, trainers, workers, taken = Meeting(2), [Tells(), Tells()], list[Any](), [list[Any](), list[Any]()]
    for rank, trajectory in enumerate((returns(1, 1, 1, 1), returns(0, 0))):
        trainer: Any = trainers[rank]
        trainer.step = lambda parts, loss, into=taken[rank]: into.append(parts) or {}
        worker = actor(toy_data, trainer, trajectory, ranks=(rank, 2), global_batch_size=4)
        trainer.all_reduce = partial(meeting.add, rank)
        workers.append(worker)

    train_together(workers)
    steps = 2 * workers[0].cfg.algorithm.update_epoch
    assert [len(each) for each in taken] == [steps, steps]
    counted = [[sum(int(part.trajectory.mask.sum()) for part in parts) for parts in each] for each in taken]
    assert counted == [[4] * steps, [0] * steps]
    assert all(parts for parts in taken[1]), "a trainer refuses a step without a micro-batch"
