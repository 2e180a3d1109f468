"""Evaluates a checkpoint: `uv run apps/reasoning/eval.py CHECKPOINT [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlinf.runners import check_evaluation, run_app
from rlinf.runners.evaluation.command import parse_evaluation, told
from rlinf.runners.reasoning import ReasoningEvalRunner, ReasoningRolloutWorker, RewardWorker, read_reasoning
from rlinf.scheduler import Cluster, HybridComponentPlacement


def main(argv: Sequence[str]) -> int:
    """Loads a checkpoint with the configuration inside it, and runs the evaluation that it describes."""
    command = parse_evaluation(argv, description=__doc__ or "", example="data.final_problems=128")
    cfg = read_reasoning(command.data)
    check_evaluation(cfg)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        sys.stderr.write(f"evaluating {command.checkpoint.folder}; starting workers and generators\n")
        rollout = ReasoningRolloutWorker.create_group(cfg).launch(
            cluster, name="rollout", placement_strategy=placement.get_strategy("rollout")
        )
        reward = RewardWorker.create_group(cfg).launch(cluster, name="reward", placement_strategy=placement.get_strategy("reward"))
        runner = ReasoningEvalRunner(cfg=cfg, checkpoint=command.checkpoint, rollout=rollout, reward=reward, folder=command.folder)
        runner.init_workers()
        summary = runner.run()
    asked = f"{summary['problems']} problems" + (f", each {cfg.eval.samples} times" if cfg.eval.samples > 1 else "")
    sys.stdout.write(told(summary, "eval/accuracy", of=asked, folder=command.folder(summary["protocol"])))
    return 0


if __name__ == "__main__":
    run_app(main)
