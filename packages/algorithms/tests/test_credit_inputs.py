from dataclasses import replace

import pytest
import torch

from rlinf.algorithms.advantages.estimator import INPUT_NAMES, CreditInputs
from rlinf.core.errors import ShapeError
from rlinf.core.testing.samples import random_trajectory


def test_a_trajectory_gives_all_that_it_holds():
    t = random_trajectory(4, 3, as_array=torch.as_tensor)
    t = replace(t, reference=t.logprob + 1, proximal=t.logprob + 2, sum_pi_squared=t.reward + 3, episode=t.group + 5)
    x = CreditInputs.of(t)
    same = ("reward", "mask", "terminated", "truncated", "value", "group", "episode", "logprob")
    assert all(getattr(x, name) is getattr(t, name) for name in same)
    assert x.logprob_ref is t.reference
    assert x.logprob_proximal is t.proximal
    assert x.sum_pi_squared is t.sum_pi_squared
    assert [name for name in INPUT_NAMES if getattr(x, name) is None] == ["value_next", "score", "baseline"]


def test_what_is_missing_is_named_with_a_remedy():
    with pytest.raises(ShapeError, match=r"Me\(baseline\): expected a tensor, found None\. Pass the score"):
        CreditInputs().need("baseline", by="Me")
    assert CreditInputs(score=torch.ones(2)).need("score", by="Me").tolist() == [1.0, 1.0]


def test_without_a_mask_everything_was_decided():
    reward = torch.ones(2, 3)
    assert CreditInputs(reward=reward).decided(by="Me").tolist() == [[True] * 3] * 2
    mask = torch.tensor([[1, 0, 1]])
    assert CreditInputs(mask=mask).decided(by="Me").tolist() == [[True, False, True]]
    with pytest.raises(ShapeError, match=r"Me\(reward\)"):
        CreditInputs().decided(by="Me")


def test_the_outcome_is_the_score_or_the_sum_of_rewards():
    reward, mask = torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[True, True], [True, False]])
    assert CreditInputs(reward=reward).outcome(by="Me").tolist() == [3.0, 12.0]
    assert CreditInputs(reward=reward, mask=mask).outcome(by="Me").tolist() == [3.0, 4.0]
    assert CreditInputs(reward=reward, score=torch.tensor([7.0, 9.0])).outcome(by="Me").tolist() == [7.0, 9.0]


def test_a_ratio_is_that_of_whole_decisions():
    x = CreditInputs(logprob=torch.tensor([[[1.0, 2.0]]]), logprob_ref=torch.tensor([[0.5]]), logprob_proximal=torch.ones(2, 1))
    assert x.log_ratio("logprob", "logprob_ref", by="Me").tolist() == [[2.5]]
    assert x.log_ratio("logprob_ref", "logprob", by="Me").tolist() == [[-2.5]]
    with pytest.raises(ShapeError, match=r"Me\(logprob_proximal\)"):
        x.log_ratio("logprob", "logprob_proximal", by="Me")


def test_a_score_alone_does_not_say_where_decisions_are():
    with pytest.raises(ShapeError, match=r"x\(mask\): expected a tensor, found None. It says over which decisions"):
        CreditInputs(score=torch.ones(2)).decided(by="x")
    with pytest.raises(ShapeError, match=r"x\(reward\)"):
        CreditInputs().decided(by="x")
