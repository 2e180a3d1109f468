"""Evaluation of a policy in simulation: a run's protocols, the episodes over its workers, and a runner that does nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.core.data import EnvSpec
from rlinf.core.evaluation import EpisodeProtocol, EpisodeResult, EvalReport
from rlinf.core.protocols import Channel, WorkerGroup
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.embodied.schema import EmbodiedConfig, EvalEnvConfig
from rlinf.runners.embodied.slots import slot_layout
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reporting.phases import within
from rlinf.runners.reporting.summary import write_report

if TYPE_CHECKING:
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker


def episode_protocol(cfg: EmbodiedConfig, *, final: bool) -> EpisodeProtocol:
    """What an evaluation measures: the last one of a run (`env.eval.final_episodes`), or those before it (`env.eval.episodes`)."""
    config = cfg.env.eval
    episodes = (config.final_episodes if final else None) or config.episodes
    return EpisodeProtocol(
        env=stated_env(config),
        init_ids=tuple(range(episodes)),
        seeds=(cfg.runner.seed,),
        initial_states="seed",
        max_episode_steps=config.max_episode_steps,
        ignore_terminations=config.ignore_terminations,
        mode=config.mode,
    )


def stated_env(config: EvalEnvConfig) -> dict[str, Any]:
    """The environment as a protocol states it; wrappers only where there are any."""
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
        timeout_s: seconds that an evaluation may take.
    """

    def __init__(
        self,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        *,
        requests: Channel,
        answers: Channel,
        timeout_s: float,
    ) -> None:
        self._rollout, self._env = rollout, env
        self._requests, self._answers = requests, answers
        self._timeout_s = timeout_s

    def run(self, protocol: EpisodeProtocol, video: Path | None = None) -> EvalReport[EpisodeResult]:
        """Plays every episode of a protocol once, spread over the env workers."""
        film = str(video) if video is not None else None
        playing = self._env.evaluate(protocol, self._requests, self._answers, film)
        deciding = self._rollout.evaluate(self._requests, self._answers, protocol.mode)
        per_rank, _ = within(self._timeout_s, playing, deciding)
        return EvalReport(protocol=protocol, results=tuple(result for results in per_rank for result in results))


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
        cfg: EmbodiedConfig,
        policy: EvaluatedPolicy,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
    ) -> None:
        self.cfg, self.policy, self.rollout, self.env = cfg, policy, rollout, env
        cluster = rollout.cluster
        self.evaluator = EmbodiedEvaluator(
            rollout,
            env,
            requests=cluster.create_channel("requests", near=rollout.name),
            answers=cluster.create_channel("answers", near=rollout.name),
            timeout_s=cfg.runner.timeout_s,
        )

    def init_workers(self) -> None:
        """Builds simulators and policies, and loads the weights."""
        slots = slot_layout(self.cfg, self.env.world_size)
        (specs,) = self._wait(self.env.init_worker(slots["train"]))
        spec: EnvSpec = specs[0]
        check_spec(self.cfg, spec)
        topology = Topology(
            spec=spec, actor="", actor_ranks=0, rollout=self.rollout.name, rollout_ranks=self.rollout.world_size, slots=slots
        )
        self._wait(self.env.connect(topology), self.rollout.init_worker(topology))
        self._wait(self.rollout.load_weights(self.policy.checkpoint_file, self.policy.step))

    def run(self) -> EvalReport[EpisodeResult]:
        """Plays the protocol of the last evaluation, and writes the report."""
        protocol = episode_protocol(self.cfg, final=True)
        folder = self.policy.folder(protocol)
        folder.path.mkdir(parents=True, exist_ok=True)
        report = self.evaluator.run(protocol, folder.video if self.cfg.env.eval.video_cfg.save_video else None)
        steps = {"env/steps": float(self.policy.state["env_steps"])} if "env_steps" in self.policy.state else {}
        write_report(folder, self.cfg.runner, report, {"policy": self.policy.name, **steps})
        return report

    def _wait(self, *handles: Any) -> list[Any]:
        return within(self.cfg.runner.timeout_s, *handles)
