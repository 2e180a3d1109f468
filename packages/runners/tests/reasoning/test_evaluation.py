import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf.core.errors import ConfigError, WorkerError
from rlinf.core.evaluation import EvalReport, ProblemProtocol, ProblemResult
from rlinf.core.language.problems import Problem
from rlinf.core.registry import TASKS
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.command import parse_evaluation
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.assembly import evaluated
from rlinf.runners.reasoning.evaluation import (
    Evaluated,
    ReasoningEvalRunner,
    check_problems,
    problem_protocol,
    problem_result,
)
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.task_types import TASK_TYPES, CheckedEvaluation


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


class Failed:
    """A call that has failed."""

    label = "rollout.close()"

    def wait(self, timeout: float | None = None) -> Any:
        raise WorkerError("rollout", 0, "close", "ValueError: no")

    def done(self) -> bool:
        return True


def test_what_was_measured_is_written_before_anything_is_closed(
    reasoning_data: dict[str, Any], new_queue: Any, tmp_path: Path
) -> None:
    cfg = read_reasoning(reasoning_data)
    cluster = SimpleNamespace(create_channel=lambda name, near: new_queue(), handover_policy=lambda: None)
    group: Any = SimpleNamespace(name="rollout", world_size=1, restarts=(0,), cluster=cluster, close=Failed)
    result = ProblemResult(problem=0, success=(True,), reward=(1.0,), tokens=(5,), finish=("stop",))

    def run(protocol: ProblemProtocol) -> Evaluated:
        results = tuple(replace(result, problem=number) for number in protocol.work_list())
        return Evaluated(report=EvalReport(protocol=protocol, results=results), groups=[])

    policy = EvaluatedPolicy(name="weights", checkpoint_file=None, state={}, parent=tmp_path)
    alone: Any = ReasoningEvalRunner(cfg, policy, group, group)
    alone.evaluator.run = run
    with pytest.raises(WorkerError):
        alone.run()
    assert policy.folder(alone.evaluator.protocol(final=True)).summary.is_file()
    trained: Any = ReasoningRunner(cfg, group, group, group, folder=RunFolder(tmp_path))
    trained.evaluate = run
    quiet = SimpleNamespace(log=SimpleNamespace(write=lambda *row: None), progress=SimpleNamespace(note=print, paths=print))
    with pytest.raises(WorkerError):
        trained._finish(quiet, tmp_path)
    assert trained.folder.summary.is_file()


def test_another_protocol_than_the_published_one_is_refused_before_a_worker_starts(
    reasoning_data: dict[str, Any], tmp_path: Path
) -> None:
    cfg, nothing = read_reasoning(reasoning_data), SimpleNamespace()
    policy = EvaluatedPolicy(name="weights", checkpoint_file=None, state={}, parent=tmp_path)
    published = problem_protocol(cfg, [0, 2], final=True)
    with pytest.raises(TypeError, match="'rollout' and 'reward'"):
        evaluated(cfg, cast("Any", nothing), replace(policy, published=published), {})
    for other in (replace(published, samples=published.samples + 1), replace(published, problems=tuple(range(10)))):
        with pytest.raises(ConfigError, match=r"^--protocol: expected"):
            evaluated(cfg, cast("Any", nothing), replace(policy, published=other), {})


def test_as_many_problems_as_are_asked_for(reasoning_data: dict[str, Any], tmp_path: Path) -> None:
    data = {**reasoning_data, "data": {**reasoning_data["data"], "val_problems": 2, "final_problems": 4}}
    (tmp_path / "toy.yaml").write_text(json.dumps(data))
    for changes, count in (([], 4), (["data.val_problems=3"], 3), (["data.val_problems=3", "data.final_problems=1"], 1)):
        command = parse_evaluation(["--config-name", "toy", *changes], config_dir=tmp_path, description="")
        protocol = problem_protocol(read_reasoning(command.data), range(9), final=True)
        assert len(protocol.problems) == count


def test_problems_that_are_not_there_are_missed_before_a_worker_of_an_evaluation_starts(reasoning_data: dict[str, Any]) -> None:
    cfg = read_reasoning({**reasoning_data, "data": {**reasoning_data["data"], "val_problems": 1_000_000}})
    with pytest.raises(ConfigError, match=r"^data\.val_problems: 1000000 validation problems are asked for"):
        expect_evaluable(cfg)


def expect_evaluable(cfg: Any) -> None:
    evaluation = TASK_TYPES.get("reasoning").evaluation
    assert isinstance(evaluation, CheckedEvaluation)
    assert evaluation.configured(cfg) is cfg


def test_a_chat_template_that_fails_is_told_before_a_worker_starts(
    reasoning_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a split's first problem; where no prompt has messages, no tokenizer is made."""
    cfg, made = read_reasoning(reasoning_data), list[str]()
    tokenizer_of, texts = type(cfg.actor.model.config).tokenizer, type(cfg.data.task).problems

    def tokenizer(model: Any, corpus: Any) -> Any:
        made.append("tokenizer")
        return tokenizer_of(model, corpus)

    def refuse(tokenizer: Any, messages: Any, **how: Any) -> str:
        raise ValueError("a system has no place here")

    monkeypatch.setattr(type(cfg.actor.model.config), "tokenizer", tokenizer)
    expect_evaluable(cfg)
    check_problems(cfg)
    assert not made
    said = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    chats = [Problem(prompt=tuple(said), answer="a", id=number, place=f"data.jsonl:{number + 1}") for number in range(6)]
    monkeypatch.setattr(type(cfg.data.task), "problems", lambda task, split: chats if split == "validation" else texts(task, split))
    monkeypatch.setattr(type(tokenizer_of(cfg.actor.model.config, ())), "apply_chat_template", refuse, raising=False)
    for check in (expect_evaluable, check_problems):
        cfg = read_reasoning(reasoning_data)
        with pytest.raises(
            ConfigError, match=r"^data\.jsonl:1: the chat template can't write messages of system, user: a system has"
        ):
            check(cfg)
