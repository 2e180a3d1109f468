from collections.abc import Iterator

import pytest

from rlinf.scheduler import Cluster

VIRTUAL = {"virtual_accelerators": {"count": 2}}


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    log_dir = tmp_path_factory.mktemp("logs")
    with Cluster(cluster_cfg={"backend": "ray", **VIRTUAL, "timeout_s": 60.0, "log_dir": str(log_dir)}) as cluster:
        yield cluster


@pytest.fixture
def local_cluster() -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"backend": "local", **VIRTUAL, "timeout_s": 60.0}) as cluster:
        yield cluster
