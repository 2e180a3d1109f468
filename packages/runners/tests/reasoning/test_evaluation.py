from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf.core.evaluation import ProblemProtocol, ProblemResult
from rlinf.core.language.problems import Problem
from rlinf.core.registry import TASKS
from rlinf.runners.reasoning.evaluation import problem_protocol, problem_result
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.rules import read_reasoning


def test_a_group_is_a_result_without_texts() -> None:
    responses = tuple(Response(reward=float(r), success=r, tokens=4 + r, finish="stop", text="x") for r in (True, False))
    found = problem_result(GroupReport(group=0, problem=7, responses=responses, oldest=0, prompt="1+1="))
    assert found == ProblemResult(problem=7, success=(True, False), reward=(1.0, 0.0), tokens=(5, 4), finish=("stop", "stop"))


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

    def protocol(path: str, held_out: str, **data: Any) -> ProblemProtocol:
        task = {"type": "toy_filed", "path": path, "validation_path": held_out}
        cfg = read_reasoning({**reasoning_data, "data": {**task, "rollout_batch_size": 4, **data}})
        return problem_protocol(replace(cfg, reward=replace(cfg.reward, reward=reward)), range(9), final=True)

    found = protocol("a/x", "a/y")
    assert found.hash == protocol("b/z", "b/y", rollout_batch_size=8).hash != protocol("a/x", "a/z").hash
    assert found.data["validation_path"] == "y"
    assert "path" not in found.data
    assert found.reward["reward"]["function"].endswith("test_evaluation:reward")
    assert " at 0x" not in str(found)


def test_the_last_evaluation_has_a_protocol_of_its_own(reasoning_data: dict[str, Any]) -> None:
    cfg = read_reasoning(reasoning_data)
    cfg = replace(cfg, data=replace(cfg.data, val_problems=2, final_problems=4))
    interim, final = (problem_protocol(cfg, range(9), final=final) for final in (False, True))
    assert (len(interim.problems), len(final.problems)) == (2, 4)
    assert interim.hash != final.hash
