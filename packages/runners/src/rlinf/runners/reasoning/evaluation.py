"""Evaluation of a language model: a run's protocols, the problems over its workers, and a runner that does nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from rlinf.core.capabilities import HasFingerprint
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EvalReport, ProblemProtocol, ProblemResult
from rlinf.core.language.problems import Split, TaskConfig
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.config.sections import resolved
from rlinf.runners.evaluation.policy import EvaluatedPolicy, evaluation_begins
from rlinf.runners.evaluation.published import expect_protocol
from rlinf.runners.reasoning.generation.admission import GroupReport
from rlinf.runners.reasoning.generation.jobs import GenerationJobs
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.prompt_lengths import fitting_prompts
from rlinf.runners.reasoning.generation.worker_groups import WorkerGroups
from rlinf.runners.reasoning.language import check_corpus, check_template, problems_of
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.transcripts import write_transcripts
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.summary import write_report

if TYPE_CHECKING:
    from rlinf.runners.reasoning.generation.reward import LanguageRewardWorker
    from rlinf.runners.reasoning.generation.rollout import LanguageRolloutWorker

_SPLIT: Split = "validation"
_NOT_MEASURED = (
    *("rollout_batch_size", "val_problems", "final_problems", "shuffle"),
    *("max_prompt_length", "filter_overlong_prompts"),
)
"""Keys of `data` that can't change what is measured, or that the protocol's `problems` state."""
_NOT_SCORED = ("overlong", "max_concurrent", "group_timeout_s")
"""Keys of `reward` that can't change what is measured."""
_BY_SUM = ("success_part", None)
"""How it was before there was such a key: the protocols of older checkpoints are still the same."""


def problem_protocol(cfg: ReasoningConfig, problems: Sequence[int], *, final: bool) -> ProblemProtocol:
    """What an evaluation measures: the last one of a run (`data.final_problems`), or those before it (`data.val_problems`).

    Args:
        cfg: the configuration of the run.
        problems: those of the validation split whose prompts fit, ascending; the first ones are asked.
        final: whether it is the last evaluation.
    """
    count = (cfg.data.final_problems if final else None) or cfg.data.val_problems
    data = by_content(resolved(cfg.data), cfg.data.task, _SPLIT)
    return ProblemProtocol(
        data={key: value for key, value in data.items() if key not in _NOT_MEASURED},
        split=_SPLIT,
        problems=tuple(problems[:count]),
        samples=cfg.eval.samples,
        sampling=resolved(cfg.eval_sampling),
        reward={key: value for key, value in resolved(cfg.reward).items() if key not in _NOT_SCORED and (key, value) != _BY_SUM},
        pass_k=cfg.eval.pass_k,
        agent=cfg.measured_agent,
    )


def evaluated_protocol(cfg: ReasoningConfig, policy: EvaluatedPolicy, problems: Sequence[int]) -> ProblemProtocol:
    """What an evaluation without training measures: as the last one of a run, but for what is changed of the policy."""
    return replace(problem_protocol(cfg, problems, final=True), model=policy.changed(cfg.source))


def by_content(data: Mapping[str, Any], task: TaskConfig, split: Split) -> dict[str, Any]:
    """The section `data` with what its problems are in place of where they come from; see `HasFingerprint`."""
    if not isinstance(task, HasFingerprint):
        return dict(data)
    found = task.fingerprint(split)
    return {key: found.get(key, value) for key, value in data.items() if found.get(key) != ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The result of an evaluation."""

    report: EvalReport[ProblemResult]
    groups: list[GroupReport]
    """Each problem with what was answered."""


class ReasoningEvaluator:
    """Evaluates the weights that the rollout workers hold.

    Args:
        cfg: the configuration of the run.
        jobs: the way to the workers.

    Raises:
        ConfigError: there are fewer validation problems than are asked for.
    """

    def __init__(self, cfg: ReasoningConfig, jobs: GenerationJobs) -> None:
        self._cfg, self._jobs = cfg, jobs
        self._runs = 0
        self.problems: Sequence[int] = range(held_out(cfg))
        """Those that may be asked."""

    def protocol(self, *, final: bool) -> ProblemProtocol:
        """What an evaluation measures; see `problem_protocol`."""
        return problem_protocol(self._cfg, self.problems, final=final)

    def run(self, protocol: ProblemProtocol) -> Evaluated:
        """Has every problem of a protocol answered, spread over the rollout workers."""
        # Queues are named by the key of a job, which must be another one each time.
        self._runs += 1
        problems = protocol.work_list()
        job = JobSpec(
            key=f"eval/{self._runs}",
            split=_SPLIT,
            prompt_groups=tuple(PromptGroup(group=number, problem=number) for number in problems),
            needed=len(problems),
            samples=protocol.samples,
            sampling=self._cfg.eval_sampling,
            shown=len(problems),
        )
        groups = self._jobs.finish(self._jobs.start(job)).reports
        return Evaluated(report=EvalReport(protocol=protocol, results=tuple(map(problem_result, groups))), groups=groups)


def check_problems(cfg: ReasoningConfig) -> None:
    """Refuses problems that the model's tokens or chat template can't write, or too few held out, before a worker or a warm start.

    Raises:
        ConfigError: with the characters that it lacks, or the messages; or there are fewer validation problems than are asked for.
    """
    check_corpus(cfg.actor.model, cfg.data.task)
    held_out(cfg)
    check_template(cfg, get_args(Split))


def check_asked(cfg: ReasoningConfig) -> ReasoningConfig:
    """The same of an evaluation alone, whose configuration is that of the run."""
    held_out(cfg)
    check_template(cfg, (_SPLIT,))
    return cfg


def held_out(cfg: ReasoningConfig) -> int:
    """How many problems an evaluation can ask.

    Raises:
        ConfigError: fewer than are asked for.
    """
    available = len(problems_of(cfg.data.task, _SPLIT))
    for name, asked in (("val_problems", cfg.data.val_problems), ("final_problems", cfg.data.final_problems)):
        if asked is not None and asked > available:
            problem = f"{asked} validation problems are asked for, and task '{cfg.data.type}' has {available}"
            raise ConfigError(f"data.{name}", problem, f"Use at most {available}.")
    return available


def problem_result(group: GroupReport) -> ProblemResult:
    """A group without its texts."""
    responses = group.responses
    return ProblemResult(
        problem=group.problem,
        success=tuple(response.success for response in responses),
        reward=tuple(response.reward for response in responses),
        tokens=tuple(response.tokens for response in responses),
        finish=tuple(response.finish for response in responses),
    )


class ReasoningEvalRunner:
    """Evaluates a policy with one rollout group and one reward group, without training.

    Args:
        cfg: the configuration, that of a checkpoint or of a recipe.
        policy: which weights are evaluated, and where the results go: `transcripts.jsonl` and `summary.json`.
        rollout: the group that writes.
        reward: the group that scores.
        tools: the group in which the tools of agents run; None leaves that to the rollout workers.
    """

    def __init__(
        self,
        cfg: ReasoningConfig,
        policy: EvaluatedPolicy,
        rollout: WorkerGroup[LanguageRolloutWorker],
        reward: WorkerGroup[LanguageRewardWorker],
        tools: WorkerGroup[Any] | None = None,
    ) -> None:
        self.cfg, self.policy, self.rollout, self.reward = cfg, policy, rollout, reward
        self.phases = Phases(cfg.runner.timeout_s)
        groups = WorkerGroups(rollout=rollout, reward=reward, tools=tools)
        self.topology = groups.topology(cfg.actor.trainer)
        self.evaluator = ReasoningEvaluator(cfg, GenerationJobs(groups, self.topology, groups.channels(), cfg.runner.timeout_s))

    def init_workers(self) -> None:
        """Builds generators and rewards, and loads the weights."""
        self.phases.wait(self.rollout.init_worker(self.topology), self.reward.init_worker(self.topology))
        (found,) = self.phases.wait(self.rollout.measure_prompts((_SPLIT,)))
        self.evaluator.problems = fitting_prompts(self.cfg, found)[_SPLIT].numbers
        self.phases.wait(self.rollout.load_weights(self.policy.checkpoint_file, self.policy.step))

    def run(self) -> EvalReport[ProblemResult]:
        """Has the problems of the last evaluation answered, and writes the report and what was answered."""
        protocol = evaluated_protocol(self.cfg, self.policy, self.evaluator.problems)
        # Only here, as which problems are asked depends on the prompts that rollout workers have measured.
        expect_protocol(self.policy.published, protocol)
        sys.stderr.write(f"{evaluation_begins(protocol)}\n")
        folder = self.policy.folder(protocol)
        folder.path.mkdir(parents=True, exist_ok=True)
        # Transcripts are appended, and an earlier evaluation may have written some here.
        folder.transcripts.unlink(missing_ok=True)
        evaluated = self.evaluator.run(protocol)
        write_transcripts(folder.transcripts, self.policy.step, "eval", evaluated.groups)
        write_report(folder, self.cfg.runner, evaluated.report, {**self.policy.described, "config": self.cfg.source})
        self.phases.wait(self.rollout.close())
        return evaluated.report
