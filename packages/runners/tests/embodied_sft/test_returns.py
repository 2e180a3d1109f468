"""What the steps of episodes are worth, by hand; and labels to disk and back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf.core.data import LossOutput
from rlinf.core.data.offline import ADVANTAGE_LABELS, OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.runners.embodied_sft.demonstrations import RETURNS, Demonstrations, Imitation, Valuation
from rlinf.runners.embodied_sft.labels import labels_of, read_labels, write_labels
from rlinf.runners.embodied_sft.returns import is_solved, returns_of, step_rewards


def an_episode(steps, *, solved, task="push", number=0):
    none = np.zeros(steps, np.bool_)
    last = np.arange(steps) == steps - 1
    return OfflineEpisode(
        number=number,
        observation={"states": np.arange(steps, dtype=np.float32)[:, None]},
        action=np.zeros((steps, 1), np.float32),
        reward=np.zeros(steps, np.float32),
        terminated=last if solved else none,
        truncated=none if solved else last,
        task=task,
        success=last & solved,
    )


def test_rewards_by_hand():
    """Of at most four steps, where a failure costs as much as one whole episode."""
    solved, failed = (step_rewards(3, solved=end, longest=4, failure_penalty=1.0).tolist() for end in (True, False))
    assert solved == [-0.125, -0.125, 0.0]
    assert failed == [-0.125, -0.125, -0.5]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 5.0])
def test_returns_lie_between_minus_one_and_zero_and_a_failure_is_worse(penalty):
    episodes = [an_episode(3, solved=True), an_episode(7, solved=False), an_episode(5, solved=True, task="pull")]
    short, failed, other = returns_of(episodes, failure_penalty=penalty)
    for found in (short, failed, other):
        assert ((found >= -1.0 - 1e-6) & (found <= 0.0)).all()
    assert short[-1] == other[-1] == 0.0
    assert failed[0] == pytest.approx(-(6 / 7 + penalty) / (1 + penalty), abs=1e-6)
    # Of its own task it is the longest; the short one of the other is not.
    assert other[0] == pytest.approx(-4 / 5 / (1 + penalty))
    assert short[0] == pytest.approx(-2 / 7 / (1 + penalty))


def test_who_does_not_record_success_says_it_by_the_end():
    recorded, unknown = an_episode(2, solved=True), replace(an_episode(2, solved=True), success=None)
    assert is_solved(recorded)
    assert is_solved(unknown)
    assert not is_solved(replace(unknown, terminated=np.zeros(2, np.bool_)))


def test_labels_come_back_for_the_episodes_that_they_are_of(tmp_path):
    episodes = [an_episode(3, solved=True), an_episode(1, solved=False, number=1)]
    labels = [np.array([True, False, True]), np.array([False])]
    write_labels(tmp_path / "new" / "labels.npz", labels, advantages=np.zeros(4))
    path = str(tmp_path / "new" / "labels.npz")
    assert [each.tolist() for each in labels_of(path, episodes)] == [[True, False, True], [False]]
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["labels.npz"]
    with pytest.raises(ConfigError, match=r"data\.labels: .* has labels of 2 episodes, and data of 3"):
        read_labels(path, 3)
    with pytest.raises(ConfigError, match="has labels of 1 steps of episode 1, and data of 2"):
        labels_of(path, [episodes[0], an_episode(2, solved=True, number=1)])
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    for name in ("broken.npz", "none.npz"):
        with pytest.raises(ConfigError, match=r"data\.labels: expected labels at .*label_advantages\.py"):
            read_labels(str(tmp_path / name), 2)


def test_policy_and_value_model_are_shown_what_is_known_of_each_step():
    seen = {}

    def loss(*shown, **more):
        seen.update(shown=shown, more=more)
        return LossOutput(total=torch.ones(()), weight=torch.ones(()), metrics={})

    episodes, tasks = [an_episode(2, solved=True), an_episode(3, solved=False, task="pull")], ["pull", "push"]
    columns = {ADVANTAGE_LABELS: [np.array([0, 1]), np.array([1, 0, 0])], RETURNS: returns_of(episodes, failure_penalty=1.0)}
    batch = Demonstrations(episodes, chunk=1, tasks=tasks, columns=columns).batch([1, 2])
    moved = SimpleNamespace(trajectory=batch.trajectory.map(torch.as_tensor))
    Imitation(tasks, torch.Generator()).of_policy(SimpleNamespace(sft_loss=loss), moved)
    observed = seen["shown"][0]
    assert observed[ADVANTAGE_LABELS].tolist() == [1, 1]
    Valuation(tasks).of_policy(SimpleNamespace(return_loss=loss), moved)
    observed, returns = seen["shown"]
    assert ADVANTAGE_LABELS not in observed
    assert observed["task_descriptions"].tolist() == ["push", "pull"]
    assert observed["states"].tolist() == [[1.0], [0.0]]
    assert returns.tolist() == pytest.approx([0.0, -(2 / 3 + 1) / 2])
    assert seen["more"]["mask"].tolist() == [True, True]
