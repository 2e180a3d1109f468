"""Actions per second of parallel decoding (OpenVLA-OFT) against one token after the other (OpenVLA), tiny, on one CPU thread.

    uv run --group bench benchmarks/models_oft_parallel.py

Both have the same vision-language model with random weights and decide the same chunk from the same pictures; OpenVLA keeps a cache
of keys and values. Time is that of the process, so that other programs on the machine count little.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.models.openvla import OpenVLAPolicyConfig
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig
from turns import medians

ACTIONS, ROUNDS = 7, 7
SPEC = EnvSpec(
    observation={
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    },
    action=ArraySpec(shape=(ACTIONS,), dtype="float32", low=-np.ones(ACTIONS, np.float32), high=np.ones(ACTIONS, np.float32)),
    max_episode_steps=10,
)


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    sys.stdout.write(
        f"{'chunk':>5s} {'rows':>5s} {'one by one':>12s} {'parallel':>12s} {'ratio':>6s}   steps of {ACTIONS} actions a second\n"
    )
    for chunk in (1, 8):
        serial: Any = OpenVLAPolicyConfig(preset="tiny", num_action_chunks=chunk).build(SPEC, seed=0)
        parallel: Any = OpenVLAOFTPolicyConfig(preset="tiny", num_action_chunks=chunk).build(SPEC, seed=0)
        for rows in (1, 32):
            observation = _observation(rows)
            ways = {name: partial(of.predict_action_batch, observation) for name, of in (("one", serial), ("all", parallel))}
            medians(ways, 1)
            slow, fast = (rows * chunk / taken for taken in medians(ways, ROUNDS, clock=time.process_time).values())
            sys.stdout.write(f"{chunk:5d} {rows:5d} {slow:12.0f} {fast:12.0f} {fast / slow:6.1f}\n")
            sys.stdout.flush()


def _observation(rows: int) -> dict[str, Any]:
    pictures = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    return {"main_images": pictures, "task_descriptions": np.array(["move to the block that is red"] * rows)}


if __name__ == "__main__":
    main()
