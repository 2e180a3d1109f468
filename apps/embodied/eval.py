"""Evaluates a checkpoint: `uv run apps/embodied/eval.py CHECKPOINT [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlinf.runners import EmbodiedEvalRunner, EnvWorker, MultiStepRolloutWorker, check_evaluation, read_embodied, run_app
from rlinf.runners.embodied.evaluation import headline
from rlinf.runners.evaluation.command import parse_evaluation, told
from rlinf.scheduler import Cluster, HybridComponentPlacement


def main(argv: Sequence[str]) -> int:
    """Loads a checkpoint with the configuration inside it, and runs the evaluation that it describes."""
    command = parse_evaluation(argv, description=__doc__ or "", example="env.eval.episodes=128")
    cfg = read_embodied(command.data)
    check_evaluation(cfg)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        sys.stderr.write(f"evaluating {command.checkpoint.folder}; starting workers and simulators\n")
        rollout = MultiStepRolloutWorker.create_group(cfg).launch(
            cluster, name="rollout", placement_strategy=placement.get_strategy("rollout")
        )
        env = EnvWorker.create_group(cfg).launch(cluster, name="env", placement_strategy=placement.get_strategy("env"))
        runner = EmbodiedEvalRunner(cfg=cfg, checkpoint=command.checkpoint, rollout=rollout, env=env, folder=command.folder)
        runner.init_workers()
        summary = runner.run()
    episodes = f"{summary['protocol']['episodes']} episodes"
    sys.stdout.write(told(summary, headline(summary), of=episodes, folder=command.folder(summary["protocol"])))
    return 0


if __name__ == "__main__":
    run_app(main)
