"""Every range that a docstring names is a range that is checked, in the function and in the dataclass of that name."""

import math
from dataclasses import replace

import pytest
import torch

from rlinf.algorithms import advantages, objectives, rewards
from rlinf.algorithms.losses.filters import dynamic_sampling
from rlinf.algorithms.losses.policy.covariance import clip_cov
from rlinf.algorithms.losses.policy.decoupled import DecoupledActorCritic, DecoupledPPO, decoupled_ppo
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ADVANTAGES

NAN = math.nan
X, V, NO = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.bool)
SCORE, GROUP = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
EACH = torch.full((2, 3), 0.5)

RETURNS = {
    "gae": lambda **k: advantages.gae(X, V, NO, NO, **{"gamma": 0.9, "lam": 0.9, **k}),
    "td_errors": lambda **k: advantages.td_errors(X, V, NO, NO, **{"gamma": 0.9, **k}),
    "lambda_returns": lambda **k: advantages.lambda_returns(X, V, NO, NO, **{"gamma": 0.9, "lam": 0.9, **k}),
    "discounted_returns": lambda **k: advantages.discounted_returns(X, NO, NO, **{"gamma": 0.9, **k}),
    "n_step_returns": lambda **k: advantages.n_step_returns(X, V, NO, NO, **{"gamma": 0.9, "n": 2, **k}),
    "vtrace": lambda **k: advantages.vtrace(X, V, NO, NO, X, **{"gamma": 0.9, **k}),
}


def outside(x, column=1):
    """0.5 for each decision, and `x` for one of them."""
    found = EACH.clone()
    found[1, column] = x
    return found


@pytest.mark.parametrize("name", RETURNS)
@pytest.mark.parametrize("bad", [1.5, -0.1, NAN, math.inf, outside(1.5), outside(NAN)], ids=repr)
def test_a_discount_outside_0_and_1_is_refused(name, bad):
    with pytest.raises(ConfigError, match=rf"{name}\(gamma\): expected a value in \[0, 1\], found "):
        RETURNS[name](gamma=bad)
    if name not in ("td_errors", "discounted_returns"):
        with pytest.raises(ConfigError, match=rf"{name}\(lam\): expected a value in \[0, 1\], found "):
            RETURNS[name](lam=bad)


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_a_scale_or_a_normalization_that_does_not_exist_is_refused_in_code_too(name):
    made = ADVANTAGES.build(name, {"advantage_mode": "frame"} if name == "grpo_video" else {}, place="algorithm")
    for field in ("loss_scale", "normalize_advantages"):
        with pytest.raises(ConfigError, match=field):
            replace(made, **{field: "nonsense"})


def test_a_discount_of_what_is_masked_may_be_anything():
    mask = torch.tensor([[True] * 3, [True, False, True]])
    found = advantages.gae(X + 1, V, NO, NO, gamma=outside(NAN), lam=outside(7.0), mask=mask)
    assert found[0].isfinite().all()


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("reinforce_plus_plus(kl_beta)", lambda bad: advantages.reinforce_plus_plus(X, ~NO, kl=X, kl_beta=bad)),
        ("raw(eps)", lambda bad: advantages.raw(X, ~NO, eps=bad)),
        ("whiten(eps)", lambda bad: advantages.whiten(X, ~NO, eps=bad)),
        ("grpo(eps)", lambda bad: advantages.grpo(SCORE, GROUP, eps=bad)),
        ("repetition(ngram)", lambda bad: rewards.repetition("a b", ngram=bad)),
        ("td_target(gamma)", lambda bad: objectives.td_target(SCORE, GROUP > 0, SCORE, gamma=torch.tensor([0.5, bad]))),
    ],
)
@pytest.mark.parametrize("bad", [-1.0, NAN])
def test_a_number_out_of_range_is_refused_by_functions(place, call, bad):
    with pytest.raises(ConfigError) as caught:
        call(bad)
    assert caught.value.place == place


@pytest.mark.parametrize("bounds", [{"low": 5.0, "high": 1.0}, {"low": NAN}, {"high": NAN}])
def test_bounds_between_which_nothing_lies_are_refused(bounds):
    with pytest.raises(ConfigError, match=r"clip_cov\(low\): expected at most the upper bound"):
        clip_cov(X, X, X, ~NO, clip_ratio_low=0.2, clip_ratio_high=0.2, **bounds)
    with pytest.raises(ConfigError, match=r"dynamic_sampling\(low\): expected at most the upper bound"):
        dynamic_sampling(SCORE, GROUP, **bounds)


def test_words_that_do_not_exist_are_refused():
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    with pytest.raises(ConfigError, match=r"behave_weight_cap: expected one of drop, truncate, found 'drp'. Did you mean 'drop'"):
        decoupled_ppo(X, X, X, X, ~NO, **bounds, behave_weight_cap="drp", behave_weight_threshold=2.0)
    for loss in (DecoupledPPO, DecoupledActorCritic):
        with pytest.raises(ConfigError, match="behave_weight_cap"):
            loss(behave_weight_cap="drp")
        with pytest.raises(ConfigError, match="proximal: expected one of given, interpolated, found 'interpolate'"):
            loss(proximal="interpolate")
    for build, name in (
        (lambda: rewards.ExactMatch(extraction="box"), "extraction"),
        (lambda: rewards.Overlong(10, 5, unit="tokens"), "unit"),
        (lambda: rewards.SearchEM(answers="jsonl"), "answers"),
        (lambda: rewards.SearchR1(answers="jsonl"), "answers"),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: expected one of"):
            build()


GROUPED = {
    "grpo": advantages.grpo,
    "rloo": advantages.rloo,
    "opo": lambda score, group: advantages.opo(score, group, torch.ones(2)),
    "grpo_dynamic": lambda score, group: advantages.grpo_dynamic(score, GROUP, group),
    "grpo_video": lambda score, group: advantages.grpo_video(X, group, ~NO, mode="frame"),
    "reinforce_plus_plus": lambda score, group: advantages.reinforce_plus_plus(X, ~NO, group=group),
    "dynamic_sampling": dynamic_sampling,
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("group", [torch.tensor([0.1, 0.9]), GROUP > 0], ids=str)
def test_groups_that_are_no_integers_are_refused(name, group):
    with pytest.raises(ShapeError, match=r"\(group\): expected .*integers, found .*\. Number"):
        GROUPED[name](SCORE, group)
    GROUPED[name](SCORE, GROUP.to(torch.int16))


def test_episodes_that_are_no_integers_are_refused():
    with pytest.raises(ShapeError, match=r"grpo_dynamic\(episode\): expected integers, found torch.float32"):
        advantages.grpo_dynamic(SCORE, GROUP.float(), GROUP)


@pytest.mark.parametrize("bad", [NAN, math.inf])
@pytest.mark.parametrize(
    ("reward", "name"),
    [
        (rewards.ExactMatch, "correct"),
        (rewards.ExactMatch, "incorrect"),
        (rewards.MultipleChoice, "correct"),
        (rewards.ThinkFormat, "incorrect"),
        (rewards.AnswerFormat, "correct"),
        (rewards.TagFormat, "correct"),
        (rewards.Countdown, "other_value"),
        (rewards.SearchR1, "format_score"),
        (rewards.VQA, "qa_accuracy"),
        (lambda **k: rewards.Repetition(**{name: -x for name, x in k.items()}), "max_penalty"),
        (lambda **k: rewards.Verified(len, **k), "lowest"),
        (lambda **k: rewards.Part("exact_match", **k), "weight"),
    ],
)
def test_scores_that_are_no_numbers_are_refused(reward, name, bad):
    with pytest.raises(ConfigError, match=f"^{name}: expected a"):
        reward(**{name: bad})
