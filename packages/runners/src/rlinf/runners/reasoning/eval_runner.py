"""`ReasoningEvalRunner`: evaluates a checkpoint with one rollout group and one reward group."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reasoning.evaluation import measured
from rlinf.runners.reasoning.evaluator import ReasoningEvaluator
from rlinf.runners.reasoning.generation.jobs import GenerationJobs
from rlinf.runners.reasoning.generation.prompt_lengths import fitting_prompts
from rlinf.runners.reasoning.generation.worker_groups import WorkerGroups
from rlinf.runners.reasoning.reward_worker import RewardWorker
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.transcripts import write_transcripts
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.summary import write_measured


class ReasoningEvalRunner:
    """Evaluates the weights of a checkpoint.

    Args:
        cfg: the configuration, as a rule the checkpoint's own.
        checkpoint: what is evaluated.
        rollout: the group that writes.
        reward: the group that scores.
        folder: where `transcripts.jsonl` and `summary.json` go, given the protocol; see `EvaluationCommand.folder`.
    """

    def __init__(
        self,
        cfg: ReasoningConfig,
        checkpoint: Checkpoint,
        rollout: WorkerGroup[ReasoningRolloutWorker],
        reward: WorkerGroup[RewardWorker],
        folder: Callable[[Mapping[str, Any]], RunFolder],
    ) -> None:
        self.cfg, self.checkpoint, self.rollout, self.reward, self.folder = cfg, checkpoint, rollout, reward, folder
        self.phases = Phases(cfg.runner.timeout_s)
        groups = WorkerGroups(rollout=rollout, reward=reward)
        self.topology = groups.topology(cfg.actor.trainer)
        self.evaluator = ReasoningEvaluator(cfg, GenerationJobs(groups, self.topology, groups.channels(), cfg.runner.timeout_s))

    def init_workers(self) -> None:
        """Builds generators and rewards, and loads the weights."""
        self.phases.wait(self.rollout.init_worker(self.topology), self.reward.init_worker(self.topology))
        (found,) = self.phases.wait(self.rollout.measure_prompts(("validation",)))
        self.evaluator.keep(fitting_prompts(self.cfg, found)["validation"].numbers)
        self.phases.wait(self.rollout.load_checkpoint(str(self.checkpoint.model_file), self.checkpoint.state["step"]))

    def run(self) -> dict[str, Any]:
        """Has the problems answered, writes the summary and returns it."""
        problems = self.cfg.data.final_problems or self.cfg.data.val_problems
        protocol = self.evaluator.protocol(problems)
        folder = self.folder(protocol)
        folder.path.mkdir(parents=True, exist_ok=True)
        transcripts = folder.transcripts
        transcripts.unlink(missing_ok=True)
        evaluated = self.evaluator.run(problems)
        write_transcripts(transcripts, self.checkpoint.state["step"], "eval", evaluated.reports)
        self.phases.wait(self.rollout.close())
        scalars = {**evaluated.scalars, "time/wall_s": folder.wall_s}
        summary = write_measured(folder.summary, self.cfg.runner, measured(self.cfg, scalars, problems), protocol)
        return json.loads(json.dumps(summary, default=str))
