import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf.scheduler import Channel, Cluster
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import DriverTransport, SocketTransport
from rlinf.scheduler.transport.transport import DRIVER

sys.path.insert(0, str(Path(__file__).parent))
from channel_runs import Run, through

# A background job ignores Ctrl-C, and the programs that it starts do, too; here some are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

VIRTUAL = {"virtual_accelerators": {"count": 2}}


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[str]:
    """The address of a Ray that this process has started. Its clusters join it, each for itself, and leave it as it was."""
    from rlinf.scheduler.backends.ray._ray import Session, ray

    session = Session(None, "tests")
    yield ray.get_runtime_context().gcs_address
    session.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that makes clusters on Ray shares one with the others; not the modules whose drivers have one each (`OWN_RAY`).

    They come last: a process that has joined a Ray is no place to test what is refused without one.
    """
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    last = iter(sorted(own, key=lambda item: item.get_closest_marker("ray") is not None))
    # Those of other folders, which may be collected with them, keep their places.
    items[:] = [next(last) if item in own else item for item in items]
    for item in own:
        if isinstance(item, pytest.Function) and item.get_closest_marker("ray") and not hasattr(item.module, "OWN_RAY"):
            # A list of its own: the parameters of a test share theirs, and some are not on Ray.
            item.fixturenames = ["shared_ray", *item.fixturenames]


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    log_dir = tmp_path_factory.mktemp("logs")
    with Cluster(cluster_cfg={"backend": "ray", **VIRTUAL, "timeout_s": 60.0, "log_dir": str(log_dir)}) as cluster:
        yield cluster


@pytest.fixture
def local_cluster() -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"backend": "local", **VIRTUAL, "timeout_s": 60.0}) as cluster:
        yield cluster


@pytest.fixture
def run() -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="rlinf-"))
    place = Location("here", str(folder / DRIVER))
    run_info = RunInfo(run=secrets.token_hex(4), driver=place, authkey=secrets.token_bytes(8), timeout_s=60.0)
    driver = DriverTransport(run_info, lambda *_: None, lambda *_: None)
    made = Run(driver, replace(run_info, driver=driver.server.place), [])
    driver.channels.hosts = lambda: {DRIVER: 0, "a.0": 0, "b.0": 1}
    yield made
    for transport in [*made.transports, driver]:
        transport.close("the test is over")
        transport.stop()
    shutil.rmtree(folder)


@pytest.fixture
def a(run: Run) -> SocketTransport:
    return run.transport("a.0")


@pytest.fixture
def b(run: Run) -> SocketTransport:
    return run.transport("b.0")


@pytest.fixture(params=["driver", "a.0", "b.0"])
def pair(request: pytest.FixtureRequest, run: Run, a: SocketTransport, b: SocketTransport) -> tuple[Channel, Channel]:
    """A channel as a and as b use it, hosted by the driver, by a, and by b."""
    site = {"driver": {}, "a.0": {"near": "a"}, "b.0": {"near": "b"}}[request.param]
    channel = run.create("c", **site)
    return through(a, channel), through(b, channel)
