from dataclasses import dataclass

import pytest
import torch

from rlinf.algorithms.advantages.estimator import INPUT_NAMES as CREDIT_INPUTS
from rlinf.algorithms.advantages.estimator import Estimator
from rlinf.algorithms.advantages.returns import gae
from rlinf.algorithms.compat import (
    ADVANTAGES,
    ALIASES,
    ARGUMENTS,
    LOSSES,
    calculate_adv_and_returns,
    get_adv_and_returns,
    get_policy_loss,
    get_reward_class,
    policy_loss,
)
from rlinf.algorithms.losses.correction import CorrectionConfig
from rlinf.algorithms.losses.policy.gmpo import GMPO
from rlinf.algorithms.losses.policy.ppo import PPOClip, ppo_clip
from rlinf.algorithms.losses.policy_loss import INPUT_NAMES as LOSS_INPUTS
from rlinf.algorithms.losses.policy_loss import PolicyLoss
from rlinf.algorithms.losses.terms import Aggregation, Terms, aggregate
from rlinf.core import Credit, register_advantage, register_policy_loss
from rlinf.core.errors import ConfigError, DuplicateName, ShapeError, UnknownName
from rlinf.core.registry import ADVANTAGES as ADVANTAGE_REGISTRY
from rlinf.core.registry import LOSSES as LOSS_REGISTRY
from rlinf.core.registry import register_reward

G = torch.Generator().manual_seed(0)
LOGPROB, OLD, ADVANTAGE, VALUE, TARGET, OLD_VALUE = (torch.randn(3, 4, generator=G) for _ in range(6))
MASK = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
PPO = {"logprob": LOGPROB, "logprob_old": OLD, "advantage": ADVANTAGE, "mask": MASK}
NO = torch.zeros(3, 4, dtype=torch.bool)
GAE = {"reward": ADVANTAGE, "value": torch.randn(3, 5, generator=G), "terminated": NO, "truncated": NO}


def test_a_loss_by_name_is_the_mean_over_the_batch():
    logprob = LOGPROB.clone().requires_grad_()
    loss, metrics = policy_loss(loss_type="ppo_clip", **{**PPO, "logprob": logprob}, clip_ratio_low=0.1, clip_ratio_high=0.3)
    expected = ppo_clip(LOGPROB, OLD, ADVANTAGE, MASK, clip_ratio_low=0.1, clip_ratio_high=0.3)
    torch.testing.assert_close(loss.detach(), expected.total / 6)
    assert metrics == {name: metric.mean for name, metric in expected.metrics.items()}
    loss.backward()
    assert logprob.grad[MASK].abs().sum() > 0


def test_a_batch_without_decisions_has_the_loss_0():
    loss, _ = policy_loss(loss_type="ppo_clip", **{**PPO, "mask": NO})
    assert loss.item() == 0.0


@pytest.mark.parametrize("name", ["ppo_clip", "PPO_Clip", "PPO_CLIP"])
def test_names_in_any_case(name):
    assert get_policy_loss(name) is PPOClip
    assert policy_loss(loss_type=name, **PPO)[0] == policy_loss(loss_type="ppo_clip", **PPO)[0]
    assert get_adv_and_returns("GAE") is get_adv_and_returns("gae")


def test_the_names_that_users_know():
    old_names = {"logprobs": LOGPROB, "old_logprobs": OLD, "advantages": ADVANTAGE, "loss_mask": MASK}
    critic = {"values": VALUE, "prev_values": OLD_VALUE, "returns": TARGET}
    ours = {"value": VALUE, "value_old": OLD_VALUE, "target": TARGET}
    found = policy_loss(loss_type="actor_critic", **old_names, **critic, value_clip=0.2)
    assert found == policy_loss(loss_type="actor_critic", **PPO, **ours, value_clip=0.2)
    renamed = {"rewards": GAE["reward"], "values": GAE["value"], "loss_mask": MASK, "terminated": NO, "truncated": NO}
    for one, two in zip(
        calculate_adv_and_returns(adv_type="gae", **renamed),
        calculate_adv_and_returns(adv_type="gae", **GAE, mask=MASK),
        strict=True,
    ):
        assert torch.equal(one, two)


def test_every_alias_means_an_input():
    assert set(ALIASES.values()) <= {*LOSS_INPUTS, *CREDIT_INPUTS}
    once = {ours: theirs for theirs, ours in ALIASES.items() if ours in LOSS_INPUTS}
    assert set(LossRecorder.seen(**dict.fromkeys(once.values(), NO))) == set(once)


def test_an_advantage_by_name():
    advantage, target = calculate_adv_and_returns(adv_type="gae", **GAE, gamma=0.9, gae_lambda=0.8, normalize_advantages=False)
    expected = gae(*GAE.values(), gamma=0.9, lam=0.8)
    assert torch.equal(advantage, expected[0])
    assert torch.equal(target, expected[1])


def test_ranks_are_reduced():
    calls = []
    calculate_adv_and_returns(adv_type="gae", **GAE, all_reduce=lambda x: calls.append(1) or x)
    assert calls == [1, 1]


@pytest.mark.parametrize(
    ("loss_type", "inputs", "error", "message"),
    [
        (
            "ppo_clip",
            {"logprobb": LOGPROB},
            ConfigError,
            r"policy_loss\(ppo_clip\)\.logprobb: unknown argument. Did you mean 'logprob'",
        ),
        ("ppo_clip", {"clip_ratio_hi": 0.2}, ConfigError, r"\.clip_ratio_hi: unknown argument. Did you mean 'clip_ratio_high'"),
        (
            "ppo_clip",
            {"clip_ratio_low": 2.0},
            ConfigError,
            r"policy_loss\(ppo_clip\)\.clip_ratio_low: expected a value in \[0, 1\]",
        ),
        ("ppo_clip", {"clip_ratio_low": "a"}, ConfigError, r"policy_loss\(ppo_clip\)\.clip_ratio_low: expected a number"),
        ("ppo_clip", {"logprobs": OLD}, ConfigError, r"\.logprob: given twice, under two names. Pass 'logprob' alone"),
        ("ppo_clip", {"mask": None}, ConfigError, r"policy_loss\(ppo_clip\)\.mask: missing. Pass a bool tensor"),
        ("ppo_clip", {"logprob_old": None}, ShapeError, r"\(logprob_old\): expected a tensor, found None"),
        ("actor_critic", {}, ShapeError, r"\(value\): expected a tensor, found None. Use a policy with a critic"),
        ("ppo_clipp", {}, UnknownName, r"loss_type: no policy loss named 'ppo_clipp'. Did you mean 'ppo_clip'"),
    ],
)
def test_what_is_wrong_with_a_loss_is_named(loss_type, inputs, error, message):
    given = {name: value for name, value in {**PPO, **inputs}.items() if value is not None}
    with pytest.raises(error, match=message):
        policy_loss(loss_type=loss_type, **given)


@pytest.mark.parametrize(
    ("adv_type", "inputs", "error", "message"),
    [
        ("gae", {"rewrad": NO}, ConfigError, r"calculate_adv_and_returns\(gae\)\.rewrad: unknown argument. Did you mean 'reward'"),
        ("gae", {"gama": 0.9}, ConfigError, r"\.gama: unknown argument. Did you mean 'gamma'"),
        ("gae", {"gamma": 2.0}, ConfigError, r"calculate_adv_and_returns\(gae\)\.gamma: expected a value in \[0, 1\]"),
        ("gae", {"rewards": NO}, ConfigError, r"\.reward: given twice, under two names"),
        ("gae", {"value": None}, ShapeError, r"\(value\): expected a tensor, found None"),
        ("gaee", {}, UnknownName, r"adv_type: no advantage named 'gaee'. Did you mean 'gae'"),
    ],
)
def test_what_is_wrong_with_an_advantage_is_named(adv_type, inputs, error, message):
    given = {name: value for name, value in {**GAE, **inputs}.items() if value is not None}
    with pytest.raises(error, match=message):
        calculate_adv_and_returns(adv_type=adv_type, **given)


@register_policy_loss("Test_Named_Mine")
@dataclass(frozen=True, slots=True)
class Mine(PolicyLoss):
    """A stranger's loss with one hyper-parameter."""

    strength: float

    def policy_terms(self, x):
        loss = torch.where(x.mask, -self.strength * x.need("advantage", by="Mine") * x.need("logprob", by="Mine"), 0.0)
        return Terms(loss, {"policy_loss": loss.detach()})


class LossRecorder:
    """What reaches a loss by which name."""

    @staticmethod
    def seen(**inputs):
        found = {}

        @dataclass(frozen=True, slots=True)
        class Recorder(PolicyLoss):
            def policy_terms(self, x):
                found.update({name: getattr(x, name) for name in x.__slots__ if getattr(x, name) is not None})
                return Terms(torch.zeros(3, 4))

        register_policy_loss("test_named_recorder", Recorder)
        policy_loss(loss_type="test_named_recorder", **inputs)
        return found


def test_a_strangers_dataclass():
    loss, metrics = policy_loss(loss_type="test_named_mine", **PPO, strength=2.0, loss_agg_func="seq-mean-token-sum")
    expected = -2.0 * (ADVANTAGE * LOGPROB)[MASK].sum()
    torch.testing.assert_close(loss, expected / 2)
    assert metrics["policy_loss"] == pytest.approx(expected.item() / 6)
    with pytest.raises(ConfigError, match=r"policy_loss\(test_named_mine\)\.strength: missing"):
        policy_loss(loss_type="test_named_mine", **PPO)


def test_a_strangers_functions():
    @register_policy_loss("test_named_output")
    def output(logprob, advantage, *, mask, scale=1.0):
        return aggregate(-scale * logprob * advantage, mask)

    @register_policy_loss("test_named_pair")
    def pair(**inputs):
        return inputs["x"].sum(), {"count": 1.0}

    found, metrics = policy_loss(loss_type="TEST_NAMED_OUTPUT", logprob=LOGPROB, advantage=ADVANTAGE, mask=MASK, scale=2.0)
    torch.testing.assert_close(found, -2.0 * (LOGPROB * ADVANTAGE)[MASK].mean())
    assert metrics == {"loss": pytest.approx(found.item())}
    assert policy_loss(loss_type="test_named_pair", x=torch.ones(2)) == (2.0, {"count": 1.0})
    with pytest.raises(ConfigError, match=r"policy_loss\(test_named_output\)\.mask: missing. .*output needs it"):
        policy_loss(loss_type="test_named_output", logprob=LOGPROB, advantage=ADVANTAGE)
    with pytest.raises(ConfigError, match=r"policy_loss\(test_named_output\)\.scales: unknown argument. Did you mean 'scale'"):
        policy_loss(loss_type="test_named_output", logprob=LOGPROB, advantage=ADVANTAGE, mask=MASK, scales=2.0)


def test_a_strangers_advantages():
    @register_advantage("test_named_function")
    def function(reward, *, scale):
        return scale * reward, None

    @register_advantage("test_named_credit")
    def credit(reward):
        return Credit(advantage=reward, target=-reward)

    @register_advantage("test_named_estimator")
    @dataclass(frozen=True, slots=True)
    class Scaled(Estimator):
        scale: float = 3.0

        def of(self, x, *, all_reduce=None):
            return self.scale * x.need("reward", by="Scaled"), None

    for name in ("test_named_function", "test_named_estimator"):
        advantage, target = calculate_adv_and_returns(adv_type=name, reward=ADVANTAGE, scale=2.0)
        assert torch.equal(advantage, 2.0 * ADVANTAGE)
        assert target is None
    advantage, target = calculate_adv_and_returns(adv_type="test_named_credit", reward=ADVANTAGE)
    assert torch.equal(target, -ADVANTAGE)
    assert torch.equal(advantage, ADVANTAGE)
    with pytest.raises(ConfigError, match=r"calculate_adv_and_returns\(test_named_function\)\.scale: missing"):
        calculate_adv_and_returns(adv_type="test_named_function", reward=ADVANTAGE)
    with pytest.raises(ConfigError, match=r"\.rewards: unknown argument. Did you mean 'reward'"):
        calculate_adv_and_returns(adv_type="test_named_function", rewards=ADVANTAGE, scale=2.0)


def test_a_class_that_knows_no_tensors_is_refused():
    @register_policy_loss("test_named_class")
    class Other:
        """A loss of batches alone."""

    with pytest.raises(
        ConfigError, match=r"policy_loss\(test_named_class\): .*Other does not work on tensors. Subclass PolicyLoss"
    ):
        policy_loss(loss_type="test_named_class", **PPO)


@pytest.mark.parametrize(
    ("register", "kind"), [(register_policy_loss, "policy loss"), (register_advantage, "advantage"), (register_reward, "reward")]
)
def test_a_name_claimed_twice_is_an_error_that_names_both(register, kind):
    def first():
        """One owner."""

    def second():
        """The other."""

    register("test_named_twice", first)
    register("Test_Named_Twice", first)
    with pytest.raises(DuplicateName, match=rf"{kind} 'test_named_twice': claimed by .*first and by .*second. Rename one"):
        register("TEST_NAMED_TWICE", second)


def test_a_reward_by_name():
    class Exact:
        """A stranger's reward."""

    register_reward("Test_Named_Reward", Exact)
    assert get_reward_class("test_named_REWARD") is Exact
    with pytest.raises(UnknownName, match=r"reward_type: no reward named 'test_named_rewardd'. Did you mean 'test_named_reward'"):
        get_reward_class("test_named_rewardd")


def test_words_of_the_field_are_accepted():
    assert get_policy_loss("geo_mean") is GMPO
    assert Aggregation("seq-mean-token-sum-norm", 7) == Aggregation("constant-length", 7)
    with pytest.raises(ConfigError, match="loss_agg_length: expected a length"):
        Aggregation("seq-mean-token-sum-norm")
    assert CorrectionConfig(mode="tis") == CorrectionConfig(mode="truncate")
    assert CorrectionConfig(mode="icepop") == CorrectionConfig(mode="mis") == CorrectionConfig(mode="mask")
    theirs = {"log_prob": LOGPROB, "old_log_prob": OLD, "advantages": ADVANTAGE, "response_mask": MASK}
    options = {"loss_agg_func": "seq-mean-token-sum-norm", "loss_agg_length": 4}
    found = policy_loss(loss_type="actor_critic", **theirs, values=VALUE, prev_values=OLD_VALUE, returns=TARGET, **options)
    ours = {**PPO, "value": VALUE, "value_old": OLD_VALUE, "target": TARGET}
    assert found == policy_loss(loss_type="actor_critic", **ours, loss_agg_func="constant-length", loss_agg_length=4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: get_policy_loss("grpo"), "GRPO names an advantage: set adv_type to 'grpo' and loss_type to 'ppo_clip'"),
        (lambda: get_policy_loss("PPO"), "PPO's clipped loss is 'ppo_clip', and 'actor_critic'"),
        (lambda: get_adv_and_returns("gspo"), "GSPO's advantage is 'grpo'; 'gspo' is a loss_type"),
        (lambda: policy_loss(loss_type="ppo_clip", **PPO, epsilon=0.2), "Pass clip_ratio_low and clip_ratio_high"),
        (lambda: policy_loss(loss_type="ppo_clip", **PPO, epsilo=0.2), "unknown argument"),
    ],
)
def test_words_that_are_no_names_have_a_hint(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


def test_no_word_has_a_hint_and_a_meaning():
    assert not LOSSES.keys() & set(LOSS_REGISTRY.names())
    assert not ADVANTAGES.keys() & set(ADVANTAGE_REGISTRY.names())
    assert not ARGUMENTS.keys() & ({*ALIASES} | set(LOSS_INPUTS) | set(CREDIT_INPUTS))
