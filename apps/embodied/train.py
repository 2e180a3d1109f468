"""Trains a policy on a simulated robot: `uv run apps/embodied/train.py [--config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import (
    EmbodiedFSDPActor,
    EmbodiedRunner,
    EnvWorker,
    MultiStepRolloutWorker,
    check_run,
    open_run_folder,
    parse_command_line,
    read_embodied,
    run_app,
    run_folder,
)
from rlinf.runners.embodied.reading import explain_embodied
from rlinf.scheduler import Cluster, HybridComponentPlacement

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Reads the configuration, places the workers, and runs the loop."""
    command = parse_command_line(argv, config_dir=CONFIG_DIR, default="maniskill_ppo_mlp", description=__doc__ or "")
    cfg = read_embodied(command.composition.data)
    if command.explain is not None:
        sys.stdout.write(explain_embodied(cfg, command.composition.provenance, command.explain) + "\n")
        return 0
    check_run(cfg)
    planned = run_folder(cfg)
    with Cluster(cluster_cfg={**cfg.cluster, "log_dir": str(planned.path)}) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        on_actor, on_rollout, on_env = (placement.get_strategy(name) for name in ("actor", "rollout", "env"))
        folder = open_run_folder(cfg, planned)
        sys.stderr.write(f"{placement.describe()}\nwriting to {folder.path}; starting workers and simulators\n")
        actor = EmbodiedFSDPActor.create_group(cfg).launch(cluster, name="actor", placement_strategy=on_actor)
        rollout = MultiStepRolloutWorker.create_group(cfg).launch(cluster, name="rollout", placement_strategy=on_rollout)
        env = EnvWorker.create_group(cfg).launch(cluster, name="env", placement_strategy=on_env)
        runner = EmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env, folder=folder)
        runner.init_workers()
        runner.run()
    return 0


if __name__ == "__main__":
    run_app(main)
