"""Evaluates a checkpoint: `uv run apps/embodied/eval.py CHECKPOINT [key=value …]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from rlinf.core.errors import ConfigError
from rlinf.runners import EmbodiedEvalRunner, EnvWorker, MultiStepRolloutWorker, read_checkpoint, read_embodied, run_app
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
            raise ConfigError(override, "not an override", "Write key=value, such as env.eval.episodes=128.")
    merged = OmegaConf.merge(OmegaConf.create(dict(checkpoint.config)), OmegaConf.from_dotlist(args.overrides))
    cfg = read_embodied(OmegaConf.to_container(merged))  # pyright: ignore[reportArgumentType]
    cfg.env.eval.init_params.check("env.eval.env_type")
    folder = checkpoint.folder.with_name(f"{checkpoint.folder.name}_eval")
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        rollout = MultiStepRolloutWorker.create_group(cfg).launch(
            cluster, name="rollout", placement_strategy=placement.get_strategy("rollout")
        )
        env = EnvWorker.create_group(cfg).launch(cluster, name="env", placement_strategy=placement.get_strategy("env"))
        runner = EmbodiedEvalRunner(cfg=cfg, checkpoint=checkpoint, rollout=rollout, env=env, folder=folder)
        runner.init_workers()
        summary = runner.run()
    low, high = summary["eval/success_once_ci95"]
    episodes, name = summary["protocol"]["episodes"], summary["protocol"]["hash"]
    sys.stdout.write(
        f"eval/success_once {summary['eval/success_once']:.1%} [{low:.1%}, {high:.1%}] of {episodes} episodes "
        f"(seed {summary['seed']}, protocol {name})\n{folder / 'summary.json'}\n"
    )
    return 0


if __name__ == "__main__":
    run_app(main)
