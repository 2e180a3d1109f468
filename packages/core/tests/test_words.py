"""Metrics, keyed random numbers and errors."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core import ExplainedVariance, Metric, keyed_generator, keyed_seed
from rlinf.core.errors import (
    ChannelClosed,
    ConfigError,
    DeadlineExceeded,
    RLinfError,
    UnknownName,
    WorkerError,
    did_you_mean,
    is_secondary,
    nearest,
)
from rlinf.core.metrics import means, merge


def test_metrics_by_hand() -> None:
    merged = merge([{"loss": Metric(6.0, 3.0), "kl": Metric(1.0)}, {"loss": Metric(2.0, 1.0)}])
    assert merged == {"loss": Metric(8.0, 4.0), "kl": Metric(1.0, 1.0)}
    assert means(merged, "train/") == {"train/loss": 2.0, "train/kl": 1.0}
    assert list(merged) == ["loss", "kl"]
    assert math.isnan(Metric(0.0, 0.0).mean)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 9)), min_size=1), st.integers(0, 20))
def test_merging_does_not_depend_on_how_a_batch_was_split(pairs: list[tuple[int, int]], cut: int) -> None:
    def total(part: list[tuple[int, int]]) -> Metric:
        return Metric(float(sum(value * weight for value, weight in part)), float(sum(weight for _, weight in part)))

    whole, halves = total(pairs), [{"x": total(pairs[:cut])}, {"x": total(pairs[cut:])}]
    assert merge(halves)["x"] == whole


def explained(pairs: list[tuple[float, float]]) -> ExplainedVariance:
    """Of (target, error) pairs."""
    errors, targets = [e for _, e in pairs], [t for t, _ in pairs]
    return ExplainedVariance(len(pairs), sum(errors), sum(e * e for e in errors), sum(targets), sum(t * t for t in targets))


def test_explained_variance_by_hand() -> None:
    """Targets 1, 2, 3 have variance 2/3; errors 0.5, 0, −0.5 have 1/6."""
    pairs = [(1.0, 0.5), (2.0, 0.0), (3.0, -0.5)]
    assert explained(pairs).mean == pytest.approx(0.75)
    assert (explained(pairs[:1]) + explained(pairs[1:])).mean == pytest.approx(0.75)
    assert explained([(t, e + 7.0) for t, e in pairs]).mean == pytest.approx(0.75)
    assert math.isnan(explained([(2.0, 1.0), (2.0, 0.0)]).mean)
    assert math.isnan(explained([]).mean)


def test_statistics_of_two_kinds_are_not_added() -> None:
    with pytest.raises(TypeError, match="Metric and ExplainedVariance"):
        merge([{"x": Metric(1.0)}, {"x": explained([(1.0, 0.0)])}])


def test_the_seed_of_a_key_never_changes() -> None:
    assert keyed_seed(0, "rollout") == 6707466272484864634
    assert keyed_seed(1234, "shuffle", 3, 7) == 6998750455540298530


@given(st.integers(0, 2**31), st.integers(0, 100), st.integers(0, 100))
def test_seeds_depend_on_every_argument(seed: int, rank: int, step: int) -> None:
    first = keyed_seed(seed, "rollout", rank, step)
    others = {
        keyed_seed(seed + 1, "rollout", rank, step),
        keyed_seed(seed, "shuffle", rank, step),
        keyed_seed(seed, "rollout", rank + 1, step),
        keyed_seed(seed, "rollout", rank, step + 1),
        keyed_seed(seed, "rollout", rank),
    }
    assert len(others | {first}) == 6
    assert 0 <= first < 2**63


def test_generators_repeat_and_differ() -> None:
    draw = keyed_generator(0, "rollout", 1).random(4)
    np.testing.assert_array_equal(draw, keyed_generator(0, "rollout", 1).random(4))
    assert not np.array_equal(draw, keyed_generator(0, "rollout", 2).random(4))


def test_an_error_names_the_place_the_value_and_the_way_out() -> None:
    assert str(ConfigError("actor.lr", "expected a number, found 'x'", "Write 1e-3.")) == (
        "actor.lr: expected a number, found 'x'. Write 1e-3."
    )
    assert str(ConfigError("", "problem.", "Remedy.")) == "problem. Remedy."
    assert str(RLinfError("place", "problem")) == "place: problem"


@pytest.mark.parametrize(
    "error",
    [
        UnknownName("a.b", "no such thing", "Choose another."),
        DeadlineExceeded("channel rollout", "nothing came", "Raise the timeout."),
        ChannelClosed("channel rollout", "closed"),
        WorkerError("env", 1, "interact", "died", remote_traceback="Traceback …", secondary=True),
    ],
)
def test_errors_cross_process_boundaries(error: RLinfError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_consequences_are_not_causes() -> None:
    assert is_secondary(ChannelClosed("channel", "closed"))
    assert is_secondary(WorkerError("env", 0, "step", "its group failed", secondary=True))
    assert not is_secondary(WorkerError("env", 0, "step", "died"))
    assert not is_secondary(DeadlineExceeded("env", "too late"))


def test_nearest() -> None:
    assert nearest("ppo_clipp", ["gae", "ppo_clip"]) == "ppo_clip"
    assert nearest("xyz", ["gae", "ppo_clip"]) is None
    assert nearest("PPO", ["gae", "ppo_clip"]) == "ppo_clip"
    assert nearest("mlp", ["cnn_policy", "mlp_policy", "pi0"]) == "mlp_policy"
    assert nearest("q", ["q_dropout", "q_head"]) is None
    assert did_you_mean("ga", ["gae"]) == "Did you mean 'gae'? Known: gae."
    assert did_you_mean("x", []) == "Known: none."
