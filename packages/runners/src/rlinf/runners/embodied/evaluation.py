"""Evaluation of a policy in simulation: a run's protocols, the episodes over its workers, and a runner that does nothing else."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlinf.core.data import EnvSpec
from rlinf.core.declarations import RunsElsewhere, tasks_of
from rlinf.core.evaluation import EpisodeKey, EpisodeProtocol, EpisodeResult, EvalReport
from rlinf.core.protocols import Channel, WorkerGroup
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.playing.slots import evaluation_slots
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.embodied.schema import EvalEnvConfig, PlayedConfig
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.evaluation.policy import EvaluatedPolicy, evaluation_begins
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.summary import write_report

if TYPE_CHECKING:
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker


def episode_protocol(cfg: PlayedConfig, *, final: bool) -> EpisodeProtocol:
    """What an evaluation measures: the last one of a run (`env.eval.final_episodes`), or those before it (`env.eval.episodes`)."""
    config = cfg.env.eval
    episodes = (config.final_episodes if final else None) or config.episodes
    named = config.init_ids if final else None
    return EpisodeProtocol(
        env=stated_env(config),
        tasks=config.task_ids,
        init_ids=tuple(range(episodes)) if named is None else named,
        seeds=(cfg.runner.seed,) if config.seeds is None else config.seeds,
        initial_states=config.initial_states,
        max_episode_steps=config.max_episode_steps,
        ignore_terminations=config.ignore_terminations,
        mode=config.mode,
        success=config.success,
        real_time_chunking=config.real_time_chunking,
    )


def evaluated_protocol(cfg: PlayedConfig, policy: EvaluatedPolicy) -> EpisodeProtocol:
    """What an evaluation without training measures: as the last one of a run, but for what is changed of the policy."""
    return replace(episode_protocol(cfg, final=True), model=policy.changed(cfg.source))


def stated_env(config: EvalEnvConfig) -> dict[str, Any]:
    """The environment as a protocol states it, in whatever process it runs; wrappers only where there are any."""
    runs = config.init_params.runs if isinstance(config.init_params, RunsElsewhere) else None
    if runs is not None:
        name, inner = runs
        return stated_env(replace(config, env_type=name, init_params=inner))
    wrappers = [resolved(section) for section in config.wrappers if not section.wrapper.training_only]
    stated = {"env_type": config.env_type, "init_params": resolved(config)["init_params"]}
    return {**stated, "wrappers": wrappers} if wrappers else stated


class EmbodiedEvaluator:
    """Evaluates the weights that the rollout workers hold.

    Args:
        rollout: the workers that decide; initialised.
        env: the workers that simulate; initialised and connected.
        requests: carries observations to `rollout`.
        answers: carries decisions to `env`.
        cfg: the run.
    """

    def __init__(
        self,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        *,
        requests: Channel,
        answers: Channel,
        cfg: PlayedConfig,
    ) -> None:
        self._rollout, self._env = rollout, env
        self._requests, self._answers = requests, answers
        self._phases = Phases(cfg.runner.timeout_s)
        self._names = {number: names[0] for number, names in enumerate(tasks_of(cfg.env.eval.init_params) or ()) if names}

    def run(self, protocol: EpisodeProtocol, video: Path | None = None) -> EvalReport[EpisodeResult]:
        """Plays every episode of a protocol once, spread over the env workers."""
        film = str(video) if video is not None else None
        playing = self._env.evaluate(protocol, self._requests, self._answers, film)
        deciding = self._rollout.evaluate(self._requests, self._answers, protocol.mode)
        per_rank, _ = self._phases.wait(playing, deciding)
        played = tuple(result for results in per_rank for result in results)
        return EvalReport(protocol=protocol, results=played, names=self._names)

    def film_failures(self, report: EvalReport[EpisodeResult], folder: Path, count: int) -> list[Path]:
        """Plays episodes that were not solved once more, each for a film of its own, and returns the films.

        The work-list is gone through task by task, so that each task is seen before any is seen twice. A film says by its name if
        the episode was solved this time, as it may be where a policy draws noise or a simulator does. Films of an earlier
        evaluation are removed.
        """
        shutil.rmtree(folder, ignore_errors=True)
        films, names = dict[Path, EpisodeKey](), Counter[str]()
        for key in failures(report, count):
            name = _film_name(key)
            names[name] += 1
            # Tasks that begin alike have one name, and a film each.
            films[folder / f"{name}{f'_{names[name]}' if names[name] > 1 else ''}.mp4"] = key
        if not films:
            return []
        playing = self._env.film(report.protocol, [(key, str(file)) for file, key in films.items()], self._requests, self._answers)
        mode = cast("EpisodeProtocol", report.protocol).mode
        per_rank, _ = self._phases.wait(playing, self._rollout.evaluate(self._requests, self._answers, mode))
        metric, again = report.metric, [result for results in per_rank for result in results]
        outcome = {result.episode: report.protocol.values(result)[metric] for result in again}
        return [_renamed(file) if outcome[key] else file for file, key in films.items()]


def failures(report: EvalReport[EpisodeResult], count: int) -> list[EpisodeKey]:
    """The first episodes that were not solved, of each task in turn; none where the task knows no success."""
    if report.total is None:
        return []
    metric, turns = report.metric, dict[Any, list[EpisodeKey]]()
    for result in report.results:
        if result.episode is not None and not report.protocol.values(result)[metric]:
            turns.setdefault(result.task, []).append(result.episode)
    ordered = [key for keys in zip_longest(*turns.values()) for key in keys if key is not None]
    return ordered[:count]


def _film_name(key: EpisodeKey) -> str:
    # A task may be a sentence.
    task = "" if key.task is None else re.sub(r"[^A-Za-z0-9]+", "-", str(key.task))[:40].strip("-") + "_"
    return f"failure_{task}init{key.init_id}_seed{key.seed}"


def _renamed(file: Path) -> Path:
    return file.replace(file.with_stem(f"{file.stem}_solved_when_repeated"))


class EmbodiedEvalRunner:
    """Evaluates a policy with one rollout group and one env group, without training.

    Args:
        cfg: the configuration, that of a checkpoint or of a recipe.
        policy: which weights are evaluated, and where the results go: `video/eval.mp4` and `summary.json`.
        rollout: the group that decides.
        env: the group that simulates.
    """

    def __init__(
        self,
        cfg: PlayedConfig,
        policy: EvaluatedPolicy,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
    ) -> None:
        self.cfg, self.policy, self.rollout, self.env = cfg, policy, rollout, env
        self.phases, cluster = Phases(cfg.runner.timeout_s), rollout.cluster
        self.evaluator = EmbodiedEvaluator(
            rollout,
            env,
            requests=cluster.create_channel("requests", near=rollout.name),
            answers=cluster.create_channel("answers", near=env.name),
            cfg=cfg,
        )

    def init_workers(self) -> None:
        """Builds simulators and policies, and loads the weights."""
        slots = evaluation_slots(self.cfg, self.env.world_size)
        (specs,) = self.phases.wait(self.env.init_evaluation(slots))
        spec: EnvSpec = specs[0]
        # Fine-tuning has no other environment that it could be called by.
        within = "eval" if self.cfg.env.same else "train"
        check_spec(self.cfg, spec, within=within, of_checkpoint=self.policy.checkpoint_file is not None)
        topology = Topology.of(spec, {"eval": slots}, rollout=self.rollout)
        self.phases.wait(self.env.connect(topology), self.rollout.init_worker(topology))
        self.phases.wait(self.rollout.load_weights(self.policy.checkpoint_file, self.policy.step))

    def run(self) -> EvalReport[EpisodeResult]:
        """Plays the protocol of the last evaluation, and writes the report; then films failures."""
        protocol = evaluated_protocol(self.cfg, self.policy)
        sys.stderr.write(f"{evaluation_begins(protocol)}\n")
        folder = self.policy.folder(protocol)
        folder.path.mkdir(parents=True, exist_ok=True)
        film = self.cfg.env.eval.video_cfg
        # Of other weights, where the file that runner.ckpt_path names was written anew.
        folder.video.unlink(missing_ok=True)
        report = self.evaluator.run(protocol, folder.video if film.save_video else None)
        steps = {"env/steps": float(self.policy.state["env_steps"])} if "env_steps" in self.policy.state else {}
        # Before the films, which can fail for reasons of their own.
        write_report(folder, self.cfg.runner, report, {**self.policy.described, **steps, "config": self.cfg.source})
        self.evaluator.film_failures(report, folder.failures, film.failures)
        self.phases.wait(self.env.close())
        return report
