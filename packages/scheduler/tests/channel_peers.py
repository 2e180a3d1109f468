"""Processes that use a channel until they are killed or it ends: a parent forks one for each line `role address` on its input.

Writers put `(address, number, …)` and readers get; each writes down what it did in a file of its own: `begin n` and `end n`, or the
item. Items are small, or arrays of some hundred kilobytes, so that a kill finds some of them half sent.
"""

import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np

from rlinf.core.errors import ChannelClosed, EndOfStream
from rlinf.scheduler.transport.channel import Channel
from rlinf.scheduler.transport.sockets.locations import Location, RunInfo
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport

LARGE = 40_000


def main(run_info: RunInfo, folder: Path) -> None:
    for line in sys.stdin:
        role, me, *options = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                play(run_info, folder, role, me, options)
            except BaseException as error:  # noqa: BLE001 - read by the test
                (folder / f"error-{me}").write_text(repr(error))
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)


def play(run_info: RunInfo, folder: Path, role: str, me: str, options: list[str]) -> None:
    transport = SocketTransport(run_info, me, Location("here", str(Path(run_info.driver.path).parent / me)))
    transport.server.start()
    transport.connect_control(lambda: os._exit(2))
    channel = Channel.connect_at(transport, "c")
    book = os.open(folder / f"{role}-{me}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    if role == "writer":
        write(channel, me, book, int(options[0]), asynchronous="async" in options)
    elif role == "reader":
        read(channel, book, asynchronous="async" in options)
    else:
        time.sleep(600.0)


def write(channel: Channel, me: str, book: int, count: int, *, asynchronous: bool) -> None:
    for number in range(count):
        array = np.full(LARGE if number % 5 == 0 else 2, number, np.float64)
        os.write(book, f"begin {number}\n".encode())
        try:
            work = channel.put((me, number, array), async_op=asynchronous)
            if work is not None:
                work.wait()
        except ChannelClosed:
            os.write(book, f"refused {number}\n".encode())
            return
        os.write(book, f"end {number}\n".encode())


def read(channel: Channel, book: int, *, asynchronous: bool) -> None:
    ahead = [channel.get(async_op=True) for _ in range(3)] if asynchronous else []
    while True:
        try:
            if asynchronous:
                ahead.append(channel.get(async_op=True))
                me, number, array = ahead.pop(0).wait()
            else:
                me, number, array = channel.get()
        except EndOfStream:
            os.write(book, b"end\n")
            return
        whole = len(array) == (LARGE if number % 5 == 0 else 2) and bool((array == number).all())
        os.write(book, f"{me} {number} {whole}\n".encode())


if __name__ == "__main__":
    main(pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2]))
