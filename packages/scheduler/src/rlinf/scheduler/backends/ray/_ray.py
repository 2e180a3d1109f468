"""Ray itself: its settings, which it reads when it is imported, and its start."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rlinf.core.errors import ClusterError, ConfigError
from rlinf.scheduler.backends.ray._slim import only_what_is_used
from rlinf.scheduler.backends.ray.guard import Guard
from rlinf.scheduler.backends.ray.services import Shutdown, Startup, adopting, children, own_services
from rlinf.scheduler.watch.heartbeat import told

# Ray's hook for `uv run` would pack the working directory and build an environment for each worker; ours run in the driver's own.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Each of our workers has an environment of its own, so that processes started ahead would never be used.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# Ray makes its workers nicer than all else on the machine, so that any other program starves them.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray would print a long line about each worker that dies, which our error tells of; who has tasks of their own gets an exception.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed while executing a task")
# Ray would start another Ray for a call that comes after the end of ours, as from a thread that restarts a worker.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Ray would hide all accelerators from actors that ask it for none, as ours do.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray as _ray

ray: Any = _ray
"""Untyped, as most of Ray is."""

# A GCS that is gone this long ends the process; by then we have said so.
GCS_GONE_S = 20
# Arguments and results of calls only: items do not go through Ray.
OBJECT_STORE_BYTES = 256 << 20
ATTEMPTS = 2


class Session:
    """This process's connection to a Ray. Ends the Ray if it started it.

    Args:
        address: where to join; see `start_or_join`.
        namespace: keeps the actors of runs apart.
        nodes: how many nodes the cluster is to have; 0 for all of a Ray.

    Raises:
        ConfigError: there is no Ray at the address, or this process is connected to another one.
    """

    def __init__(self, address: str | None, namespace: str, nodes: int = 1) -> None:
        self._ends = ExitStack()
        self._last: Shutdown | None = None
        self._connected = not ray.is_initialized()
        self.started = False
        """The Ray is this process's own."""
        if self._connected:
            with _signals_kept():
                self.started = start_or_join(address, namespace, nodes)
            if self.started:
                own = own_services()
                self._ends.callback(Guard(own).end)
                self._last = Shutdown(own)
        else:
            check_same(address, ray.get_runtime_context().gcs_address, started=bool(own_services()))

    def end(self) -> None:
        """Disconnects, and ends what was started; a Ray that was there before stays."""
        connected, self._connected = self._connected, False
        with self._ends:
            if self._last is not None:
                self._last.broken()
            if connected:
                ray.shutdown()
            if self._last is not None:
                self._last.end()


@contextmanager
def _signals_kept() -> Generator[None, None, None]:
    """Ray takes SIGTERM for itself; the program keeps the handlers that it had."""
    # Only the main thread can set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in kept:
            signal.signal(number, handler)


def start_or_join(address: str | None, namespace: str, nodes: int = 1) -> bool:
    """Joins the Ray at `address` or `RAY_ADDRESS`.

    Without either, a cluster of one node starts a Ray on the loopback interface, and a larger one joins what `ray start` has
    started on this machine.

    Returns:
        Whether a Ray was started.

    Raises:
        ConfigError: there is no Ray at the address, or none to join.
    """
    at = _where(address, nodes)
    options: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": logging.ERROR}
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with told("starting Ray" if at is None else f"joining the Ray at '{at}'"):
            if at is None:
                _start(options)
            else:
                _knock(at)
                with _on_loopback() if _only_on_loopback(at) else nullcontext():
                    ray.init(address=at, **options)
    except OSError as error:
        if "InvalidAuthToken" in f"{error} {error.__context__}":
            remedy = "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if the token is not in ~/.ray/auth_token."
            raise ConfigError("cluster.address", f"the Ray at '{at}' asks for a token", remedy) from error
        remedy = f"Start one with `ray start --head`, or {'leave the address out' if address else 'unset RAY_ADDRESS'}."
        raise ConfigError("cluster.address", f"no Ray answers at '{at}'", remedy) from error
    finally:
        logger.setLevel(level)
    return at is None


def _start(options: Mapping[str, Any]) -> None:
    """Starts a Ray. It gives itself 30 seconds, which a machine under heavy load may exceed once.

    Raises:
        ClusterError: it did not start.
    """
    for attempt in range(ATTEMPTS):
        before = set(children(os.getpid()))
        try:
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(GCS_GONE_S))
            _require_token()
            with adopting(), Startup(_give_up), _on_loopback(), only_what_is_used(ray):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    num_gpus=0,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    **options,
                )
            return
        except Exception as error:
            started = set(children(os.getpid())) - before
            Shutdown([*started, *own_services()]).end(0.0)
            if attempt == ATTEMPTS - 1:
                gist = str(error).strip().partition("\n")[0] or repr(error)
                remedy = "Its logs are in ray/session_latest/logs of the folder for temporary files."
                raise ClusterError("cluster", f"Ray did not start in {ATTEMPTS} attempts: {gist}", remedy) from error


def _require_token() -> None:
    """Whoever reaches our Ray must know its token, which Ray keeps in the user's home. From 2.59 on that is its default."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        ray._raylet.Config.initialize("")  # it has read its environment when it was imported


@contextmanager
def _on_loopback() -> Generator[None]:
    """Ray's servers listen on the loopback interface only, and a driver that joins finds them there.

    Ray replaces 127.0.0.1 as the address of a node by that of a network card, and then some of its servers listen on all
    interfaces. But where it takes a cluster of several nodes for impossible, as on macOS, it keeps to loopback.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _give_up(name: str, pid: int, how: str) -> None:
    """Ends this process, as Ray itself would some seconds later without an exception: a server has died, and C++ waits for it."""
    error = ClusterError(f"Ray's {name}, pid {pid}", f"{how} while Ray was starting")
    sys.stderr.write(f"{ClusterError.__module__}.{ClusterError.__name__}: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    Shutdown([*children(os.getpid()), *own_services()]).end(0.0)
    os._exit(1)


def _where(address: str | None, nodes: int) -> str | None:
    """The Ray to join; None to start one."""
    at = address or os.environ.get("RAY_ADDRESS") or None
    if at is not None and at.startswith("ray://"):
        problem = f"'{at}' is an address of Ray Client, whose driver is outside the cluster"
        raise ConfigError("cluster.address", problem, "Run the driver on a node of the cluster, and name its `host:port`.")
    if at not in (None, "auto", "local"):
        host, _, port = at.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            remedy = "Name the Ray's port, 6379 unless `ray start` was told another" + (
                "." if address else ", or unset RAY_ADDRESS."
            )
            raise ConfigError("cluster.address" if address else "RAY_ADDRESS", f"expected host:port, found '{at}'", remedy)
        return at
    found = _started_here() if at == "auto" or (at is None and nodes != 1) else None
    if found is None and (at == "auto" or nodes > 1):
        problem = f"a cluster of {nodes} nodes joins a Ray, and none was started here" if nodes > 1 else "no Ray was started here"
        remedy = "Run `ray start --head` here and `ray start --address=…` on the other nodes, or set cluster.address."
        raise ConfigError("cluster.num_nodes" if nodes > 1 else "cluster.address", problem, remedy)
    return found


def _started_here() -> str | None:
    """The address that `ray start` left on this machine. Ray's own `auto` also finds what some program has started for itself."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as Ray does
    try:
        return (Path(folder) / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def check_same(address: str | None, connected: str, *, started: bool) -> None:
    """Refuses an address other than that of the Ray to which this process is connected: it has one Ray at a time.

    Args:
        address: what the configuration says; None takes `RAY_ADDRESS`, or else any.
        connected: the `host:port` of that Ray.
        started: this process has started it.

    Raises:
        ConfigError: it is another one.
    """
    wanted = address or os.environ.get("RAY_ADDRESS")
    at = _started_here() if wanted == "auto" else wanted
    if at is None or (started if at == "local" else _sockets(at) & _sockets(connected)):
        return
    found = f"'{wanted}'" if wanted == at else f"'{wanted}', which is '{at}'"
    problem = f"found {found}, but this process is connected to the Ray at '{connected}', and can be to one only"
    raise ConfigError("cluster.address", problem, "Shut down what is connected there first, or take the same address.")


def _sockets(address: str) -> set[tuple[str, str]]:
    """The host and port of an address in all spellings that are known: a name, numbers, and loopback for this machine itself."""
    host, _, port = address.rpartition(":")
    found = {host}
    with contextlib.suppress(OSError):
        found |= set(socket.gethostbyname_ex(host)[2])
    own = {"127.0.0.1", "localhost", ray.util.get_node_ip_address()}
    return {(name, port) for name in (found | own if found & own else found)}


def _only_on_loopback(address: str) -> bool:
    """Whether a Ray that answers at an address of the loopback interface does not answer where Ray would look for it instead."""
    elsewhere = ray._private.services.canonicalize_bootstrap_address(address)
    if elsewhere == address:
        return False
    try:
        _knock(elsewhere)
    except OSError:
        return True
    return False


def _knock(address: str) -> None:
    """Raises `OSError` if nobody listens at `host:port`; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=5.0).close()
