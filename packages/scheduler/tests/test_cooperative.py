"""Tasks that take turns, when the driver's own wait is interrupted."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import until

from rlinf.core.errors import ChannelClosed
from rlinf.scheduler.backends.local.cooperative import CooperativeScheduler, Task
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.transport.waits import Wait

NEVER = Wait("a[0]", "queue 'q'", "an item")


class Interrupted(threading.Semaphore):
    """The driver's turn; Ctrl-C comes in its first wait, as soon as another task runs."""

    def __init__(self, running: threading.Event) -> None:
        super().__init__(0)
        self._running: threading.Event | None = running

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        running, self._running = self._running, None
        if running is None:
            return super().acquire(blocking, timeout)
        assert running.wait(10.0)
        raise KeyboardInterrupt


@pytest.fixture
def scheduler() -> CooperativeScheduler:
    return CooperativeScheduler(Failures(lambda _: None), lambda: "")


def interrupted(scheduler: CooperativeScheduler, then: Callable[[], None]) -> tuple[Task, threading.Event]:
    """The driver was interrupted while a task runs, which does `then` when the event is set."""
    running, goes_on = threading.Event(), threading.Event()

    def body() -> None:
        running.set()
        assert goes_on.wait(10.0)
        then()

    task = scheduler.start("a[0]", body)
    driver: Any = scheduler.me()
    driver.turn = Interrupted(running)
    with pytest.raises(KeyboardInterrupt):
        scheduler.give_way()
    return task, goes_on


def test_a_task_that_waits_after_an_interrupt_of_the_driver_is_ended(scheduler: CooperativeScheduler) -> None:
    ended: list[str] = []

    def wait() -> None:
        with pytest.raises(ChannelClosed, match="over"):
            scheduler.wait_until(lambda: False, NEVER)
        ended.append("a[0]")

    task, goes_on = interrupted(scheduler, wait)
    goes_on.set()
    tasks: Any = scheduler
    until(lambda: task.waits == 1 and task in tasks._waiting)
    scheduler.stop("the run is over")
    assert ended == ["a[0]"]
    assert task.ended


def test_after_an_interrupt_the_driver_waits_for_its_turn(scheduler: CooperativeScheduler) -> None:
    log: list[str] = []
    _, goes_on = interrupted(scheduler, lambda: log.append("a[0]"))
    scheduler.start("b[0]", lambda: log.append("b[0]"))
    driver = scheduler.me()
    helper = threading.Thread(target=lambda: (until(lambda: driver.waits == 2), goes_on.set()))
    helper.start()
    scheduler.give_way()
    helper.join()
    scheduler.give_way()
    assert log == ["a[0]", "b[0]"]
    scheduler.stop("the run is over")


def test_how_an_interrupted_wait_would_have_ended_is_not_told_by_the_next_one(scheduler: CooperativeScheduler) -> None:
    ended = threading.Event()
    ended.set()
    driver: Any = scheduler.me()
    driver.turn = Interrupted(ended)
    with pytest.raises(KeyboardInterrupt):
        scheduler.wait_until(lambda: False, NEVER)  # a deadlock, as there is nobody else
    scheduler.give_way()
