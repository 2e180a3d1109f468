"""How long a small message takes from worker to worker, beside a Ray actor call in the same run.

    uv run benchmarks/channel_latency.py [--messages 3000]

One worker sends a dict of two 16×40 float32 arrays to another, which sends it back: first through channels (each hosted by its
consumer), then as the argument and the result of a Ray actor call. Prints microseconds for each round trip, and the CPU time
that each side spent on it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from rlinf.scheduler import Channel, Cluster, Worker


class Echo(Worker):
    """Sends back what it gets."""

    def echo(self, requests: Channel, answers: Channel, count: int) -> float:
        """CPU seconds spent."""
        start = time.process_time()
        for _ in range(count):
            answers.put(requests.get())
        return time.process_time() - start


class EchoActor:
    """The same as a plain Ray actor."""

    def echo(self, item: Any) -> Any:
        """Returns its argument."""
        return item


class Caller(Worker):
    """Sends, and waits for the answer."""

    def talk(self, requests: Channel, answers: Channel, count: int) -> tuple[float, float]:
        """Wall-clock and CPU seconds spent."""
        item = message()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            requests.put(item)
            answers.get()
        return time.perf_counter() - wall, time.process_time() - cpu

    def call_ray(self, actor: Any, count: int) -> tuple[float, float]:
        """Wall-clock and CPU seconds spent on calls of a Ray actor."""
        import ray

        get: Any = ray.get  # pyright: ignore[reportUnknownMemberType]
        item = message()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            get(actor.echo.remote(item))
        return time.perf_counter() - wall, time.process_time() - cpu


def message() -> dict[str, Any]:
    """What is sent."""
    return {"states": np.zeros((16, 40), np.float32), "action": np.ones((16, 40), np.float32)}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=3000)
    count = parser.parse_args().messages
    with Cluster(cluster_cfg={"virtual_accelerators": {"count": 2}}) as cluster:
        caller = Caller.create_group().launch(cluster, name="caller")
        echo = Echo.create_group().launch(cluster, name="echo")
        requests = cluster.create_channel("requests", near="echo")
        answers = cluster.create_channel("answers", near="caller")
        for n in (200, count):
            echoing = echo.echo(requests, answers, n)
            ((wall, cpu),) = caller.talk(requests, answers, n).wait()
            (cpu_echo,) = echoing.wait()
        import ray

        remote: Any = ray.remote  # pyright: ignore[reportUnknownMemberType]
        actor = remote(EchoActor).options(num_cpus=0).remote()
        for n in (100, count // 3):
            ((ray_wall, ray_cpu),) = caller.call_ray(actor, n).wait()
    figures = {
        "channel_round_trip_us": 1e6 * wall / count,
        "channel_cpu_us_caller": 1e6 * cpu / count,
        "channel_cpu_us_echo": 1e6 * cpu_echo / count,
        "ray_call_us": 1e6 * ray_wall / (count // 3),
        "ray_call_cpu_us_caller": 1e6 * ray_cpu / (count // 3),
    }
    figures["ray_call_over_channel"] = figures["ray_call_us"] / figures["channel_round_trip_us"]
    sys.stdout.write(json.dumps({name: round(value, 1) for name, value in figures.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
