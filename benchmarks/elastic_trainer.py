"""What it takes to move a trainer from one rank to two and back: `elastic_trainer.py [--width 512] [--layers 8] [--unprepared]`.

Two processes on gloo; rank 0 is always there, rank 1 is started and waits. Seconds are those of rank 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core import Batch, Credit, LossOutput, Rescored, Trajectory
from rlinf.core.process import free_port
from rlinf.engines import FSDPConfig, FSDPTrainerConfig
from rlinf.engines.fsdp.resizing import prepare, rebuild, release

ROWS = 8
PLAN = (1, 2, 1, 2, 1)


class Layers(nn.Module):
    """A policy of square layers, each sharded by itself."""

    version = 0

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.width = width

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """A number for each row."""
        x = torch.ones(len(batch), self.width) / self.width
        for block in self.blocks:
            x = torch.tanh(block(x))
        return Rescored(logprob=x.sum(-1, keepdim=True), entropy=None, value=None, version=self.version)


def batch_of(rows: int) -> Batch[Tensor]:
    """Rows of one decision."""
    one, no = torch.ones(rows, 1), torch.zeros(rows, 1, dtype=torch.bool)
    trajectory: Any = Trajectory(
        context={"x": torch.zeros(rows, 1, 1)},
        action=torch.zeros(rows, 1, 1, 1),
        logprob=torch.zeros(rows, 1),
        reward=one,
        terminated=no,
        truncated=no,
        mask=~no,
        version=torch.zeros(rows, 1, dtype=torch.long),
        group=torch.arange(rows),
        task=torch.zeros(rows, dtype=torch.long),
        value=None,
        reference=None,
    )
    return Batch(trajectory=trajectory, credit=Credit(advantage=one, target=None))


def square(batch: Batch[Tensor], found: Rescored[Tensor]) -> LossOutput[Tensor]:
    """Σ x² over rows."""
    return LossOutput(total=(found.logprob**2).sum(), weight=torch.tensor(float(len(batch))), metrics={})


def rank_of(rank: int, width: int, layers: int, prepared: bool, rendezvous: list[str], out: Connection, here: Barrier) -> None:
    """Steps and moves as `PLAN` says."""
    torch.set_num_threads(1)
    began = time.monotonic()
    if prepared:
        prepare()
    ready = time.monotonic() - began
    here.wait()
    config = FSDPTrainerConfig(fsdp_config=FSDPConfig(timeout_s=120.0))
    trainer: Any = None
    state = None
    rows: list[dict[str, float]] = []
    for at, count in enumerate(PLAN):
        began = time.monotonic()
        state = None if trainer is None else release(trainer)
        left, trainer = time.monotonic(), None
        if rank < count:
            policy = Layers(width, layers)
            built = time.monotonic()
            where: dict[str, Any] = {"rank": rank, "world_size": count, "rendezvous": rendezvous[at] if count > 1 else ""}
            trainer = rebuild(config, policy, state, **where) if at else config.build(policy, **where)
            ended = time.monotonic()
            rows.append(
                {"ranks": count, "release": left - began, "model": built - left, "rebuild": ended - built, "prepare": ready}
            )
            rows[-1]["megabytes"] = 0.0 if state is None else state.bytes / 1e6
            trainer.step([batch_of(ROWS // count)], square)
            trainer.step([batch_of(ROWS // count)], square)
    if trainer is not None:
        trainer.close()
    out.send(rows)


def main() -> None:
    """Prints the seconds of each move."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--unprepared", action="store_true", help="leave the imports to the first move")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    where = [f"tcp://127.0.0.1:{free_port()}" for _ in PLAN]
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    here = spawn.Barrier(2)
    ranks = [
        spawn.Process(target=rank_of, args=(rank, args.width, args.layers, not args.unprepared, where, pipes[rank][1], here))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    rows = cast("list[dict[str, float]]", pipes[0][0].recv())
    for process in ranks:
        process.join()
    weights = args.layers * (args.width**2 + args.width)
    print(f"{weights / 1e6:.1f} million weights in float32, with Adam's two moments; prepared in {rows[0]['prepare']:.2f} s")
    for before, row in zip(PLAN, rows[1:], strict=False):
        total = row["release"] + row["model"] + row["rebuild"]
        parts = ", ".join(f"{name} {row[name]:.2f} s" for name in ("release", "model", "rebuild"))
        print(f"{before} → {int(row['ranks'])} ranks: {total:.2f} s ({parts}; {row['megabytes']:.0f} MB of state)")


if __name__ == "__main__":
    main()
