"""`ReasoningRunner`: the loop of reinforcement learning from verifiable rewards.

    update_rollout_weights      actor ══weights══► rollout
    run_ahead                   problems ──► rollout                     up to `max_lag` iterations ahead
    generate_rollouts           rollout ══responses══► reward ( ◄══► inference ) ══trajectories══► actor
    compute_advantages…         actor
    run_training                actor                                    (meanwhile the rollout writes what it was sent ahead)

Where each of them runs, and what overlaps, is decided by placement and channels, not here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.core.evaluation import ProblemProtocol
from rlinf.core.metrics import means, merge
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoints.checkpointer import Checkpointer
from rlinf.runners.checkpoints.export import HUGGINGFACE
from rlinf.runners.checkpoints.resuming import resumed_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder, open_run_folder
from rlinf.runners.evaluation.policy import evaluation_plan
from rlinf.runners.reasoning.evaluation import Evaluated, ReasoningEvaluator
from rlinf.runners.reasoning.generation.admission import assign
from rlinf.runners.reasoning.generation.experience import Experience, Generation
from rlinf.runners.reasoning.generation.jobs import GenerationJobs
from rlinf.runners.reasoning.generation.prompt_groups import ProblemSource
from rlinf.runners.reasoning.generation.prompt_lengths import Fitting, fitting_prompts
from rlinf.runners.reasoning.generation.worker_groups import WorkerGroups
from rlinf.runners.reasoning.language import problems_of
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.transcripts import shown, write_transcripts
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.record import RunRecord, recorded
from rlinf.runners.reporting.summary import write_report
from rlinf.runners.training.versions import Versions

if TYPE_CHECKING:
    from rlinf.runners.reasoning.actor_worker import ReasoningActor
    from rlinf.runners.reasoning.generation.reward import LanguageRewardWorker
    from rlinf.runners.reasoning.generation.rollout import LanguageRolloutWorker
    from rlinf.runners.reasoning.inference_worker import InferenceWorker

SHOWN = 3
"""How many samples are shown on the screen."""


class ReasoningRunner:
    """Trains a language model with one actor group, one rollout group, one reward group and, if placed, one inference group.

    Args:
        cfg: the configuration of the run.
        actor: the group that trains.
        rollout: the group that writes.
        reward: the group that scores.
        inference: the group that scores under the reference; None leaves that to the actor.
        tools: the group in which the tools of agents run; None leaves that to the rollout workers.
        folder: where the run writes; by default the one that `cfg` names.
    """

    def __init__(
        self,
        cfg: ReasoningConfig,
        actor: WorkerGroup[ReasoningActor],
        rollout: WorkerGroup[LanguageRolloutWorker],
        reward: WorkerGroup[LanguageRewardWorker],
        inference: WorkerGroup[InferenceWorker] | None = None,
        tools: WorkerGroup[Any] | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        self.cfg, self.actor, self.rollout, self.reward, self.inference = cfg, actor, rollout, reward, inference
        self.folder = folder or open_run_folder(cfg)
        groups = WorkerGroups(rollout=rollout, reward=reward, actor=actor, inference=inference, tools=tools)
        self.topology, self.channels = groups.topology(cfg.actor.trainer), groups.channels()
        policy = rollout.cluster.handover_policy()
        self.jobs = GenerationJobs(groups, self.topology, self.channels, cfg.runner.timeout_s, policy)
        self.evaluator = ReasoningEvaluator(cfg, self.jobs)
        problems = len(problems_of(cfg.data.task, "train"))
        self.prompts = Fitting(numbers=range(problems), left_out=0, told="")
        self.source = ProblemSource(problems, seed=cfg.runner.seed, shuffle=cfg.data.shuffle)
        self.versions = Versions()
        self.generation = Generation(cfg, self.jobs, self.source, self.versions, self.topology.shares)
        self.phases = Phases(cfg.runner.timeout_s)
        self.checkpoints = Checkpointer(cfg, self.folder, write_actor=self._write_actor, state=self._state)
        self.step = 0
        self.tokens = 0

    def init_workers(self) -> None:
        """Builds generators, rewards and the trainer, and restores the checkpoint that the run resumes from."""
        groups = [
            self.rollout.init_worker(self.topology),
            self.reward.init_worker(self.topology),
            self.actor.init_worker(self.topology),
        ]
        self.phases.wait(*groups, *([] if self.inference is None else [self.inference.init_worker()]))
        # Before the source of problems is restored, whose position counts the ones that are kept.
        self._keep_fitting_prompts()
        checkpoint = resumed_checkpoint(self.cfg)
        if checkpoint is not None:
            self.phases.wait(self.actor.load_checkpoint(str(checkpoint.folder / "actor")))
            self.step, self.tokens = checkpoint.state["step"], checkpoint.state["tokens"]
            self.source.restore(checkpoint.state["data"])
            self.versions.publish(*checkpoint.state["versions"])

    def run(self) -> None:
        """Runs the loop to its end, then saves, evaluates and writes the summary."""
        config = self.cfg.runner
        with recorded(self.cfg, self.folder, self.checkpoints, step=self.step) as record:
            interim = self.evaluator.protocol(final=False)
            record.progress.note(evaluation_plan(interim, self.evaluator.protocol(final=True), config))
            if self.step == 0 and config.val_check_interval:
                before = self.evaluate(interim).report
                record.progress.evaluation(before.brief)
                record.log.write(0, before.scalars())
            with self.checkpoints.stoppable(record.progress.note):
                record.resumed(self.step, self._evaluated)
                while self.step < config.max_steps:
                    self._train(record)
                record.skipped.check()
                checkpoint = self.checkpoints.save_last(self._export if config.export else None)
            self._finish(record, checkpoint)

    def update_rollout_weights(self) -> None:
        """Gives the rollout workers the actor's weights."""
        with self.phases.phase("sync_weights"):
            self.versions.publish(self.jobs.sync_weights())

    def generate_rollouts(self) -> Experience:
        """Lets rollout and reward workers make what this iteration trains on, and the actor receive it."""
        with self.phases.phase("generate_rollouts"):
            experience = self.generation.collect(self.step)
            assignment = assign(experience.tokens, self.topology.shares)
            self.phases.wait(
                self.reward.deliver(assignment, self.channels), self.actor.recv_rollout_batch(self.channels.trajectories)
            )
        write_transcripts(self.folder.transcripts, self.step + 1, "train", experience.reports)
        return experience

    def evaluate(self, protocol: ProblemProtocol) -> Evaluated:
        """Evaluates the newest weights, and keeps them if they are the best so far."""
        with self.checkpoints.saved_if_it_fails():
            self.update_rollout_weights()
            evaluated = self.evaluator.run(protocol)
        write_transcripts(self.folder.transcripts, self.step, "eval", evaluated.groups)
        report = evaluated.report
        self.checkpoints.evaluated(f"eval/{report.metric}", report.means[report.metric], protocol=protocol.hash)
        return evaluated

    def _keep_fitting_prompts(self) -> None:
        """Leaves out the problems whose prompts are too long, before any of them is drawn."""
        (found,) = self.phases.wait(self.rollout.measure_prompts(("train", "validation")))
        prompts = fitting_prompts(self.cfg, found)
        self.source.keep(prompts["train"].numbers)
        self.evaluator.problems = prompts["validation"].numbers
        self.prompts = prompts["train"]
        for each in prompts.values():
            if each.told:
                sys.stderr.write(f"{each.told}\n")

    def _train(self, record: RunRecord) -> None:
        """One iteration, and what follows it."""
        began = time.monotonic()
        scalars = self._iterate()
        scalars["time/step"] = time.monotonic() - began
        scalars["time/tokens_per_s"] = scalars["rollout/tokens"] / scalars["time/step"]
        self.step += 1
        record.iteration(self.step, scalars, _told(scalars), self._evaluated)

    def _evaluated(self) -> tuple[dict[str, float], str]:
        report = self.evaluate(self.evaluator.protocol(final=False)).report
        return report.scalars(), report.brief

    def _write_actor(self, folder: Path) -> None:
        self.phases.wait(self.actor.save_checkpoint(str(folder)))

    def _export(self, folder: Path) -> None:
        self.phases.wait(self.actor.export(str(folder / HUGGINGFACE)))

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "data": self.generation.state(),
            "versions": self.versions.state(self.cfg.rollout.admitted_lag + 2),
        }

    def _iterate(self) -> dict[str, float]:
        """One iteration; returns its scalars."""
        self.update_rollout_weights()
        # After the weights, so that what begins now is written by the newest.
        self.generation.run_ahead(self.step)
        experience = self.generate_rollouts()
        (credit,) = self.phases.timed("cal_adv_and_returns", self.actor.compute_advantages_and_returns())
        (training,) = self.phases.timed("actor_training", self.actor.run_training(self.step))
        self.tokens += int(experience.scalars["rollout/tokens"])
        return {
            **experience.scalars,
            "data/overlong_prompts": float(self.prompts.left_out),
            **means(merge(credit), "rollout/"),
            **means(merge(training), "train/"),
            **self.phases.take([self.reward, self.actor, *([] if self.inference is None else [self.inference])]),
        }

    def _finish(self, record: RunRecord, checkpoint: Path) -> None:
        evaluated = self.evaluate(self.evaluator.protocol(final=True))
        report, tokens = evaluated.report, {"rollout/total_tokens": float(self.tokens)}
        record.log.write(self.step, {**report.scalars(), **tokens, "time/wall_s": self.folder.wall_s})
        # Before workers are closed, as one that can't close must lose nothing.
        write_report(self.folder, self.cfg.runner, report, tokens)
        self.phases.wait(self.rollout.close(), self.actor.close())
        for text in shown(evaluated.groups, SHOWN):
            record.progress.note(text)
        record.progress.note(
            f"eval/{report} after {self.tokens:,} tokens, {self.folder.wall_s:.0f} s (seed {self.cfg.runner.seed})"
        )
        transcripts, best = self.folder.transcripts, self.checkpoints.best
        paths = {"checkpoint": checkpoint, "best": best, "transcripts": transcripts, "summary": self.folder.summary}
        record.progress.paths(paths)


def _told(scalars: dict[str, float]) -> list[str]:
    """What a person is shown of an iteration."""
    return [
        f"{scalars['time/tokens_per_s']:,.0f} tokens/s",
        f"reward {scalars['rollout/rewards']:.2f}",
        f"right {scalars['rollout/accuracy']:.0%}",
        f"length {scalars['rollout/response_length']:.0f}",
    ]
