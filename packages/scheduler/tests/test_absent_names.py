"""Names of RLinf's scheduler that are not here say what stands for them, and those that are called otherwise are answered."""

import importlib
from typing import Any

import pytest

import rlinf.scheduler
from rlinf.core.errors import RLinfError, UnknownName
from rlinf.core.worker.compat import MESSAGES, PARENT, RENAMED, WORKER, AbsentArgument, AbsentAttribute, AbsentImport
from rlinf.scheduler import Channel, Cluster, Handle, NodeInfo, NodePlacementStrategy, Worker, WorkerAddress
from rlinf.scheduler.compat import CLUSTER, NODE_INFO, SCHEDULER

CLASSES: dict[type[Any], Any] = {Worker: WORKER, Cluster: CLUSTER, NodeInfo: NODE_INFO}
ATTRIBUTES = [(owner, name, remedy) for owner, table in CLASSES.items() for name, remedy in table.items()]


@pytest.mark.parametrize("name", SCHEDULER)
def test_an_import_of_an_absent_name_says_what_stands_for_it(name: str) -> None:
    assert name not in vars(rlinf.scheduler)
    with pytest.raises(AbsentImport) as caught:
        exec(f"from rlinf.scheduler import {name}", {})
    assert str(caught.value) == f"rlinf.scheduler.{name}: there is no such name here. {SCHEDULER[name]}"


def test_other_absent_names_of_the_module_are_python_s_own_affair() -> None:
    assert not hasattr(rlinf.scheduler, "Chanel")
    with pytest.raises(ImportError, match="cannot import name 'Chanel'"):
        exec("from rlinf.scheduler import Chanel", {})


@pytest.mark.parametrize(("owner", "name", "remedy"), ATTRIBUTES)
def test_an_absent_attribute_says_what_stands_for_it(owner: type[Any], name: str, remedy: str) -> None:
    with pytest.raises(AbsentAttribute) as caught:
        getattr(owner, name)
    assert str(caught.value) == f"{owner.__name__}.{name}: there is no such name here. {remedy}"
    assert not hasattr(owner, name)


@pytest.mark.parametrize("name", WORKER)
def test_a_worker_may_have_such_a_name_of_its_own(name: str) -> None:
    assert not hasattr(Worker(), name)
    assert getattr(type("Own", (Worker,), {name: 5})(), name) == 5
    worker = Worker()
    setattr(worker, name, 6)
    assert getattr(worker, name) == 6


@pytest.mark.parametrize(("name", "own"), RENAMED.items())
def test_an_attribute_of_another_name_is_answered(name: str, own: str) -> None:
    assert getattr(Worker(), name) == getattr(Worker(), own)


@pytest.mark.parametrize("argument", MESSAGES)
@pytest.mark.parametrize("method", ["send", "recv", "send_tensor", "recv_tensor", "broadcast"])
def test_an_absent_argument_of_a_message_says_what_stands_for_it(method: str, argument: str) -> None:
    first = () if method == "recv" else (None,)
    with pytest.raises(AbsentArgument) as caught:
        getattr(Worker(), method)(*first, **{argument: 1})
    assert caught.value.remedy == MESSAGES[argument]
    with pytest.raises(TypeError, match="unexpected keyword argument 'tagg'"):
        getattr(Worker(), method)(*first, tagg="x")


def test_what_is_sent_may_be_named_object() -> None:
    worker: Any = Worker()
    with pytest.raises(RLinfError, match="built outside a cluster"):
        worker.send(object=None, dst_group_name="rollout", dst_rank=0)
    with pytest.raises(TypeError, match="nothing to send"):
        worker.send(group="rollout", rank=0)


def test_a_worker_is_no_child_by_the_arguments_of_its_constructor() -> None:
    with pytest.raises(AbsentArgument) as caught:
        Worker(parent_address=WorkerAddress("rollout", 0), world_size=2, rank=1)
    assert caught.value.remedy == PARENT["parent_address"]
    with pytest.raises(AbsentArgument):
        Worker(WorkerAddress("rollout", 0), 2, 1)


def test_a_group_says_what_stands_for_a_method_and_which_ones_there_are() -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        group = Worker.create_group().launch(cluster, placement_strategy=NodePlacementStrategy([0]), name="plain")
        with pytest.raises(UnknownName, match=r"no public method 'start_profile'. Set cluster\.tracer"):
            group.start_profile(3)
        with pytest.raises(UnknownName, match=r"no public method 'rank'\. Methods: "):
            group.rank()
        with pytest.raises(UnknownName, match=r"no public method 'log_inf'\. Did you mean 'log_info'"):
            group.log_inf("hello")
        assert Channel.create("items", 2, disable_distributed_log=True).maxsize == 2


def test_remedies_name_what_is_there() -> None:
    """Each of our names that a remedy of the module tells, looked up."""
    for name in (
        "Worker.hardware_infos",
        "Worker.accelerator_type",
        "Worker.acquire_free_port",
        "Worker.device_lock",
        "Channel.connect",
    ):
        owner, _, attribute = name.partition(".")
        assert hasattr(getattr(rlinf.scheduler, owner), attribute), name
    for name in ("find_free_port", "get_node_group", "write_trace", "inventory", "placement"):
        assert hasattr(Cluster, name)
    for name in ("wait", "async_wait", "done", "consume_duration", "consume_durations"):
        assert hasattr(Handle, name)
    assert {"hardware", "default_env_vars"} <= set(NodeInfo.__dataclass_fields__)
    assert importlib.import_module("rlinf.scheduler.placement").ComponentPlacement is rlinf.scheduler.ComponentPlacement
