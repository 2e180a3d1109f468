"""Teaches a language model to reason: `uv run apps/reasoning/train.py [--config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import open_run_folder, parse_command_line, run_app, run_folder
from rlinf.runners.reasoning import (
    InferenceWorker,
    ReasoningActor,
    ReasoningRolloutWorker,
    ReasoningRunner,
    RewardWorker,
    explain_reasoning,
    read_reasoning,
)
from rlinf.scheduler import Cluster, HybridComponentPlacement, Supervisor

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Reads the configuration, places the workers, and runs the loop."""
    command = parse_command_line(argv, config_dir=CONFIG_DIR, default="grpo_arithmetic", description=__doc__ or "")
    cfg = read_reasoning(command.composition.data)
    if command.explain is not None:
        sys.stdout.write(explain_reasoning(cfg, command.composition.provenance, command.explain) + "\n")
        return 0
    cfg.check()
    path = run_folder(cfg).path
    with Cluster(cluster_cfg={**cfg.cluster, "log_dir": str(path)}) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        on = {name: placement.get_strategy(name) for name in placement.components}
        folder = open_run_folder(cfg)
        sys.stderr.write(f"{placement.describe()}\nwriting to {path}; starting workers and generators\n")
        actor = ReasoningActor.create_group(cfg).launch(cluster, name="actor", placement_strategy=on["actor"])
        rollout = ReasoningRolloutWorker.create_group(cfg).launch(
            cluster,
            name="rollout",
            placement_strategy=on["rollout"],
            supervisor=Supervisor("restart", max_restarts=cfg.rollout.max_restarts),
        )
        reward = RewardWorker.create_group(cfg).launch(cluster, name="reward", placement_strategy=on["reward"])
        inference = None
        if "inference" in on:
            inference = InferenceWorker.create_group(cfg).launch(
                cluster, name="inference", placement_strategy=on["inference"]
            )
        runner = ReasoningRunner(cfg=cfg, actor=actor, rollout=rollout, reward=reward, inference=inference, folder=folder)
        runner.init_workers()
        runner.run()
    return 0


if __name__ == "__main__":
    run_app(main)
