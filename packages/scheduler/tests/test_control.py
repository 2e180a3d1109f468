"""What ties a process to the driver: it hears of the driver's end, and the driver can tell and ask it."""

import socket
import threading
import time
from typing import Any

import pytest
from channel_runs import Run, through

from rlinf.core.errors import ChannelClosed
from rlinf.scheduler.transport.sockets.connections import MOST_UNANSWERED, ControlConnections
from rlinf.scheduler.transport.sockets.locations import Location
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport


def test_a_question_that_it_has_no_answer_for_does_not_keep_it_from_hearing_of_the_drivers_end(run: Run) -> None:
    transport = SocketTransport(run.run_info, "c.0", Location("here", f"{run.run_info.driver.path}-c.0"))
    gone = threading.Event()
    transport.connect_control(gone.set)
    assert run.driver.controls.ask("activities", timeout=60.0) == {}
    run.driver.controls._open["c.0"][0]._sock.shutdown(socket.SHUT_RDWR)
    assert gone.wait(30)
    transport.stop()


def test_questions_that_it_has_no_answer_for_do_not_keep_it_from_the_end_of_a_channel(run: Run, a: SocketTransport) -> None:
    """A child of a worker answers less than its worker: the watch over the run must not make it miss news of channels."""
    channel = through(a, run.create("c"))
    channel.put("first")
    for _ in range(MOST_UNANSWERED + 1):
        assert run.driver.controls.ask("activities", timeout=0.2) == {}
    run.driver.channels.end("c", "closed by a test")
    with pytest.raises(ChannelClosed, match="closed by a test"):
        channel.put("second")
    assert list(channel) == ["first"]


def test_a_process_that_has_just_come_hears_of_the_end_of_a_channel(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not use channels before the driver would tell it of them."""
    handle = ControlConnections.handle

    def slowly(*details: Any) -> None:
        time.sleep(0.5)
        handle(*details)

    monkeypatch.setattr(ControlConnections, "handle", slowly)
    channel = through(run.transport("a.0"), run.create("c"))
    channel.put("first")
    run.driver.channels.end("c", "closed by a test")
    with pytest.raises(ChannelClosed, match="closed by a test"):
        channel.put("second")
    assert list(channel) == ["first"]
