"""Groups of a run start and import at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlinf.core.worker import Worker
from rlinf.runners import launch_all


class First(Worker):
    def __init__(self, cfg: object) -> None: ...


class Second(Worker):
    def __init__(self, cfg: object, more: str) -> None: ...


class Asked:
    """A cluster that writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.placement = SimpleNamespace(get_strategy=lambda name: f"where {name} is")

    def prepare(self, worker: type[Worker], *, name: str, **options: Any) -> None:
        self.asked.append(("prepare", f"{name}: {worker.__name__}", options))

    def launch(self, spec: Any, *, name: str, **options: Any) -> str:
        self.asked.append(("launch", f"{name}: {spec.worker.__name__}", options))
        return f"{name}{spec.args}"


def test_all_processes_are_started_before_one_is_waited_for_and_as_they_are_launched() -> None:
    cluster: Any = Asked()
    restarts = {"policy": "restart"}
    workers = {"actor": First, "env": Second}
    found = launch_all("cfg", cluster, workers, supervisors={"env": restarts}, arguments={"env": ("more",)})
    expected = [
        ("actor: First", {"placement_strategy": "where actor is"}),
        ("env: Second", {"placement_strategy": "where env is", "supervisor": restarts}),
    ]
    assert cluster.asked == [(what, *each) for what in ("prepare", "launch") for each in expected]
    assert found == {"actor": "actor('cfg',)", "env": "env('cfg', 'more')"}
