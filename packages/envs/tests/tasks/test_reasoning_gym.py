"""Problems and scores of reasoning-gym, generated here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.rewards import RewardSample
from rlinf.envs.tasks import ReasoningGym, ReasoningGymReward

if find_spec("reasoning_gym") is None:
    pytest.skip("needs reasoning_gym", allow_module_level=True)
SMALL: dict[str, Any] = {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}
SUMS = ReasoningGym(dataset="chain_sum", params=SMALL, only="expression", end="=", train=40, validation=10)


def said(problem: Problem, text: str) -> RewardSample:
    return RewardSample(text=text, answer=problem.answer, row=problem.row)


def test_problems_are_those_of_the_library_and_in_one_split() -> None:
    train, held_out = SUMS.problems("train"), SUMS.problems("validation")
    assert (len(train), len(held_out)) == (40, 10)
    assert len({problem.prompt for problem in (*train, *held_out)}) == 50
    for problem in train:
        assert isinstance(problem.prompt, str)
        assert eval(problem.prompt[:-1]) == int(problem.answer)
        assert problem.row["entry"]["question"].endswith(problem.prompt[:-1] + " =")
    assert (
        ReasoningGym(dataset="chain_sum", params=SMALL, only="expression", end="=", train=20, validation=10).problems("train")
        == train[:20]
    )


def test_answers_are_scored_by_the_library() -> None:
    problem = SUMS.problems("train")[0]
    texts = [f"so it is #{problem.answer}", "#no number", "# ", problem.answer]
    scores = ReasoningGymReward(after="#").score_samples([said(problem, text) for text in texts])
    assert scores[0] == scores[3] == 1.0
    assert max(scores[1:3]) < 0.1
    assert ReasoningGymReward(after="#", strict=True).score_samples([said(problem, "#no number")]) == [0.0]
    with pytest.raises(ConfigError, match=r"expected problems of data\.type reasoning_gym"):
        ReasoningGymReward().score_samples([RewardSample(text="1", answer="1")])


def test_what_the_library_does_not_know_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"data\.dataset: reasoning-gym has no data set 'chain_sums'\. Did you mean 'chain_sum'"):
        ReasoningGym(dataset="chain_sums").check("data")
    with pytest.raises(ConfigError, match=r"data\.params: 'chain_sum' refuses them: .*min_digit"):
        ReasoningGym(dataset="chain_sum", params={"min_digit": 1}).check("data")
    with pytest.raises(ConfigError, match=r"data\.only: no 'sum' in the metadata of 'chain_sum'"):
        ReasoningGym(dataset="chain_sum", only="sum").check("data")
