"""A reward that does not return a finite number for each completion is named, and so is the row."""

import math
import sys
from dataclasses import dataclass, field

import pytest

from rlinf.algorithms.rewards import Composite, OneByOne, Part, RuleReward, Scores, score
from rlinf.algorithms.rewards import _verifier_process as process
from rlinf.algorithms.rewards._verifier_process import _one_by_one
from rlinf.core.errors import NonFiniteError, ShapeError


@dataclass(frozen=True)
class Fixed(RuleReward):
    """Scores that do not depend on what is scored."""

    values: list[float] = field(default_factory=list)

    def score_pairs(self, pairs, timeout_s, pool):
        return Scores(values=self.values, metrics={})


TEXTS = ["a", "b", "c"]


@pytest.mark.parametrize("values", [[1.0, 0.0], [1.0, 0.0, 1.0, 0.0], []])
def test_a_list_of_another_length_is_refused(values):
    with pytest.raises(ShapeError, match=rf"^Fixed: expected 3 scores, one for each completion, found {len(values)}"):
        score(Fixed(values), TEXTS, TEXTS)
    parts = {"exact": Part("exact_match"), "mine": Part(Fixed(values))}
    with pytest.raises(ShapeError, match=rf"expected 3 scores, one for each completion, found {len(values)}"):
        Composite(parts)(TEXTS, TEXTS)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused_by_row(bad):
    with pytest.raises(NonFiniteError, match=rf"^Fixed: expected a finite score, found {bad} in row 1"):
        score(Fixed([1.0, bad, 0.0]), TEXTS, TEXTS)
    with pytest.raises(NonFiniteError, match=rf"found {bad} in row 1"):
        Composite({"mine": Part(Fixed([1.0, bad, 0.0]), weight=0.0)})(TEXTS, TEXTS)


@pytest.mark.parametrize("found", [[], [1.0, 1.0]])
def test_a_reward_that_is_asked_for_one_pair_returns_one_score(found):
    with pytest.raises(ShapeError, match=f"expected one score for one completion, found {len(found)}"):
        OneByOne(lambda completions, answers: found).verify("a", "a")
    with pytest.raises(ValueError, match=f"expected one score for one completion, the reward returned {len(found)}"):
        _one_by_one(lambda completions, answers: found)("a", "a")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_limits_that_were_inherited_hold_during_a_pair_and_afterwards(monkeypatch):
    import resource

    inherited = {resource.RLIMIT_CPU: (1, resource.RLIM_INFINITY), resource.RLIMIT_AS: (2**20, 2**60)}
    limits = dict(inherited)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(process.signal, "signal", lambda *_: None)
    monkeypatch.setattr(process.signal, "setitimer", lambda *_: None)
    with process._memory(2**20), process._time(1e6):
        assert limits == inherited
    assert limits == inherited
    limits[resource.RLIMIT_AS] = (resource.RLIM_INFINITY, 2**60)
    with process._memory(1):
        assert limits[resource.RLIMIT_AS][0] < 2**60
    assert limits[resource.RLIMIT_AS] == (resource.RLIM_INFINITY, 2**60)
