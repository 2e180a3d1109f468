"""Evaluates a checkpoint or a recipe: `uv run apps/embodied/eval.py [CHECKPOINT | --config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import EmbodiedEvalRunner, EnvWorker, MultiStepRolloutWorker, check_evaluation, read_embodied, run_app
from rlinf.runners.evaluation.command import parse_evaluation, told
from rlinf.scheduler import Cluster, HybridComponentPlacement

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Loads the weights, and runs the evaluation that their configuration describes."""
    command = parse_evaluation(argv, config_dir=CONFIG_DIR, description=__doc__ or "", example="env.eval.episodes=128")
    cfg = read_embodied(command.data)
    check_evaluation(cfg)
    policy = command.policy(cfg.runner)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        on_rollout, on_env = (placement.get_strategy(name) for name in ("rollout", "env"))
        rollout = MultiStepRolloutWorker.create_group(cfg).launch(cluster, name="rollout", placement_strategy=on_rollout)
        env = EnvWorker.create_group(cfg).launch(cluster, name="env", placement_strategy=on_env)
        runner = EmbodiedEvalRunner(cfg=cfg, policy=policy, rollout=rollout, env=env)
        runner.init_workers()
        report = runner.run()
    sys.stdout.write(told(report, policy))
    return 0


if __name__ == "__main__":
    run_app(main)
