"""What `actor.share_prefixes` buys in a recipe of agents: `uv run --group bench benchmarks/shared_prefixes.py calculator_grpo`.

Plays one iteration of a recipe of `apps/agent` after its warm start and keeps the rows of its first optimizer step. Three trainers
with the same weights then take steps with them in turns, so that a busy machine disturbs all alike: micro-batches with padding, as
many columns packed (`max_tokens_per_mbs`), and packed as trees (`share_prefixes`). Printed are the columns that a step computes,
the median of its seconds on one thread, and how far the losses of the first step are apart.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlinf.core import Batch
from rlinf.engines.fsdp import FSDPTrainerConfig
from rlinf.engines.packing.rows import packed_micro_batches, token_lengths
from rlinf.runners.agent.rules import read_agent
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.reasoning.actor_worker import ReasoningActor
from rlinf.runners.reasoning.language import build_policy

APP = Path(__file__).parents[1] / "apps/agent"
PADDED_ROWS = 64


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="of the recipe, such as runner.logger.log_path=logs with a warm start in it")
    parser.add_argument("--max-tokens", type=int, default=8192, help="columns of a micro-batch")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    packed = ("actor.micro_batch_size=null", f"++actor.max_tokens_per_mbs={given.max_tokens}", "++actor.share_prefixes=false")
    overrides = (*given.overrides, *packed, "cluster.backend=local")
    cfg = read_agent(compose_recipe(APP / "config", given.recipe, overrides).data)
    batch = played(given.recipe, overrides)
    base = cfg.actor.trainer
    if not isinstance(base, FSDPTrainerConfig):
        raise SystemExit("expected a recipe that trains with fsdp")
    configs = {
        "padded": replace(base, max_tokens_per_mbs=None),
        "packed": base,
        "trees": replace(base, share_prefixes=True),
    }
    lengths = token_lengths(batch)
    padded = list(batch.micro_batches(PADDED_ROWS))
    columns = {"padded": sum(len(part) * part.trajectory.horizon for part in padded)}
    for name, share in (("packed", False), ("trees", True)):
        parts = packed_micro_batches(batch, given.max_tokens, share_prefixes=share)
        columns[name] = sum(part.packing.tokens for part in parts if part.packing is not None)
    losses, seconds = steps(cfg, configs, {name: padded if name == "padded" else [batch] for name in configs}, given.repeats)
    said = sys.stdout.write
    said(f"{given.recipe}: {len(batch)} rows of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all\n")
    for name in configs:
        far, median = abs(losses[name] - losses["packed"]), statistics.median(seconds[name])
        said(f"{name:7s} {columns[name]:6d} columns {median:6.2f} s for a step, loss differs by {far:.1e}\n")


def played(recipe: str, overrides: tuple[str, ...]) -> Batch[Any]:
    """The rows of the first optimizer step of a run."""
    kept: list[Batch[Any]] = []
    train = ReasoningActor.run_training

    def keep(self: Any, step: int) -> Any:
        built = self._ready().trainer
        take = built.step

        def taken(micro_batches: Any, loss: Any) -> Any:
            kept.extend(micro_batches)
            return take(micro_batches, loss)

        built.step = taken
        try:
            return train(self, step)
        finally:
            built.step = take

    patched: Any = ReasoningActor
    patched.run_training = keep
    try:
        short = ("runner.max_steps=1", "runner.val_check_interval=0", "data.val_problems=2", "data.final_problems=2")
        arguments = ["--config-name", recipe, *overrides, *short, "runner.export=false"]
        runpy.run_path(str(APP / "train.py"))["main"](arguments)
    finally:
        patched.run_training = train
    return kept[0]


def steps(cfg: Any, configs: Any, batches: Any, repeats: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The first loss of each way, and the seconds of each of its steps but the first."""
    ways = {
        name: config.build(weighed(cfg), rank=0, world_size=1, rendezvous="", training_steps=cfg.optimizer_steps)
        for name, config in configs.items()
    }
    losses: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, trainer in ways.items():
            start = time.perf_counter()
            found = trainer.step(batches[name], cfg.algorithm.loss)
            if repeat:
                seconds[name].append(time.perf_counter() - start)
            else:
                losses[name] = found["loss"].mean
    return losses, seconds


def weighed(cfg: Any) -> Any:
    """The policy of the recipe, with the same random weights each time."""
    return build_policy(cfg, starting_weights=False)


if __name__ == "__main__":
    main()
