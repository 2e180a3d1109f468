"""Keys at a robot's console."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from rlinf.envs.realworld import console


class Client:
    """Notes what it is asked for; the person leaves after the first look at the arm."""

    def __init__(self, keyboard: int):
        self.keyboard, self.asked = keyboard, []

    def stop(self, why):
        self.asked.append("stop")

    def recover(self):
        self.asked.append("recover")

    def human(self, motion, keys):
        self.asked.append((motion is not None, list(keys)))
        os.write(self.keyboard, b"x")
        return SimpleNamespace(stopped="", human=None, verdict="")


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (b"w ", ["stop", (True, [])]),
        (b"y n", ["stop", (False, ["success", "failure"])]),
        (b" c", ["stop", "recover", (False, [])]),
        (b"x ", ["stop"]),
        (b"\xff ", ["stop", (False, [])]),
    ],
)
def test_an_emergency_stop_is_sent_at_once_whatever_keys_come_with_it(monkeypatch, typed, asked):
    monkeypatch.setattr(console, "is_there", lambda name: False)
    read, write = os.pipe()
    client = Client(write)
    with os.fdopen(read) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        os.write(write, typed)
        assert console.run_console(client) == 0
    os.close(write)
    assert client.asked == asked


def test_the_console_ends_with_its_input(monkeypatch):
    monkeypatch.setattr(console, "is_there", lambda name: False)
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        assert console.run_console(Client(write)) == 0
