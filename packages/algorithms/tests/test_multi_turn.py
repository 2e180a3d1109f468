import math
from dataclasses import replace

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.group import grpo
from rlinf.algorithms.advantages.multi_turn import GRPODynamic, GRPOVideo, grpo_dynamic, grpo_video
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

# one question: episode 8 has turns 1 and 3 (mean 2), episode 5 has one turn, 6; another question with an episode 8 of its own
SCORE, EPISODE, GROUP = torch.tensor([1.0, 6.0, 3.0, 9.0]), torch.tensor([8, 5, 8, 8]), torch.tensor([0, 0, 0, 1])


def test_trajectories_by_hand():
    found = grpo_dynamic(SCORE, EPISODE, GROUP, mode="trajectory", eps=0.0)
    half = 0.5**0.5
    torch.testing.assert_close(found, torch.tensor([-half, half, -half, 0.0]))
    found = grpo_dynamic(SCORE, EPISODE, GROUP, mode="trajectory", scale="none")
    assert found.tolist() == [-2.0, 2.0, -2.0, 0.0]
    found = grpo_dynamic(SCORE, EPISODE, GROUP, mode="trajectory", unbiased=False, eps=1.0)
    torch.testing.assert_close(found, torch.tensor([-2 / 3, 2 / 3, -2 / 3, 0.0]))


def test_turns_by_hand():
    """1, 6, 3: mean 10/3, each turn by itself."""
    found = grpo_dynamic(SCORE, EPISODE, GROUP, scale="none")
    torch.testing.assert_close(found, torch.tensor([-7 / 3, 8 / 3, -1 / 3, 0.0]))
    torch.testing.assert_close(grpo_dynamic(SCORE, EPISODE, GROUP, eps=0.5), grpo(SCORE, GROUP, eps=0.5))


def test_a_batch_of_episodes_is_what_trajectories_are_scaled_by():
    found = grpo_dynamic(SCORE, EPISODE, GROUP, mode="trajectory", scale="batch", eps=0.0, all_reduce=lambda x: 3 * x)
    spread = torch.tensor([2.0, 6.0, 9.0] * 3).std()
    torch.testing.assert_close(found, torch.tensor([-2.0, 2.0, -2.0, 0.0]) / spread)


def test_frames_and_videos_by_hand():
    reward = torch.tensor([[1.0, 2.0, math.nan], [3.0, 6.0, 5.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True] * 3, [False, True, True]])
    group = torch.tensor([7, 7, -2])
    half = 0.5**0.5
    frame = grpo_video(reward, group, mask, mode="frame", eps=0.0)
    torch.testing.assert_close(frame, torch.tensor([[-half, -half, 0.0], [half, half, 0.0], [0.0] * 3]))
    # 1, 2, 3, 6, 5: mean 3.4, squares 17.2
    video = grpo_video(reward, group, mask, mode="video", eps=0.0, unbiased=False)
    expected = torch.tensor([[-2.4, -1.4, 0.0], [-0.4, 2.6, 1.6], [0.0] * 3]) / (17.2 / 5) ** 0.5
    torch.testing.assert_close(video, expected)


def close(found, expected, dtype):
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-7 if dtype == torch.float64 else 1e-4
    expected = torch.tensor(expected, dtype=torch.float64).reshape(found.shape)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(0, 9),
    FLOATS,
    st.booleans(),
    st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["turn", "trajectory"]),
            "scale": st.sampled_from(["group", "batch", "none"]),
            "unbiased": st.booleans(),
            "eps": st.sampled_from([0.001, 1.0]),
        }
    ),
)
def test_turns_equal_their_specification(seed, rows, dtype, partly, options):
    torch.manual_seed(seed)
    score, episode, group = torch.randn(rows).to(dtype), torch.randint(-2, 2, (rows,)), torch.randint(0, 3, (rows,))
    valid = torch.rand(rows) < 0.7 if partly else None
    if partly:
        score[~valid] = math.nan
    expected = reference.grpo_dynamic(
        score.tolist(), episode.tolist(), group.tolist(), valid=valid.tolist() if partly else None, **options
    )
    before = score.clone()
    close(grpo_dynamic(score, episode, group, valid=valid, **options), expected, dtype)
    assert torch.equal(score.nan_to_num(9.0), before.nan_to_num(9.0))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), FLOATS, st.sampled_from(["frame", "video"]), st.booleans())
def test_videos_equal_their_specification(seed, rows, columns, dtype, mode, unbiased):
    torch.manual_seed(seed)
    reward, mask = torch.randn(rows, columns).to(dtype), torch.rand(rows, columns) < 0.7
    group = torch.randint(0, 2, (rows,)) * 100
    reward[~mask] = math.nan
    options = {"mode": mode, "unbiased": unbiased, "eps": 0.01}
    expected = reference.grpo_video(reward.tolist(), group.tolist(), mask.tolist(), **options)
    close(grpo_video(reward, group, mask, **options), expected, dtype)


def test_episodes_of_one_turn_are_rows():
    episode = torch.arange(4)
    found = grpo_dynamic(SCORE, episode, GROUP, mode="trajectory")
    torch.testing.assert_close(found, grpo(SCORE, GROUP))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grpo_dynamic(SCORE, EPISODE[:2], GROUP), r"grpo_dynamic\(episode\)"),
        (lambda: grpo_dynamic(SCORE, EPISODE, GROUP[:2]), r"grpo_dynamic\(group\)"),
        (lambda: grpo_dynamic(SCORE, EPISODE, GROUP, valid=GROUP[:2]), r"grpo_dynamic\(valid\)"),
        (lambda: grpo_video(SCORE[None], GROUP, SCORE[None] > 0, mode="frame"), r"grpo_video\(group\)"),
        (lambda: grpo_video(SCORE[None], GROUP[:1], SCORE > 0, mode="frame"), r"grpo_video\(mask\)"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: grpo_dynamic(SCORE, EPISODE, GROUP, mode="turns"),
        lambda: grpo_video(SCORE[None], GROUP[:1], SCORE[None] > 0, mode="turn"),
        lambda: GRPODynamic(advantage_mode="frame"),
        lambda: GRPODynamic(scale="bach"),
        lambda: GRPODynamic(eps=-1.0),
        lambda: GRPOVideo(advantage_mode="turn"),
        lambda: GRPOVideo(advantage_mode="video", eps=-1.0),
    ],
)
def test_a_wrong_option_is_refused(call):
    with pytest.raises(ConfigError, match=r"mode|scale|eps"):
        call()


@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize(
    "estimator",
    [
        GRPODynamic(),
        GRPODynamic(advantage_mode="trajectory", scale="batch"),
        GRPOVideo(advantage_mode="frame"),
        GRPOVideo(advantage_mode="video"),
    ],
)
def test_contract(estimator, group_size):
    def with_episodes(trajectory, *, all_reduce=None):
        return estimator(replace(trajectory, episode=trajectory.group * 2), all_reduce=all_reduce)

    AdvantageContract(advantage=estimator, as_array=torch.as_tensor, group_size=group_size).run()
    AdvantageContract(advantage=with_episodes, as_array=torch.as_tensor, group_size=group_size).run()


MASK = torch.tensor([[True, True], [True, False], [True, True], [False, False]])


def test_turns_by_name():
    group = torch.tensor([0, 0, 0, 0])
    x = CreditInputs(score=SCORE, episode=EPISODE, group=group, mask=MASK)
    for mode in ("turn", "trajectory"):
        options = {"unbiased": False, "eps": 0.5, "scale": "batch"}
        expected = grpo_dynamic(SCORE, EPISODE, group, mode=mode, valid=MASK.any(1), all_reduce=lambda x: x * 2, **options)
        found, target = GRPODynamic(advantage_mode=mode, **options).of(x, all_reduce=lambda x: x * 2)
        torch.testing.assert_close(found, torch.where(MASK, expected[:, None], 0.0))
        assert target is None
    alone, _ = GRPODynamic(advantage_mode="trajectory").of(replace(x, episode=None))
    torch.testing.assert_close(alone, torch.where(MASK, grpo(SCORE, group, valid=MASK.any(1))[:, None], 0.0))


def test_videos_by_name():
    reward = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    for mode in ("frame", "video"):
        found, target = GRPOVideo(advantage_mode=mode, unbiased=False, eps=0.5).of(
            CreditInputs(reward=reward, group=GROUP, mask=MASK)
        )
        torch.testing.assert_close(found, grpo_video(reward, GROUP, MASK, mode=mode, unbiased=False, eps=0.5))
        assert target is None
