"""Each cause of a disagreement is made to happen with a toy language model."""

import math
import pickle
import subprocess
import sys

import pytest
import torch

from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError
from rlinf.core.metrics import merge
from rlinf.engines.guards import FiniteWatch, LargestBound, Scores, StepZeroError, StepZeroGate, drift
from rlinf.engines.guards.gap import beyond
from rlinf.engines.weights.checksum import checksums

ROWS, LENGTH, TOKENS = 16, 12, 20


class ToyModel(torch.nn.Module):
    """A token depends on the one before; row 0 of the table begins."""

    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(2 * torch.randn(TOKENS, TOKENS, generator=g))
        self.dropout = torch.nn.Dropout(dropout)

    def scores(self, tokens, temperature=1.0):
        before = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.long), tokens[:, :-1]], 1)
        logits = self.dropout(self.table[before]) / temperature
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1).detach()

    def draw(self, temperature=1.0):
        g, tokens = torch.Generator().manual_seed(1), torch.zeros(ROWS, 1, dtype=torch.long)
        for _ in range(LENGTH):
            chances = (self.table[tokens[:, -1]] / temperature).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=g)], 1)
        return tokens[:, 1:].clone()


def sampled(temperature=1.0):
    """A model, what it wrote, and how it scores that."""
    toy = ToyModel()
    tokens = toy.draw(temperature)
    return toy, tokens, toy.scores(tokens, temperature)


MASK = torch.arange(LENGTH) < torch.arange(ROWS)[:, None] % 8 + 5


def gate(trainer, tokens, rollout, mask=MASK, rescore=True, **fields):
    scored = trainer.scores(tokens)
    again = (lambda factor: trainer.scores(tokens, factor)) if rescore else None
    scores = Scores(rollout=rollout, trainer=scored, mask=mask, rescore=again, **fields)
    return StepZeroGate(tolerance=1e-3).check(scores, place="actor[0]")


def causes(*args, **fields):
    with pytest.raises(StepZeroError) as caught:
        gate(*args, **fields)
    return [cause.name for cause in caught.value.causes], str(caught.value)


def test_who_agrees_passes():
    toy, tokens, own = sampled()
    metrics = gate(toy, tokens, own)
    assert metrics["logprob_gap/beyond"].mean == 0
    assert metrics["logprob_gap/k3"].mean == 0
    rollout = torch.where(MASK, own, torch.nan)  # what is masked out never counts
    assert gate(toy, tokens, rollout)["logprob_gap/abs"].mean == 0


@pytest.mark.parametrize("rescore", [True, False])
def test_another_temperature(rescore):
    names, message = causes(*sampled(0.5), rescore=rescore)
    assert names == ["temperature"] if rescore else names[0] == "temperature"
    assert ("at 0.5 times the trainer's temperature 100% of the gap is gone" in message) == rescore
    assert "actor[0]: expected ratios of 1 ± 0.001 before any update, found" in message
    assert "rollout.sampling_params.temperature" in message


@pytest.mark.parametrize("shift", [1, -1])
def test_off_by_one(shift):
    toy, tokens, own = sampled()
    names, message = causes(toy, tokens, own.roll(-shift, -1))
    assert names[0] == "shift"
    assert f"scores of 1 {'later' if shift > 0 else 'earlier'} leave" in message


def test_a_stop_token_that_one_side_does_not_score():
    toy, tokens, own = sampled()
    last = MASK.long().cumsum(-1) == MASK.sum(-1, keepdim=True)
    names, message = causes(toy, tokens, own.masked_fill(last & MASK, 0.0))
    assert names == ["ends"]
    assert "the last decision of each row has 100% of the gap" in message


def test_stale_weights_by_checksum():
    toy, stale = ToyModel(), ToyModel()
    with torch.no_grad():
        stale.table += 0.3 * torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(5))
    tokens = stale.draw()
    sums = [checksums(m.state_dict()) for m in (stale, toy)]
    names, message = causes(toy, tokens, stale.scores(tokens), checksums=tuple(sums))
    assert names == ["weights"]
    assert "1 of 1 tensors differ, the first is table" in message
    names, message = causes(toy, tokens, stale.scores(tokens))
    assert names == []
    assert "Usual suspects" in message


def test_stale_weights_by_version():
    toy, stale = ToyModel(), ToyModel(seed=3)
    tokens = toy.draw()
    version = torch.full((ROWS, LENGTH), 5)
    version[:4] = 4
    rollout = torch.where(version == 4, stale.scores(tokens), toy.scores(tokens))
    names, message = causes(toy, tokens, rollout, version=version, trainer_version=5)
    assert names == ["weights"]
    assert f"{int(MASK[:4].sum())} decisions are of versions 4 to 4, the trainer has 5; they have 100% of the gap" in message


def test_dropout_left_on():
    toy = ToyModel(dropout=0.1)
    tokens = toy.draw()
    rollout = ToyModel().scores(tokens)
    names, message = causes(toy.train(), tokens, rollout)
    assert names[0] == "noise"
    assert "dropout is on" in message


def test_another_precision():
    toy = ToyModel()
    tokens = toy.draw()
    low = ToyModel()
    low.table.data = low.table.data.bfloat16().float()
    for rescore in (True, False):
        names, message = causes(toy, tokens, low.scores(tokens), rescore=rescore)
        assert names == ["precision"]
        assert "has no direction" in message


def test_a_score_that_is_not_finite():
    toy, tokens, rollout = sampled()
    rollout[0, 1] = float("nan")
    names, message = causes(toy, tokens, rollout)
    assert names == ["not finite"]
    assert "1 of the rollout's log-probabilities are not finite" in message


def test_a_share_may_be_beyond():
    toy, tokens, rollout = sampled()
    rollout[0, 0] += 0.5
    scores = Scores(rollout=rollout, trainer=toy.scores(tokens), mask=MASK)
    share = 1 / int(MASK.sum())
    StepZeroGate(allowed_share=share * 1.01).check(scores, place="")
    with pytest.raises(StepZeroError, match=f"found 0.607, and 1 of {int(MASK.sum())} decisions beyond"):
        StepZeroGate(allowed_share=share * 0.99).check(scores, place="")


def test_the_error_travels():
    with pytest.raises(StepZeroError) as caught:
        gate(*sampled(0.5))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.causes == caught.value.causes


def test_parameters():
    for wrong in ({"tolerance": 0.0}, {"allowed_share": 1.0}):
        with pytest.raises(ConfigError):
            StepZeroGate(**wrong)
    with pytest.raises(ShapeError, match=r"mask: expected \[2\] as of the rollout, found \[3\]"):
        drift(torch.zeros(2), torch.zeros(2), torch.ones(3))


def test_drift_by_hand():
    """Δ = log 2 and log 1/2 and, masked out, a NaN."""
    rollout = torch.tensor([0.0, 0.0, math.nan])
    trainer = torch.tensor([math.log(2), -math.log(2), 0.0])
    mask = torch.tensor([True, True, False])
    metrics = {name: metric.mean for name, metric in drift(rollout, trainer, mask, tolerance=0.6).items()}
    assert metrics["logprob_gap/k1"] == pytest.approx(0.0, abs=1e-7)
    assert metrics["logprob_gap/k3"] == pytest.approx((2 - 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 2)
    assert metrics["logprob_gap/abs"] == pytest.approx(math.log(2))
    assert metrics["logprob_gap/max_bound"] == pytest.approx(math.log(2) * 2 ** (1 / 32))
    assert metrics["logprob_gap/beyond"] == 0.5


def test_beyond_starts_behind_the_tolerance_and_has_what_is_no_number() -> None:
    assert beyond(torch.tensor([0.0, 1e-9, math.nan, math.inf, -math.inf]), 0.0).tolist() == [False, True, True, True, True]


def test_drift_of_parts_is_drift_of_all():
    g = torch.Generator().manual_seed(0)
    rollout, trainer = torch.randn(6, 5, generator=g), torch.randn(6, 5, generator=g)
    mask = torch.rand(6, 5, generator=g) < 0.7
    whole = drift(rollout, trainer, mask)
    parts = merge(drift(rollout[i : i + 2], trainer[i : i + 2], mask[i : i + 2]) for i in (0, 2, 4))
    largest = float((trainer - rollout)[mask].abs().max())
    assert {n: m.mean for n, m in parts.items()} == pytest.approx({n: m.mean for n, m in whole.items()})
    assert largest <= whole["logprob_gap/max_bound"].mean <= largest * int(mask.sum()) ** (1 / 32)
    assert LargestBound(0.0).mean == 0


def test_a_metric_reaches_a_driver_that_does_not_import_torch():
    code = (
        f"import pickle, sys; assert pickle.loads({pickle.dumps(LargestBound(1.0))!r}).mean == 1; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=240, check=False).returncode == 0


class Divides(torch.nn.Module):
    """0 / 0 for an input of zeros, and a gradient of 0 · ∞ for the root of zero."""

    def __init__(self, root=False):
        super().__init__()
        self.root = root

    def forward(self, x):
        return {"y": (x * 0).sqrt() * x if self.root else x / x}


class Chain(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = torch.nn.Linear(3, 4), middle, torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.middle(self.first(x))["y"])


def test_the_first_module_with_an_output_that_is_not_finite():
    chain = Chain(Divides())
    torch.nn.init.zeros_(chain.first.weight)
    torch.nn.init.zeros_(chain.first.bias)
    place = r"policy\.middle: output\['y'\] has 8 NaN and 0 infinite of 8 values.*arises here"
    with pytest.raises(NonFiniteError, match=place), FiniteWatch(chain):
        chain(torch.ones(2, 3))
    with (
        pytest.raises(NonFiniteError, match=r"policy\.first: output has .* Its inputs are not: it came from outside"),
        FiniteWatch(chain),
    ):
        chain(torch.full((2, 3), float("inf")))
    linear = torch.nn.Linear(3, 1)
    with pytest.raises(NonFiniteError, match="it came from outside"), FiniteWatch(linear):
        linear(input=torch.full((2, 3), float("inf")))


def test_the_first_gradient_that_is_not_finite():
    chain = Chain(Divides(root=True))
    with pytest.raises(NonFiniteError, match=r"actor\.first: the gradient of output has 8 NaN"), FiniteWatch(chain, "actor"):
        chain(torch.ones(2, 3)).sum().backward()
    with (
        pytest.raises(NonFiniteError, match=r"actor\.last: the gradient of output has .* 2 infinite of 2"),
        FiniteWatch(chain, "actor"),
    ):
        (chain(torch.ones(2, 3)) * math.inf).sum().backward()


def test_a_parameter_that_is_not_finite_already():
    chain = Chain(torch.nn.Identity())
    with torch.no_grad():
        chain.last.weight[0, 2] = -math.inf
    with pytest.raises(
        NonFiniteError, match=r"policy\.last\.weight: its value has 0 NaN and 1 infinite of 4 values, the first at \(0, 2\)"
    ):
        FiniteWatch(chain).__enter__()


def test_nothing_stays_behind():
    linear = torch.nn.Linear(2, 1)
    with FiniteWatch(linear):
        linear(torch.ones(1, 2)).sum().backward()
    assert not linear._forward_hooks
    assert linear(torch.full((1, 2), math.nan)).isnan().all()
    linear(torch.full((1, 2), math.nan)).sum().backward()
