"""Teaches a language model from worked solutions: `uv run apps/reasoning/sft.py [--config-name RECIPE] [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import check_run, open_run_folder, parse_command_line, run_app, run_folder
from rlinf.runners.sft import SFTActor, SFTRunner, explain_sft, read_sft
from rlinf.scheduler import Cluster, HybridComponentPlacement

CONFIG_DIR = Path(__file__).parent / "config_sft"


def main(argv: Sequence[str]) -> int:
    """Reads the configuration, places the workers, and runs the loop."""
    command = parse_command_line(argv, config_dir=CONFIG_DIR, default="sft_arithmetic", description=__doc__ or "")
    cfg = read_sft(command.composition.data)
    if command.explain is not None:
        sys.stdout.write(explain_sft(cfg, command.composition.provenance, command.explain) + "\n")
        return 0
    check_run(cfg)
    planned = run_folder(cfg)
    with Cluster(cluster_cfg={**cfg.cluster, "log_dir": str(planned.path)}) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        folder = open_run_folder(cfg, planned)
        sys.stderr.write(f"{placement.describe()}\nwriting to {folder.path}; starting workers\n")
        actor = SFTActor.create_group(cfg).launch(cluster, name="actor", placement_strategy=placement.get_strategy("actor"))
        runner = SFTRunner(cfg=cfg, actor=actor, folder=folder)
        runner.init_workers()
        runner.run()
    return 0


if __name__ == "__main__":
    run_app(main)
