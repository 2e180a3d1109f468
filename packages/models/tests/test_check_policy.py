import itertools
import math
import socket

import numpy as np
import pytest
import torch

from rlinf.core.data import Rescored
from rlinf.core.errors import ConfigError, ContractError, UnknownName
from rlinf.core.registry import MODELS, register_model
from rlinf.core.testing.policy import CHECKS, PolicyContract, learning
from rlinf.models import MLPPolicyConfig
from rlinf.models.commands import TINY, check_policy
from rlinf.models.small._mlp import MLPPolicy

LINES = list(CHECKS)


def test_a_good_policy(capsys):
    assert check_policy(["mlp_policy", "hidden_sizes=[8]", "--device", "cpu", "activation=relu"]) == 0
    said = capsys.readouterr().out
    assert f"mlp_policy: all {len(LINES)} lines hold, to 1e-05" in said
    assert all(f"ok   {line}" in said for line in LINES)


def test_usage(capsys):
    for args, code in (["--help"], 0), ([], 2):
        with pytest.raises(SystemExit) as end:
            check_policy(args)
        assert end.value.code == code
    said = capsys.readouterr()
    assert "rlinf check-policy" in said.out
    assert said.err.endswith("the following arguments are required: policy\n"), "key=value is not"


def test_wrong_words():
    with pytest.raises(UnknownName, match="Did you mean 'mlp_policy'"):
        check_policy(["mlp_polcy"])
    with pytest.raises(ConfigError, match=r"check-policy\.hidden_size: unknown key"):
        check_policy(["mlp_policy", "hidden_size=[8]"])
    with pytest.raises(ConfigError, match="expected key=value"):
        check_policy(["mlp_policy", "hidden_sizes"])
    for device in ("cuda:77", "gpu", "meta"):
        with pytest.raises(ConfigError, match=f"check-policy --device: '{device}' is no device here"):
            check_policy(["mlp_policy", "hidden_sizes=[8]", "--device", device])


def mine(spec, *, seed):
    return MLPPolicyConfig(hidden_sizes=(8,)).build(spec, seed=seed)


def no_policy(spec, *, seed):
    return torch.nn.Linear(2, 2)


def calls_home(spec, *, seed):
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def test_a_strangers_factory(tmp_path, monkeypatch, capsys):
    source = """
from rlinf.models import MLPPolicyConfig

def factory(spec, *, seed):
    return MLPPolicyConfig().build(spec, seed=seed)
"""
    (tmp_path / "my_own_policy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert check_policy(["my_own_policy:factory"]) == 0
    register_model("calls_home", calls_home)
    with pytest.raises(ContractError, match="expected to be built without a network"):
        check_policy(["calls_home"])
    register_model("acts_not", no_policy)
    with pytest.raises(ConfigError, match=r"Linear has no predict_action_batch\(…\)"):
        check_policy(["acts_not"])


class TakesNothing:
    """Built without a spec."""


def broken(spec, *, seed):
    return TakesNothing(spec)


def test_what_is_no_builder_is_refused_and_a_builders_own_fault_is_shown():
    register_model("no_builder", math)
    with pytest.raises(
        ConfigError, match=r"check-policy: expected what builds a policy, found module\. Name a configuration class"
    ):
        check_policy(["no_builder"])
    register_model("takes_nothing", TakesNothing)
    with pytest.raises(ConfigError, match="'TakesNothing' can't be called with a spec and a seed: "):
        check_policy(["takes_nothing"])
    register_model("broken_builder", broken)
    with pytest.raises(TypeError, match="takes no arguments"):
        check_policy(["broken_builder"])


class WrongLogprob(MLPPolicy):
    """Off by 2e-5."""

    def default_forward(self, batch):
        batch = super().default_forward(batch)
        return type(batch)(logprob=batch.logprob + 2e-5, value=batch.value)


class KeepsObservation(MLPPolicy):
    """Its context is the caller's memory."""

    def _context(self, env_obs):
        return {"states": torch.as_tensor(env_obs["states"])}


class KeepsGraph(MLPPolicy):
    """Forgot no_grad."""

    predict_action_batch = MLPPolicy.predict_action_batch.__wrapped__.__wrapped__


class ReadsAnything(MLPPolicy):
    """Decides for not-a-numbers: its method was replaced after BasePolicy had seen it."""


ReadsAnything.predict_action_batch = MLPPolicy.predict_action_batch.__wrapped__


class NeedsRows(MLPPolicy):
    """Scores no rows as one."""


def needs_rows(self, batch):
    return MLPPolicy.default_forward(self, batch) if len(batch) else Rescored(logprob=torch.zeros(1, 2))


NeedsRows.default_forward = needs_rows


class WithDropout(MLPPolicy):
    """Dropout in the actor."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.actor = torch.nn.Sequential(self.actor[0], torch.nn.Dropout(0.2), *self.actor[1:])


class ForgetsTemperature(MLPPolicy):
    """Samples with twice the spread of what it scores."""

    def predict_action_batch(self, env_obs, mode="train", *, generator=None):
        if mode == "eval":
            return super().predict_action_batch(env_obs, mode)
        with torch.no_grad():
            self.log_std += 0.7
            wide = super().predict_action_batch(env_obs, mode, generator=generator)
            self.log_std -= 0.7
        batch = PolicyContract(policy=self, spec=TINY, as_array=torch.as_tensor, generator=None).batch([wide])
        logprob = self.default_forward(batch).logprob.detach()[:, 0]
        return type(wide)(action=wide.action, logprob=logprob, value=wide.value, context=wide.context, version=self.version)


class UntrainedPart(MLPPolicy):
    """A parameter that nothing uses."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spare = torch.nn.Parameter(torch.zeros(2))


class Remembers(MLPPolicy):
    """Counts its calls."""

    calls = 0

    def predict_action_batch(self, env_obs, mode="train", *, generator=None):
        self.calls += 1
        decision = super().predict_action_batch(env_obs, mode, generator=generator)
        return type(decision)(
            action=decision.action + 0.01 * self.calls * (mode == "train"),
            logprob=decision.logprob,
            value=decision.value,
            context=decision.context,
            version=decision.version,
        )


class LooksAtNeighbours(MLPPolicy):
    """Centres a batch."""

    def _seen(self, states):
        return states - states.mean(0)


class HidesWeights(MLPPolicy):
    """Its actor does not travel."""

    def weights(self):
        weights = super().weights()
        kept = {name: tensor for name, tensor in weights.tensors.items() if "critic" in name}
        return type(weights)(tensors=kept, version=weights.version)


class LoadsAnything(MLPPolicy):
    """Takes what it gets."""

    def load(self, weights):
        self.load_state_dict(dict(weights.tensors), strict=False)
        self.version = weights.version


def broken_lines(make, capsys):
    class Config:
        @staticmethod
        def build(spec, *, seed):
            return make(MLPPolicyConfig(hidden_sizes=(8,)), states=7, actions=3, seed=seed)

    name = f"broken_{make.__name__}".casefold()
    if name not in MODELS.names():
        register_model(name, Config)
    assert check_policy([name]) == 1
    said = capsys.readouterr().out.splitlines()
    return {line[5:]: said[i + 1].strip() for i, line in enumerate(said) if line.startswith("FAIL")}


@pytest.mark.parametrize(
    ("make", "line", "message"),
    [
        (WrongLogprob, "predict_action_batch and default_forward agree", "(mode 'train', 5 rows): expected agreement to 1e-05"),
        (KeepsObservation, "an observation is neither", "Decision.context.states: expected a copy"),
        (KeepsGraph, "a decision holds no graph", "expected no graph"),
        (WithDropout, "a module's own mode changes nothing", "is dropout on?"),
        (ForgetsTemperature, "actions are drawn from the distribution", "standard errors from 0"),
        (ReadsAnything, "an observation that is not finite", "not-a-number in row 1 of 'states', which was not refused"),
        (NeedsRows, "a batch of no rows", "Rescored.logprob of no rows: expected shape (0, 2), found (1, 2)"),
        (UntrainedPart, "the log-probability can be differentiated", "spare: 1 parameters are trained and no loss reaches them"),
        (Remembers, "nothing is remembered", "Decision.action of the same call after others"),
        (LooksAtNeighbours, "a row does not depend", "Decision.action of row 0 alone"),
        (HidesWeights, "weights go out", "expected other decisions from other weights"),
        (LoadsAnything, "weights that don't fit", "expected a WeightSyncError for a missing 'actor.0.bias', found none"),
    ],
)
def test_broken_policies_are_found(make, line, message, capsys):
    broken = broken_lines(make, capsys)
    assert any(sentence.startswith(line) and message in said for sentence, said in broken.items()), broken
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("signs", "examined", "said"),
    [
        ((1.0,), 32, "4.9 standard errors"),  # (1 + … + 31) / √(1² + … + 31²)
        ((1.0, -1.0), 8, ""),
        ((1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0), 8, ""),
    ],
)
def test_gradients_are_compared_until_they_show_no_sign_of_a_fault(monkeypatch, signs, examined, said):
    """By hand, with gradients of one number."""
    given, seeds = itertools.cycle(signs), []
    subject = PolicyContract(
        policy=MLPPolicyConfig().build(TINY, seed=0), spec=TINY, as_array=torch.as_tensor, generator=torch.Generator().manual_seed
    )

    def gradient(subject, policy, observation, seed):
        seeds.append(seed)
        return {"w": np.array([next(given)], np.float32)}

    monkeypatch.setattr(learning, "_score_gradient", gradient)
    if said:
        with pytest.raises(ContractError, match=said):
            learning.unbiased(subject)
    else:
        learning.unbiased(subject)
    assert len(set(seeds)) == examined
