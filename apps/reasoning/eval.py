"""Evaluates a checkpoint: `uv run apps/reasoning/eval.py CHECKPOINT [key=value …]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from rlinf.core.errors import ConfigError
from rlinf.runners import read_checkpoint, run_app
from rlinf.runners.reasoning import ReasoningEvalRunner, ReasoningRolloutWorker, RewardWorker, read_reasoning
from rlinf.scheduler import Cluster, HybridComponentPlacement


def main(argv: Sequence[str]) -> int:
    """Loads a checkpoint with the configuration inside it, and runs the evaluation that it describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a global_step_N folder, or the folder of a run")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help="changes to the checkpoint's configuration: key=value")
    args = parser.parse_intermixed_args(list(argv))
    checkpoint = read_checkpoint(args.checkpoint)
    for override in args.overrides:
        if "=" not in override:
            raise ConfigError(override, "not an override", "Write key=value, such as data.final_problems=128.")
    merged = OmegaConf.merge(OmegaConf.create(dict(checkpoint.config)), OmegaConf.from_dotlist(args.overrides))
    cfg = read_reasoning(OmegaConf.to_container(merged))  # pyright: ignore[reportArgumentType]
    cfg.check()
    folder = checkpoint.folder.with_name(f"{checkpoint.folder.name}_eval")
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        rollout = ReasoningRolloutWorker.create_group(cfg).launch(
            cluster, name="rollout", placement_strategy=placement.get_strategy("rollout")
        )
        reward = RewardWorker.create_group(cfg).launch(cluster, name="reward", placement_strategy=placement.get_strategy("reward"))
        runner = ReasoningEvalRunner(cfg=cfg, checkpoint=checkpoint, rollout=rollout, reward=reward, folder=folder)
        runner.init_workers()
        summary = runner.run()
    low, high = summary["eval/accuracy_ci95"]
    sys.stdout.write(
        f"eval/accuracy {summary['eval/accuracy']:.1%} [{low:.1%}, {high:.1%}] of {summary['problems']} problems "
        f"(seed {summary['seed']}, protocol {summary['protocol']['hash']})\n{folder / 'summary.json'}\n"
    )
    return 0


if __name__ == "__main__":
    run_app(main)
