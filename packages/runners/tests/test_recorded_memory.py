"""What workers write into a trace of their memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf.core.worker import Worker
from rlinf.core.worker.context import WorkerContext, injected
from rlinf.runners.training import memory as recorded
from rlinf.runners.training.memory import SIMULATOR, SIMULATOR_PROCESSES, SimulatorMemory, record_memory

MIB = 1 << 20
CHILD = "held = b'x' * (16 << 20); print('up', flush=True); input()"


def traced() -> tuple[Worker, list[tuple[str, int]]]:
    said: list[tuple[str, int]] = []
    with injected(WorkerContext(memory=lambda part, size: said.append((part, size)))):
        return Worker(), said


def test_a_simulator_is_what_a_process_and_those_below_it_grow_by() -> None:
    worker, said = traced()
    memory = SimulatorMemory(worker)
    held: list[bytearray] = []
    with memory.growing():
        held.append(bytearray(b"x" * (32 * MIB)))
    first = dict(said)
    assert 30 * MIB < first[SIMULATOR] < 80 * MIB
    # What another part of the process takes between is not the simulator's.
    held.append(bytearray(b"x" * (64 * MIB)))
    said.clear()
    with memory.growing():
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
    child.communicate(b"\n", timeout=60)
    second = dict(said)
    assert first[SIMULATOR] <= second[SIMULATOR] < 80 * MIB
    assert second[SIMULATOR_PROCESSES] > 16 * MIB


def test_nothing_is_measured_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "resident", lambda **which: pytest.fail(f"asked for {which}"))
    with SimulatorMemory(Worker()).growing():
        pass


class Engine:
    def memory(self) -> dict[str, int]:
        return {"parameters": 3, "cache": 4}


def test_who_knows_its_memory_is_asked() -> None:
    worker, said = traced()
    record_memory(worker, Engine())
    record_memory(worker, object())
    assert said == [("parameters", 3), ("cache", 4)]
