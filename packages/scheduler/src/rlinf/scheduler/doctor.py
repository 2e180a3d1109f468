"""What `rlinf doctor` says of clusters: the accelerators of this machine, and whether Ray works on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version

from rlinf.core.doctor import Finding
from rlinf.core.worker import Worker
from rlinf.scheduler.cluster import Cluster
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.detection import detect

DEADLINE_S = 120.0


def ray() -> Iterator[Finding]:
    """Looks for accelerators, then starts a cluster of one worker, or joins the Ray that runs here, and asks it something."""
    node = detect(ClusterConfig())
    remedy = (
        ""
        if node.accelerators
        else "Fine on a laptop: recipes for it have cluster.virtual_accelerators. With a GPU, look at its driver."
    )
    yield Finding(subject="accelerators", state="ok" if node.accelerators else "no", told=node.describe(), remedy=remedy)
    began = time.monotonic()
    with Cluster(cluster_cfg={"virtual_accelerators": {"count": 1}}) as running:
        (answer,) = _Echo.create_group().launch(running, name="doctor").echo("ready").wait(timeout=DEADLINE_S)
    told = f"{version('ray')}: a worker was started and said '{answer}', {time.monotonic() - began:.1f} s in all"
    yield Finding(subject="Ray", state="ok", told=told)


class _Echo(Worker):
    def echo(self, text: str) -> str:
        return text
