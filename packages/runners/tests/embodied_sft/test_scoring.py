"""What models say of the steps of an episode, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf.core.data import LossOutput
from rlinf.core.data.offline import OfflineEpisode
from rlinf.runners.embodied_sft import scoring
from rlinf.runners.embodied_sft.demonstrations import LATER, OFFSETS, Demonstrations, Progress
from rlinf.runners.embodied_sft.scoring import progress_of, values_of


class TwoCritics:
    """The first one believes what it sees, the second half of it."""

    def expected_offsets(self, env_obs, later_obs):
        assert set(env_obs["task_descriptions"]) == {"push"}
        offset = torch.as_tensor(later_obs["states"] - env_obs["states"])[:, 0]
        return torch.stack([offset, offset / 2])

    def state_values(self, env_obs):
        return -torch.as_tensor(env_obs["states"])[:, 0]


def an_episode(steps, *, begin=0.0, task="push", last=True):
    """State t is (begin + t)²."""
    none = np.zeros(steps, np.bool_)
    return OfflineEpisode(
        number=0,
        observation={"states": (begin + np.arange(steps + last, dtype=np.float32)[:, None]) ** 2},
        action=np.zeros((steps, 1), np.float32),
        reward=np.zeros(steps, np.float32),
        terminated=none,
        truncated=none,
        task=task,
    )


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_progress_is_what_lies_between_a_step_and_the_nth_after_it(at_once, monkeypatch):
    monkeypatch.setattr(scoring, "_AT_ONCE", at_once)
    found = progress_of(TwoCritics(), an_episode(5), steps=2)
    # States are 0, 1, 4, 9, 16, 25: the last step is judged with the one before it.
    assert found.tolist() == [[4, 8, 12, 16, 16], [2, 4, 6, 8, 8]]


def test_what_was_seen_last_may_not_be_there():
    assert progress_of(TwoCritics(), an_episode(5, last=False), steps=2)[0].tolist() == [4, 8, 12, 12, 12]


@pytest.mark.parametrize("steps", [3, 9])
def test_a_short_episode_is_judged_as_a_whole(steps):
    assert progress_of(TwoCritics(), an_episode(3), steps=steps)[0].tolist() == [9, 9, 9]


def test_a_single_frame_gets_nowhere():
    assert progress_of(TwoCritics(), an_episode(1, last=False), steps=4).tolist() == [[0], [0]]


@pytest.mark.parametrize("at_once", [2, 256])
def test_values_are_of_what_was_seen_before_each_step(at_once, monkeypatch):
    monkeypatch.setattr(scoring, "_AT_ONCE", at_once)
    assert values_of(TwoCritics(), an_episode(3)).tolist() == [0, -1, -4]


def test_critics_are_shown_two_frames_and_their_offset():
    shown = {}

    class Critic:
        def offset_loss(self, env_obs, later_obs, offsets, *, mask):
            shown.update(first=env_obs, second=later_obs, offsets=offsets, mask=mask)
            return LossOutput(total=torch.ones(()), weight=torch.ones(()), metrics={})

    episodes = [an_episode(2), an_episode(2, begin=3.0, task="pull")]
    batch = Demonstrations(episodes, chunk=1, tasks=["pull", "push"]).batch([1, 2], pairs=np.random.default_rng(0))
    moved = SimpleNamespace(trajectory=batch.trajectory.map(torch.as_tensor))
    Progress(["pull", "push"]).of_policy(Critic(), moved)
    context = batch.trajectory.context
    assert shown["first"]["states"][:, 0].tolist() == [1, 9]
    assert shown["second"]["states"].tolist() == context[LATER]["states"][:, 0].tolist()
    assert [shown[name]["task_descriptions"].tolist() for name in ("first", "second")] == [["push", "pull"]] * 2
    assert (shown["offsets"].tolist(), shown["mask"].tolist()) == (context[OFFSETS][:, 0].tolist(), [True, True])
