"""GB/s of tensors from one actor to another by Ray's own ways, beside ours and a copy in memory in the same run.

    uv run benchmarks/scheduler_ray_routes.py [--mib 1 16 64] [--repeats 10]

`ours`: `send` and `recv`. `objects`: a result in Ray's object store is the argument of the next call, as users of Ray do it.
`compiled`: a compiled graph of the same two methods, whose channel is a mutable object in shared memory. `direct`: Ray's direct
transport of tensors, between members of a gloo group. Every receiver reads all bytes; one tensor at a time. Each way has a process
of its own, and a deadline, for each size; if it fails, it says why. Prints GB/s of the fastest repeat, and the share of a copy
of cold memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from scheduler_throughput import copy_seconds, shortest

WAYS = ("ours", "objects", "compiled", "direct")
DEADLINE_S = 180.0
STORE_BYTES = 2 << 30
"""Of Ray's object store, at least; a compiled graph keeps a buffer of the tensor's size for each of its three channels there."""


class Maker:
    """Gives the same array again and again, as a trainer gives its weights."""

    def make(self, size: int) -> Any:
        """An array, made once for each size."""
        self.array = np.ones(size, np.uint8) if getattr(self, "array", np.empty(0)).nbytes != size else self.array
        return self.array

    def make_tensor(self, size: int) -> Any:
        """The same as a torch tensor."""
        import torch

        return torch.from_numpy(self.make(size))  # pyright: ignore[reportUnknownMemberType]


class Taker:
    """Reads every byte of what it gets."""

    def take(self, array: Any) -> int:
        """The sum."""
        return int(np.asarray(array).view(np.uint64).sum())


def ray_alone(size: int) -> Any:
    """Ray with an object store that is large enough for a tensor of some bytes, and nothing of ours."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    untyped: Any = ray
    store = max(STORE_BYTES, 5 * size)
    untyped.init(address="local", include_dashboard=False, num_cpus=4, object_store_memory=store, log_to_driver=False)
    return untyped


def ours(size: int, repeats: int) -> float:
    """Seconds."""
    from rlinf.scheduler import Cluster
    from scheduler_throughput import Reader, Sender

    with Cluster() as cluster:
        sender = Sender.create_group().launch(cluster, name="sender")
        reader = Reader.create_group().launch(cluster, name="reader")
        reading = reader.execute_on(0).read(repeats + 2, size)
        seconds: float = sender.one(size, repeats).wait()[0]
        reading.wait()
        return seconds


def objects(size: int, repeats: int) -> float:
    """Seconds."""
    ray = ray_alone(size)
    maker, taker = ray.remote(Maker).remote(), ray.remote(Taker).remote()
    return shortest(lambda: ray.get(taker.take.remote(maker.make.remote(size))), repeats)


def compiled(size: int, repeats: int) -> float:
    """Seconds."""
    ray = ray_alone(size)
    from ray.dag import InputNode

    maker, taker = ray.remote(Maker).remote(), ray.remote(Taker).remote()
    start: Any = InputNode()
    with start as size_node:
        graph: Any = taker.take.bind(maker.make.bind(size_node))
    dag = graph.experimental_compile(_buffer_size_bytes=size + (1 << 20))
    try:
        return shortest(lambda: ray.get(dag.execute(size)), repeats)
    finally:
        dag.teardown()


def direct(size: int, repeats: int) -> float:
    """Seconds."""
    ray = ray_alone(size)
    collective: Any = importlib.import_module("ray.experimental.collective")

    class Direct(Maker):
        make_tensor = ray.method(tensor_transport="gloo")(Maker.make_tensor)

    maker, taker = ray.remote(Direct).remote(), ray.remote(Taker).remote()
    collective.create_collective_group([maker, taker], backend="torch_gloo")
    return shortest(lambda: ray.get(taker.take.remote(maker.make_tensor.remote(size))), repeats)


def measured(way: str, mib: int, repeats: int) -> float | str:
    """Seconds, from a process of its own; or why there are none."""
    command = [sys.executable, __file__, "--way", way, "--repeats", str(repeats), "--mib", str(mib)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {DEADLINE_S:g} s"
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="GB/s of tensors by Ray's own ways, beside ours.")
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--way", choices=WAYS, help="only this one, of one size: prints seconds, as JSON")
    given = parser.parse_args()
    if given.way:
        (mib,) = given.mib
        sys.stdout.write(f"{json.dumps(globals()[given.way](mib << 20, given.repeats))}\n")
        return
    copies = {mib: copy_seconds(mib << 20, given.repeats)[1] for mib in given.mib}
    sys.stdout.write(f"load {os.getloadavg()[0]:.1f}; GB/s (share of a copy)\n")
    for way in WAYS:
        for mib, copy in copies.items():
            found = measured(way, mib, given.repeats)
            text = found if isinstance(found, str) else f"{(mib << 20) / found / 1e9:5.2f} ({copy / found:.2f})"
            sys.stdout.write(f"{way:9} {mib:4} MiB {text}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
