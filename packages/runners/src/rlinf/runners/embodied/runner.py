"""`EmbodiedRunner`: the loop of learning from simulated robots, synchronous or up to `rollout.max_lag` iterations behind.

    update_rollout_weights      actor ══weights══► rollout
    generate_rollouts           env ◄══actions══ rollout,  env ══observations══► rollout,  env ══trajectories══► actor
                                (with runner.use_training_pipeline the actor trains on each rollout epoch as it comes)
    compute_advantages…         actor
    run_training                actor          (meanwhile env resets for the next iteration, or plays it: see `collection`)

Where each of them runs, and what overlaps, is decided by placement and channels, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.core.data import EnvSpec
from rlinf.core.envs.robots import add_counts
from rlinf.core.evaluation import EpisodeProtocol, EpisodeResult, EvalReport, mean_values
from rlinf.core.metrics import means, merge
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoints.checkpointer import Checkpointer
from rlinf.runners.checkpoints.resuming import resumed_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder, open_run_folder
from rlinf.runners.embodied.collection import Collection, read_played, write_played
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import EmbodiedEvaluator, episode_protocol
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.topology import Channels, Topology
from rlinf.runners.evaluation.policy import evaluation_plan
from rlinf.runners.evaluation.tables import table
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.record import RunRecord, recorded
from rlinf.runners.reporting.summary import write_report

if TYPE_CHECKING:
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker

Learning = Callable[["EmbodiedRunner"], dict[str, float]]
"""What follows the rollouts of an iteration, by the handles of a runner; returns its scalars."""


class EmbodiedRunner:
    """Trains a policy with one actor group, one rollout group and one env group.

    Args:
        cfg: the configuration of the run.
        actor: the group that trains.
        rollout: the group that decides.
        env: the group that simulates.
        folder: where the run writes; by default the one that `cfg` names.
        learn: what follows the rollouts of an iteration.
        check: refuses what only the simulators know, before a policy is built, beside what every run refuses.
    """

    def __init__(
        self,
        cfg: PlayedConfig,
        actor: WorkerGroup[Any],
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        folder: RunFolder | None = None,
        *,
        learn: Learning | None = None,
        check: Callable[[EnvSpec], None] | None = None,
    ) -> None:
        self.cfg, self.actor, self.rollout, self.env = cfg, actor, rollout, env
        self.folder = folder or open_run_folder(cfg)
        cluster = actor.cluster
        self.channels = Channels(
            requests=cluster.create_channel("requests", near=rollout.name),
            # Not near those that read it: an env worker may be started again, and what waits for others would be lost with it.
            answers=cluster.create_channel("answers", near=rollout.name),
            trajectories=cluster.create_channel("trajectories", near=actor.name),
        )
        self.evaluator = EmbodiedEvaluator(rollout, env, requests=self.channels.requests, answers=self.channels.answers, cfg=cfg)
        self._learn, self._check = learn or on_policy_learning, check
        self.step = 0
        self.env_steps = 0
        self.phases = Phases(cfg.runner.timeout_s)
        self.collection = Collection(cfg, rollout, env, self.channels, self.phases)
        self.phases.recovered = self.collection.recovered
        self.checkpoints = Checkpointer(cfg, self.folder, write_actor=self._write_actor, state=self._state)

    def init_workers(self) -> None:
        """Builds simulators, policies and the trainer, and restores the checkpoint that the run resumes from."""
        slots = slot_layout(self.cfg, self.env.world_size, self.rollout.world_size)
        # Simulators first: they say what a policy sees and does.
        (specs,) = self.phases.wait(self.env.init_worker(slots["train"]))
        spec: EnvSpec = specs[0]
        check_spec(self.cfg, spec)
        if self._check is not None:
            self._check(spec)
        topology = Topology.of(spec, slots, actor=self.actor, rollout=self.rollout)
        # First: an env worker that dies while policies are built is built anew before the first iteration.
        self.collection.connect(topology)
        self.phases.wait(self.env.connect(topology), self.rollout.init_worker(topology), self.actor.init_worker(topology))
        checkpoint = resumed_checkpoint(self.cfg)
        if checkpoint is not None:
            folder = str(checkpoint.folder / "actor")
            self.phases.wait(self.actor.load_checkpoint(folder), self.env.load_checkpoint(folder))
            self.step, self.env_steps = checkpoint.state["step"], checkpoint.state["env_steps"]
            self.collection.versions.publish(*checkpoint.state.get("versions", ()))
            self.collection.restore(self.step, read_played(checkpoint.folder / "actor"))

    def run(self) -> None:
        """Runs the loop to its end, then saves, evaluates and writes the summary."""
        config = self.cfg.runner
        with recorded(self.cfg, self.folder, self.checkpoints, step=self.step) as record:
            told = evaluation_plan(episode_protocol(self.cfg, final=False), episode_protocol(self.cfg, final=True), config)
            record.progress.note(told)
            with self.checkpoints.stoppable(record.progress.note):
                record.resumed(self.step, self._evaluated)
                while self.step < config.max_steps:
                    self._train(record)
                record.skipped.check()
                checkpoint = self.checkpoints.save_last()
            self._finish(record, checkpoint)

    def update_rollout_weights(self) -> None:
        """Gives the rollout workers the actor's weights."""
        self.collection.give_weights(self.actor)

    def generate_rollouts(self) -> dict[str, float]:
        """Lets env and rollout workers play, and the actor receive; returns what is measured of it.

        With `runner.use_training_pipeline` the actor also trains on each rollout epoch while the next one is played.
        """
        self.collection.run_ahead(self.step)
        if self.cfg.trains_on_arrival:
            received = self.actor.train_on_arrival(self.step, self.channels.trajectories, self.env.world_size)
        else:
            received = self.actor.recv_rollout_batch(self.channels.trajectories, self.env.world_size)
        played = self.collection.finish(self.step, received)
        self.env_steps += sum(part.env_steps for part in played)
        counts = {f"env/{name}": count for name, count in add_counts(part.counts for part in played).items()}
        episodes = [result for part in played for result in part.episodes]
        return {**_played(episodes), **counts, **self.collection.lag(played), **self.collection.lost()}

    def run_training(self) -> dict[str, float]:
        """Lets the actor train, while environments reset for the next iteration if they are not playing it."""
        idle = self.cfg.max_lag or self.cfg.env.offload or not self.cfg.plays(self.step + 1)
        meanwhile = [] if idle else [self.env.prepare(self.step + 1)]
        trained = self.actor.run_training(self.step)
        training, *_ = self.phases.timed("actor_training", trained, *meanwhile, beside=self.collection.ahead)
        return means(merge(training), "train/")

    def evaluate(self, protocol: EpisodeProtocol, video: Path | None = None) -> EvalReport[EpisodeResult]:
        """Evaluates the newest weights, and keeps them if they are the best so far."""
        with self.checkpoints.saved_if_it_fails():
            self.update_rollout_weights()
            self.collection.drain()
            report = self.evaluator.run(protocol, video)
        self.checkpoints.evaluated(f"eval/{report.metric}", report.means[report.metric], protocol=protocol.hash)
        return report

    def _train(self, record: RunRecord) -> None:
        """One iteration, and what follows it."""
        began, before = time.monotonic(), self.env_steps
        scalars = self._iterate()
        scalars["time/step"] = time.monotonic() - began
        scalars["time/env_steps_per_s"] = (self.env_steps - before) / scalars["time/step"]
        self.step += 1
        record.iteration(self.step, scalars, _told(scalars), self._evaluated)

    def _evaluated(self) -> tuple[dict[str, float], str]:
        report = self.evaluate(episode_protocol(self.cfg, final=False))
        return report.scalars(), report.brief

    def _write_actor(self, folder: Path) -> None:
        ahead = self.collection.drain()
        if ahead:
            epochs = len(ahead) * self.cfg.env.train.rollout_epoch
            # Before the actor saves, as it writes what it has received, too.
            self.phases.wait(self.actor.receive_ahead(epochs, self.channels.trajectories, self.env.world_size))
            write_played(folder, ahead)
        self.phases.wait(self.actor.save_checkpoint(str(folder)), self.env.save_checkpoint(str(folder)))

    def _state(self) -> dict[str, Any]:
        versions = self.collection.versions.state(self.cfg.max_lag + 2)
        return {"step": self.step, "env_steps": self.env_steps, "versions": versions}

    def _iterate(self) -> dict[str, float]:
        """One iteration; returns its scalars."""
        if not self.cfg.plays(self.step):
            return {"env/steps": float(self.env_steps), **self._learn(self), **self.phases.take([self.actor])}
        # Not where they are given out: for an evaluation, they are given out outside of any iteration.
        with self.phases.phase("sync_weights"):
            self.update_rollout_weights()
        measured = self.generate_rollouts()
        learned = self._learn(self)
        # While they play on, env and rollout workers can't be asked.
        asked = [self.actor] if self.cfg.max_lag else [self.env, self.rollout, self.actor]
        times = self.collection.times if self.cfg.max_lag else {}
        return {"env/steps": float(self.env_steps), **measured, **learned, **self.phases.take(asked), **times}

    def _finish(self, record: RunRecord, checkpoint: Path) -> None:
        config = self.cfg.env.eval.video_cfg
        video = self.folder.video if config.save_video else None
        report = self.evaluate(episode_protocol(self.cfg, final=True), video)
        steps = {"env/steps": float(self.env_steps)}
        record.log.write(self.step, {**report.scalars(), **steps, "time/wall_s": self.folder.wall_s})
        # Before the films, which can fail for reasons of their own.
        write_report(self.folder, self.cfg.runner, report, steps)
        record.progress.note(
            f"eval/{report} after {self.env_steps:,} env steps, {self.folder.wall_s:.0f} s (seed {self.cfg.runner.seed})"
        )
        if len(report.rows) > 1:
            record.progress.note(table(report.rows, report.metric))
        films = self.evaluator.film_failures(report, self.folder.failures, config.failures)
        # After all that is played, for which the actor sends its weights.
        self.phases.wait(self.actor.close(), self.env.close())
        paths = {"checkpoint": checkpoint, "best": self.checkpoints.best, "video": video}
        record.progress.paths({**paths, "failures": self.folder.failures if films else None, "summary": self.folder.summary})


def on_policy_learning(runner: EmbodiedRunner) -> dict[str, float]:
    """Credit for the decisions received last, and training on them."""
    credited = runner.actor.compute_advantages_and_returns()
    (credit,) = runner.phases.timed("cal_adv_and_returns", credited, beside=runner.collection.ahead)
    return {**means(merge(credit), "rollout/"), **runner.run_training()}


def _played(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    """`env/…`: the means over the episodes that ended, and of several tasks `env/task_<n>/…`; nothing if none did."""
    tasks = sorted({episode.task for episode in episodes}, key=str)
    parts = {"env/": episodes}
    if len(tasks) > 1:
        parts |= {f"env/task_{task}/": [episode for episode in episodes if episode.task == task] for task in tasks}
    found: dict[str, float] = {}
    for prefix, part in parts.items():
        means_of = {**mean_values(episode.values() for episode in part), "episodes": float(len(part))}
        found |= {f"{prefix}{name}": mean for name, mean in means_of.items() if part}
    return found


def _told(scalars: Mapping[str, float]) -> list[str]:
    """What a person is shown of an iteration; return, and success where the task knows it, if an episode ended."""
    if not scalars["time/env_steps_per_s"]:
        return [f"critic loss {scalars['train/critic_loss']:.3g}"] if "train/critic_loss" in scalars else []
    parts = [f"{scalars['time/env_steps_per_s']:,.0f} steps/s"]
    if "env/return" in scalars:
        parts += [f"return {scalars['env/return']:.2f}"]
    if "env/success_once" in scalars:
        parts += [f"success {scalars['env/success_once']:.0%}"]
    return parts
