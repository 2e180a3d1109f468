from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from rlinf.core.problems import Problem
from rlinf.core.registry import TASKS
from rlinf.runners.reasoning.evaluation import interval, pass_at_k, reasoning_protocol, summarise
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.reading import read_reasoning


@pytest.mark.parametrize(("samples", "right"), [(5, 0), (5, 2), (5, 5), (4, 1)])
def test_pass_at_k_counts_the_subsets_that_hold_a_right_one(samples: int, right: int) -> None:
    for k in range(1, samples + 1):
        subsets = list(combinations(range(samples), k))
        solved = sum(any(member < right for member in subset) for subset in subsets)
        assert pass_at_k(samples, right, k) == pytest.approx(solved / len(subsets))


def report(number: int, *right: bool) -> GroupReport:
    responses = tuple(Response(reward=float(r), success=r, tokens=4 + r, finish="stop" if r else "length") for r in right)
    return GroupReport(group=number, problem=number, responses=responses, oldest=0)


def test_a_summary_by_hand() -> None:
    found = summarise([report(0, True, False), report(1, False, False), report(2, True, True)], (1, 2))
    assert found["eval/accuracy"] == found["eval/pass@1"] == pytest.approx(0.5)
    assert found["eval/pass@2"] == pytest.approx(2 / 3)
    assert found["eval/response_length"] == pytest.approx(4.5)
    assert found["eval/truncated"] == pytest.approx(0.5)


def test_the_interval_is_that_of_problems_and_not_of_responses() -> None:
    low, high = interval(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)


@dataclass(frozen=True)
class Filed:
    """Problems of files whose names tell their contents behind a slash."""

    path: str
    validation_path: str

    def check(self, place: str) -> None: ...

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(prompt="a", answer="b", id=0)]

    def fingerprint(self, split: str) -> Mapping[str, str]:
        return {"path": "", "validation_path": self.validation_path.rpartition("/")[2]}


TASKS.register("toy_filed")(Filed)


def reward(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
    return [0.0] * len(completions)


def test_the_protocol_knows_contents_and_names_and_no_addresses(reasoning_data: dict[str, Any]) -> None:
    """Files may be moved and not be changed; what only trains is no part of it; a function is its name."""

    def protocol(path: str, held_out: str) -> dict[str, Any]:
        task = {"type": "toy_filed", "path": path, "validation_path": held_out}
        cfg = read_reasoning({**reasoning_data, "data": {**task, "rollout_batch_size": 4}})
        return reasoning_protocol(replace(cfg, reward=replace(cfg.reward, reward=reward)), range(1))

    found = protocol("a/x", "a/y")
    assert found["hash"] == protocol("b/z", "b/y")["hash"] != protocol("a/x", "a/z")["hash"]
    assert found["data"]["validation_path"] == "y"
    assert "path" not in found["data"]
    assert found["reward"]["reward"]["function"].endswith("test_evaluation:reward")
    assert " at 0x" not in str(found)
