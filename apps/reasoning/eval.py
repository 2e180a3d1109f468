"""Evaluates a checkpoint or a recipe: `uv run apps/reasoning/eval.py [CHECKPOINT | --config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import check_evaluation, run_app
from rlinf.runners.evaluation.command import parse_evaluation, told
from rlinf.runners.reasoning import ReasoningEvalRunner, ReasoningRolloutWorker, RewardWorker, read_reasoning
from rlinf.scheduler import Cluster, HybridComponentPlacement

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Loads the weights, and runs the evaluation that their configuration describes."""
    command = parse_evaluation(argv, config_dir=CONFIG_DIR, description=__doc__ or "", example="data.final_problems=128")
    cfg = read_reasoning(command.data)
    check_evaluation(cfg)
    policy = command.policy(cfg.runner)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        on_rollout, on_reward = (placement.get_strategy(name) for name in ("rollout", "reward"))
        rollout = ReasoningRolloutWorker.create_group(cfg).launch(cluster, name="rollout", placement_strategy=on_rollout)
        reward = RewardWorker.create_group(cfg).launch(cluster, name="reward", placement_strategy=on_reward)
        runner = ReasoningEvalRunner(cfg=cfg, policy=policy, rollout=rollout, reward=reward)
        runner.init_workers()
        report = runner.run()
    sys.stdout.write(told(report, policy))
    return 0


if __name__ == "__main__":
    run_app(main)
