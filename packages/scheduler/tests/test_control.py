"""The connection of a process to the driver, without a driver."""

import socket
import threading

from rlinf.scheduler.transport.sockets.control import ControlConnection
from rlinf.scheduler.transport.sockets.wire import send_frame


def test_a_question_that_it_has_no_answer_for_does_not_keep_it_from_hearing_of_the_drivers_end() -> None:
    driver, mine = socket.socketpair()
    gone = threading.Event()
    ControlConnection(mine, lambda _: None, gone.set).start()
    send_frame(driver, ("ask", 1, "doing", None))
    driver.close()
    assert gone.wait(30)
    mine.close()
