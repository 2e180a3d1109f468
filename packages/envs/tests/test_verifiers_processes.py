"""The processes that play episodes of verifiers, played by sockets: what becomes of episodes when one dies."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass, field

import pytest

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import Connection
from rlinf.envs.verifiers.service import Service, _Process


class Child:
    """A process that is ready at once."""

    def __init__(self):
        here, there = socket.socketpair()
        self.connection, self.socket, self.ended = Connection(here), there, False
        self.other = Connection(there)

    def has_ended(self):
        return self.ended

    def wait(self, seconds):
        """It has ended already."""

    def cause(self, when=""):
        return "died"

    def kill(self):
        self.other.close()


@dataclass
class Launch:
    """Starts them."""

    env: str = "{}"
    tasks: int = 1
    start_s: float = 30.0
    ready: bool = True
    children: list[Child] = field(default_factory=list)

    def started(self, log):
        self.children.append(Child())
        if self.ready:
            self.children[-1].other.send({})
        return self.children[-1]


def test_a_process_that_died_takes_no_episode_of_its_successor_with_it():
    launch = Launch()
    service = Service(launch, 1)
    where = {"key": "k", "base_url": "", "api_key": "", "model": ""}

    async def play():
        first = asyncio.create_task(service.play(0, **where))
        while not launch.children:
            await asyncio.sleep(0)
        old = launch.children[0]
        for _ in ("serve", "play"):
            await asyncio.to_thread(old.other.wait)
        old.ended = True
        second = asyncio.create_task(service.play(1, **where))
        while len(launch.children) < 2:
            await asyncio.sleep(0)
        new = launch.children[1]
        await asyncio.to_thread(new.other.wait)
        asked = (await asyncio.to_thread(new.other.wait))[0]
        # Only now it is seen that the old one is gone.
        old.other.close()
        with pytest.raises(RLinfError, match="its process died"):
            await first
        new.other.send({"id": asked["id"], "answer": "yes", "reward": 1.0})
        assert await second == ("yes", 1.0)

    asyncio.run(play())
    service.close()


def test_a_process_that_says_a_little_at_a_time_is_not_waited_for_longer():
    process = _Process(Launch(start_s=0.2, ready=False))
    over = threading.Event()

    def drip():
        process.child.socket.sendall(b"\x40\0\0\0" + bytes(8))
        for _ in range(60):
            process.child.socket.sendall(b" ")
            if over.wait(0.05):
                return
        process.child.socket.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ConfigError, match=r"is not ready after 0\.2 s"):
        process.first({})
    over.set()
    thread.join()
    process.close()
