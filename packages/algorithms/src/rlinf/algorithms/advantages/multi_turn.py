"""Group-relative advantages where a row is a turn, an agent's turn, or a clip of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.group import EPSILON, GroupEstimator, Scale, grpo
from rlinf.algorithms.advantages.grouping import Grouping, checked, numbered, pairs
from rlinf.algorithms.checks import expect_choice, expect_names, expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

TurnMode = Literal["turn", "trajectory"]
VideoMode = Literal["frame", "video"]


@takes_tensors
def grpo_dynamic(
    score: Tensor,
    episode: Tensor,
    group: Tensor,
    *,
    mode: TurnMode = "turn",
    valid: Tensor | None = None,
    scale: Scale = "group",
    unbiased: bool = True,
    eps: float = EPSILON,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """Group-relative advantages of the turns of episodes, which may differ in number.

    turn:        Âᵢ = (sᵢ − mean_g) / (std_g + ε) over all turns of the question
    trajectory:  Sₑ = mean of sᵢ over the turns of episode e,   Âᵢ = (Sₑ₍ᵢ₎ − mean_g) / (std_g + ε) over its episodes

    GRPO: Shao et al., "DeepSeekMath" (2024), §4.1, arXiv:2402.03300. In the second an episode counts once, however many turns and
    agents it has.

    Args:
        score: `[B]`, the outcome of each turn.
        episode: `[B]` int, rows of one episode share a number; a number may come again in another group.
        group: `[B]` int, rows that answer the same question share a number.
        mode: over what the statistics go.
        valid: `[B]` bool, False for a row that takes part in no statistics; None if all do.
        scale: as in `grpo`; in "trajectory" the "batch" is that of all episodes.
        unbiased: whether a variance is divided by n − 1 (Bessel) rather than n.
        eps: ε ≥ 0.
        all_reduce: sums a tensor over ranks; called, twice, only to scale by the batch. None if there is one rank.

    Returns:
        `[B]`, float32 or finer; 0 for a row that is not valid.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `mode` or `scale` is unknown, or `eps` is negative.
    """
    expect_choice("grpo_dynamic(mode)", mode, get_args(TurnMode))
    counted = checked("grpo_dynamic", score, group, valid)
    expect_names("grpo_dynamic(episode)", episode)
    expect_shape("grpo_dynamic(episode)", episode, score.shape)
    if mode == "turn":
        return grpo(score, group, valid=counted, scale=scale, unbiased=unbiased, eps=eps, all_reduce=all_reduce)
    episodes = Grouping.of(pairs(group, episode), counted)
    # Each episode's group, written by any of its rows, as all agree.
    question = torch.zeros_like(episodes.count, dtype=torch.int64).scatter(0, episodes.index, numbered(group)[0])
    advantage = grpo(
        episodes.mean(score),
        question,
        # The mean of an episode of which no row counts is NaN.
        valid=episodes.count > 0,
        scale=scale,
        unbiased=unbiased,
        eps=eps,
        all_reduce=all_reduce,
    )
    return episodes.counted(episodes.of_rows(advantage)).to(torch.promote_types(score.dtype, torch.float32))


@takes_tensors
def grpo_video(
    reward: Tensor,
    group: Tensor,
    mask: Tensor,
    *,
    mode: VideoMode,
    unbiased: bool = True,
    eps: float = EPSILON,
) -> Tensor:
    """Group-relative advantages of the frames of a video.

    frame:  Âᵢₜ = (rᵢₜ − mean) / (std + ε) over the rows i of the group, for each step t by itself
    video:  Âᵢₜ = (rᵢₜ − mean) / (std + ε) over the rows and the steps of the group

    GRPO: Shao et al., "DeepSeekMath" (2024), §4.1, arXiv:2402.03300.

    Args:
        reward: `[B, T]`, the reward of each step.
        group: `[B]` int, rows of one group share a number.
        mask: `[B, T]` bool, False where nothing was decided.
        mode: over what the statistics go.
        unbiased: whether a variance is divided by n − 1 (Bessel) rather than n.
        eps: ε ≥ 0.

    Returns:
        `[B, T]`, float32 or finer; 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `mode` is unknown, or `eps` is negative.
    """
    expect_choice("grpo_video(mode)", mode, get_args(VideoMode))
    expect_shape("grpo_video(mask)", mask, reward.shape)
    expect_names("grpo_video(group)", group)
    expect_shape("grpo_video(group)", group, reward.shape[:1])
    name = group[:, None].expand(reward.shape)
    if mode == "frame":
        step = torch.arange(reward.shape[1], device=group.device).expand(reward.shape)
        name = pairs(name.flatten(), step.flatten())
    return grpo(reward.flatten(), name.flatten(), valid=mask.flatten(), unbiased=unbiased, eps=eps).reshape(reward.shape)


@dataclass(frozen=True, slots=True)
class GRPODynamic(GroupEstimator):
    """Turn- and trajectory-level GRPO by name: `algorithm.adv_type: grpo_dynamic`. Without `episode`, every row is its own."""

    advantage_mode: TurnMode = "turn"
    """Whether statistics go over all turns of a question, or over the mean scores of its episodes."""

    def __post_init__(self) -> None:
        GroupEstimator.__post_init__(self)
        expect_choice("advantage_mode", self.advantage_mode, get_args(TurnMode))

    def of_rows(self, x: CreditInputs, score: Tensor, mask: Tensor, all_reduce: AllReduce | None) -> Tensor:
        group = x.need("group", by="GRPODynamic")
        episode = torch.arange(len(group), device=group.device) if x.episode is None else x.episode
        return grpo_dynamic(score, episode, group, mode=self.advantage_mode, **self.options(mask, all_reduce))


@dataclass(frozen=True, slots=True)
class GRPOVideo(Estimator):
    """Frame- and video-level GRPO by name: `algorithm.adv_type: grpo_video`."""

    has_targets: ClassVar[bool] = False

    advantage_mode: VideoMode
    """Whether statistics go over the group for each step by itself, or over all its steps."""
    unbiased: bool = True
    """Whether a variance is divided by n − 1 rather than n."""
    eps: float = EPSILON
    """What is added to the deviation, ≥ 0."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_choice("advantage_mode", self.advantage_mode, get_args(VideoMode))
        expect_range("eps", self.eps, 0.0, float("inf"))

    @property
    def needs(self) -> Mapping[Need, str]:
        """Groups, where a step is compared with nothing but the same step of others."""
        return {"group": ""} if self.advantage_mode == "frame" else {}

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        """Advantages `[B, T]`, one for each step; no targets."""
        reward, group = (x.need(name, by="GRPOVideo") for name in ("reward", "group"))
        mask = x.decided(by="GRPOVideo")
        return grpo_video(reward, group, mask, mode=self.advantage_mode, unbiased=self.unbiased, eps=self.eps), None
