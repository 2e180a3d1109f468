"""Env workers that are built anew, by calls of which the test says when they end."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.runners.embodied.playing.restarts import EnvRestarts, Iteration, Parts
from rlinf.runners.embodied.topology import Attempt, Channels


class Call:
    """A call that ends when it is told, well or not, and knows whether somebody has seen that."""

    label = "env.call()"

    def __init__(self, on_look: Callable[[], None] = lambda: None) -> None:
        self.on_look, self.error, self.ended, self.seen = on_look, cast("WorkerError | None", None), False, False

    def end(self, rank: int | None = None) -> None:
        self.ended = True
        self.error = None if rank is None else WorkerError("env", rank, "interact", "the process died")

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout: float | None = None) -> list[Any]:
        self.on_look()
        if not self.ended:
            raise DeadlineExceeded(self.label, "not done")
        self.seen = True
        if self.error is not None:
            raise self.error
        return [None]


class Group:
    """Two env workers, of which the second has been started again."""

    name, world_size = "env", 2

    def __init__(self, building: Call) -> None:
        self.restarts, self.building, self.played = [0, 1], building, list[Call]()

    def execute_on(self, rank: int) -> Any:
        ended = Call()
        ended.end()

        def init_worker(_: Any) -> Call:
            return self.building if rank == 1 else ended

        def connect(*_: Any) -> Call:
            return ended

        def interact(*_: Any, **__: Any) -> Call:
            self.played.append(Call())
            return self.played[-1]

        return SimpleNamespace(init_worker=init_worker, connect=connect, interact=interact)


def restarting(group: Group) -> EnvRestarts:
    def none(_: Any) -> tuple[Any, ...]:
        return ()

    topology: Any = SimpleNamespace(slots={"train": ()}, of_env=none, serving=none)
    cfg: Any = SimpleNamespace(runner=SimpleNamespace(timeout_s=20.0), env=SimpleNamespace(train=SimpleNamespace(auto_reset=False)))
    nowhere: Any = None
    channels = Channels(requests=nowhere, answers=nowhere, trajectories=nowhere)
    group.restarts[1] -= 1
    restarts = EnvRestarts(cfg, cast("Any", group), cast("Any", group), channels)
    # It had been built, and the other one still was.
    group.restarts[1] += 1
    restarts.connect(topology)
    return restarts


@pytest.fixture(autouse=True)
def no_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf.core.cluster.futures.AFTERMATH_S", 0.0)


def test_a_worker_may_die_while_another_one_is_built_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster ends a wait, and the run with it, if nobody has seen a failure. So that of another worker must be; it is next."""
    parts, looks = [Call(), Call()], list[int]()
    parts[1].end(1)

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            parts[0].end(0)
            group.restarts[0] = 1
        if len(looks) > 4 and not parts[0].seen:
            raise WorkerError("env", 0, "interact", "nobody has seen that the process died")
        if len(looks) > 8:
            building.end()

    building = Call(look)
    group = Group(building)
    restarts = restarting(group)
    iteration = Iteration(Parts(*cast("Any", parts)), Parts(cast("Any", Call())))
    assert restarts.rebuild({0: iteration})
    assert iteration.again == {1: Attempt(1, 1), 0: Attempt(0, 1)}
    assert set(iteration.env.parts) == set(group.played), "both play once more"
    assert restarts.count == 2
    assert capsys.readouterr().err.splitlines() == [
        f"env[{rank}] was built anew; it plays its share of iteration 1 once more, and 0 episodes are dropped" for rank in (1, 0)
    ]


def test_a_worker_that_can_not_be_built_ends_the_run() -> None:
    building = Call()
    group = Group(building)
    restarts = restarting(group)
    building.end(1)
    with pytest.raises(WorkerError, match="the process died"):
        restarts.rebuild({})
