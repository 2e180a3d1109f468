from typing import Any

from rlinf.scheduler.transport.queues import Get, Put, Queues
from rlinf.scheduler.transport.routes import Routes
from rlinf.scheduler.transport.transport import Transport
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait


class OneQueue(Transport):
    """A transport with its queues in this process."""

    run = "a run"
    asks_driver = True

    def __init__(self) -> None:
        self.queues = Queues(lambda: ThreadMonitor(60.0))
        self.routes = Routes("socket", lambda *_: "network")

    def who(self) -> str:
        return "env[0]"

    def in_worker(self) -> bool:
        return True

    def ask(self, kind: str, *question: Any, wait: Wait) -> Any:
        raise NotImplementedError

    def start_put(self, host: str, queue: Any, weight: int, blobs: Any, maxsize: int, wait: Wait, *, now: bool = False) -> Put:
        request = Put(queue, "env.0", (weight, list(blobs)), maxsize, now=now)
        self.queues.start(request)
        return request

    def start_get(self, host: str, queue: Any, target: int | None, wait: Wait, *, now: bool = False) -> Get:
        request = Get(queue, "env.0", target, now=now)
        self.queues.start(request)
        return request

    def size(self, host: str, queue: Any, wait: Wait) -> int:
        return self.queues.size(queue)
