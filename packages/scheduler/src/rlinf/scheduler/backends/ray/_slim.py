"""A start of Ray with those of its own processes only that a run needs. `ray.init` has no arguments for these."""

from __future__ import annotations

import inspect
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlinf.core.errors import ClusterError
from rlinf.core.process import exit_reason

SETUP_WORKER = str(Path(__file__).with_name("setup_worker.py"))
IDLE_AGENT = str(Path(__file__).with_name("idle_agent.py"))
AGENT = "--dashboard_agent_command="
PORTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN")
"""Those of the agent, as Ray's constants for their files begin."""
REGISTERED_S = 30.0
"""How long Ray waits for its raylet."""
LOOK_S, ANSWER_S = 0.05, 2.0
"""How often we look for it, and how long an answer may take. Ray looks once a second, and does not see that one has ended."""


@contextmanager
def only_what_is_used(ray: Any) -> Generator[None]:
    """Inside, `ray.init` starts no autoscaler, log monitor, API server or agent of the dashboard, and its workers start sooner.

    Each of these is a Python process that imports Ray, which takes a second or more of processor time. For the same reason workers
    are set up by a script of ours: Ray's own imports Ray, only to run another interpreter.
    """
    private, raylet = ray._private, Raylet(ray)
    params, node, services = private.parameter, private.node.Node, private.services
    chosen = {"setup_worker_path": SETUP_WORKER, "include_log_monitor": False, "no_monitor": True}
    known = inspect.signature(params.RayParams).parameters
    ours: list[tuple[Any, str, Any]] = [
        (params, "RayParams", partial(params.RayParams, **{name: value for name, value in chosen.items() if name in known})),
        (node, "start_api_server", _start_no_api_server),
        (services, "start_ray_process", raylet.start_process),
        (services, "get_node", raylet.get_node),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in ours]
    for owner, name, value in ours:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _start_no_api_server(node: Any, **_: Any) -> None:
    node._webui_url = None


class Raylet:
    """The raylet of a Ray that starts: it has no agent, and is found, or missed, at once."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._start, self._get = ray._private.services.start_ray_process, ray._private.services.get_node
        self._process: Any = None

    def start_process(self, command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        """Starts one of Ray's processes, as the function that this replaces does."""
        started = self._start([without_agent(self._ray, each) for each in command], process_type, *arguments, **options)
        if process_type == self._ray._private.ray_constants.PROCESS_TYPE_RAYLET:
            self._process = started.process
        return started

    def get_node(self, gcs_address: str, node_id: str) -> Any:
        """What Ray knows of its node, once it knows it.

        Raises:
            ClusterError: the raylet has ended.
            RuntimeError: it takes too long; Ray then says so.
        """
        client, deadline = self._ray._raylet.GcsClient(address=gcs_address), time.monotonic() + REGISTERED_S
        while not self._knows(client, node_id):
            code = None if self._process is None else self._process.poll()
            if code is not None:
                raise ClusterError("Ray's raylet", f"it {exit_reason(code)} while Ray was starting")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no raylet within {REGISTERED_S:.0f} s")
            time.sleep(LOOK_S)
        return self._get(gcs_address, node_id)

    def _knows(self, client: Any, node_id: str) -> bool:
        try:
            return any(known.hex() == node_id for known in client.get_all_node_info(timeout=ANSWER_S))
        except self._ray.exceptions.RayError:  # no answer: the GCS is busy, or gone, which `Startup` sees while nobody asks
            return False


def without_agent(ray: Any, argument: str) -> str:
    """An argument of the raylet, in which the agent is another one if this Ray waits for files that we know."""
    if not argument.startswith(AGENT):
        return argument
    words = shlex.split(argument.removeprefix(AGENT))
    given = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    try:
        names = [getattr(ray._raylet, f"{port}_PORT_NAME") for port in PORTS]
        files = [str(Path(given["session-dir"]) / ray._raylet.get_port_filename(given["node-id"], name)) for name in names]
    except (AttributeError, KeyError):
        return argument
    # Without the site's packages, of which it needs none.
    return AGENT + shlex.join([sys.executable, "-I", "-S", IDLE_AGENT, *files])
