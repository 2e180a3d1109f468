"""`EmbodiedEvalRunner`: evaluates a checkpoint with one rollout group and one env group."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import evaluation_protocol
from rlinf.runners.embodied.evaluator import Evaluator
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.embodied.runner import slot_layout
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.reporting.phases import within
from rlinf.runners.reporting.summary import write_summary


class EmbodiedEvalRunner:
    """Evaluates the weights of a checkpoint.

    Args:
        cfg: the configuration, as a rule the checkpoint's own.
        checkpoint: what is evaluated.
        rollout: the group that decides.
        env: the group that simulates.
        folder: where `video/eval.mp4` and `summary.json` go, given the protocol; see `EvaluationCommand.folder`.
    """

    def __init__(
        self,
        cfg: EmbodiedConfig,
        checkpoint: Checkpoint,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        folder: Callable[[Mapping[str, Any]], RunFolder],
    ) -> None:
        self.cfg, self.checkpoint, self.rollout, self.env, self.folder = cfg, checkpoint, rollout, env, folder
        cluster = rollout.cluster
        self.evaluator = Evaluator(
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
        self._wait(self.rollout.load_checkpoint(str(self.checkpoint.model_file), self.checkpoint.state["step"]))

    def run(self) -> dict[str, Any]:
        """Runs the episodes, writes the summary and returns it."""
        config = self.cfg.env.eval
        episodes = config.final_episodes or config.episodes
        folder = self.folder(evaluation_protocol(self.cfg, episodes))
        video = folder.video if config.video_cfg.save_video else None
        folder.path.mkdir(parents=True, exist_ok=True)
        scalars = self.evaluator.run(episodes, video)
        scalars |= {"env/steps": float(self.checkpoint.state["env_steps"]), "time/wall_s": folder.wall_s}
        summary = write_summary(folder.summary, self.cfg, scalars, episodes)
        return json.loads(json.dumps(summary, default=str))

    def _wait(self, *handles: Any) -> list[Any]:
        return within(self.cfg.runner.timeout_s, *handles)
