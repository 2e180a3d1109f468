"""Teaches a language model to reason: `uv run apps/reasoning/train.py [--config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf.runners import check_run, open_run_folder, parse_command_line, run_app, run_folder
from rlinf.runners.reasoning import (
    InferenceWorker,
    ReasoningActor,
    ReasoningRolloutWorker,
    ReasoningRunner,
    RewardWorker,
    explain_reasoning,
    read_reasoning,
)
from rlinf.runners.sft import SFTActor, SFTConfig, warm_start
from rlinf.scheduler import Cluster, HybridComponentPlacement, Supervisor

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Reads the configuration, places the workers, warms the model up where the recipe says so, and runs the loop."""
    command = parse_command_line(argv, config_dir=CONFIG_DIR, default="grpo_arithmetic", description=__doc__ or "")
    cfg = read_reasoning(command.composition.data)
    if command.explain is not None:
        sys.stdout.write(explain_reasoning(cfg, command.composition.provenance, command.explain) + "\n")
        return 0
    check_run(cfg)
    planned = run_folder(cfg)
    with Cluster(cluster_cfg={**cfg.cluster, "log_dir": str(planned.path)}) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)

        def start(worker: Any, name: str, config: Any = cfg, place: str = "", **options: Any) -> Any:
            strategy = placement.get_strategy(place or name)
            return worker.create_group(config).launch(cluster, name=name, placement_strategy=strategy, **options)

        def start_sft(config: SFTConfig) -> Any:
            return start(SFTActor, "sft", config, "actor")

        folder = open_run_folder(cfg, planned)
        sys.stderr.write(f"{placement.describe()}\nwriting to {folder.path}; starting workers and generators\n")
        if cfg.wants_warm_start:
            cfg = cfg.starting_from(warm_start(cfg.source, start_sft))
        runner = ReasoningRunner(
            cfg=cfg,
            actor=start(ReasoningActor, "actor", cfg),
            rollout=start(
                ReasoningRolloutWorker, "rollout", cfg, supervisor=Supervisor("restart", max_restarts=cfg.rollout.max_restarts)
            ),
            reward=start(RewardWorker, "reward", cfg),
            inference=start(InferenceWorker, "inference", cfg) if "inference" in placement.components else None,
            folder=folder,
        )
        runner.init_workers()
        runner.run()
    return 0


if __name__ == "__main__":
    run_app(main)
