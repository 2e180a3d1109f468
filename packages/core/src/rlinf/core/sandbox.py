"""Running programs that nobody trusts, such as those that a model wrote: what is asked of a sandbox, and what it says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from rlinf.core.config.ranges import expect_range
from rlinf.core.process.shared import Shared

Reason = Literal["ok", "error", "timeout", "memory", "output", "processes", "killed"]
"""How an execution ended:

| reason | the program |
|---|---|
| `ok` | ended with status 0 |
| `error` | ended with another status, as after an exception that nobody caught |
| `timeout` | had no wall or CPU time left |
| `memory` | ended because it got no more memory |
| `output` | printed more than it may |
| `processes` | had, or ended because it got, no process or thread more |
| `killed` | was ended by a signal, its own or one for a system call of another machine |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLimits:
    """What one program may take."""

    wall_s: float = 5.0
    """Seconds on the clock, from when its process is asked for."""
    cpu_s: float | None = None
    """Processor seconds of each of its processes, rounded up to whole ones; None for `wall_s`."""
    memory_mb: int = 512
    """MiB that each of its processes may add to the interpreter's."""
    processes: int = 1
    """Processes at one time, itself among them; from 2 on, its threads count."""
    output_kb: int = 1024
    """KiB on standard output, and as much on standard error."""

    def __post_init__(self) -> None:
        expect_range("wall_s", self.wall_s, 0.0, 86400.0, open_low=True)
        expect_range("cpu_s", self.cpu_s, 0.0, 86400.0, open_low=True)
        expect_range("memory_mb", self.memory_mb, 1, 2**20)
        expect_range("processes", self.processes, 1, 4096)
        expect_range("output_kb", self.output_kb, 1, 2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A program to run, once."""

    program: str
    """Its text."""
    stdin: str = ""
    """What it reads on standard input."""
    limits: ExecutionLimits = ExecutionLimits()
    """What it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """What became of a program."""

    reason: Reason
    """How it ended."""
    status: int | None
    """Its exit status, -n if signal n ended it; None if nobody saw its end."""
    stdout: str
    """The beginning of what it printed, as long as its limit."""
    stderr: str
    """The same of standard error."""
    wall_s: float
    """Seconds on the clock."""
    cpu_s: float
    """Processor seconds of its processes."""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.reason == "ok"


class Sandbox(Protocol):
    """Runs programs, each as if it were the first; several threads may ask at once."""

    def run(self, executions: Sequence[Execution]) -> list[ExecutionResult]:
        """What became of each, in order; as many at a time as the sandbox has workers.

        Raises:
            RLinfError: the sandbox itself failed. No program can bring that about.
        """
        ...

    def close(self) -> None:
        """Ends its processes; more than once is fine."""
        ...


@runtime_checkable
class SandboxConfig(Protocol):
    """A registered sandbox: its parameters, from which it is built. Equal ones share a running sandbox."""

    @property
    def languages(self) -> Collection[str]:
        """The languages that it runs, in lower case."""
        ...

    def check(self, place: str) -> None:
        """Refuses early what `build` would refuse late, such as a machine that does not allow what is asked of it."""
        ...

    def build(self) -> Sandbox:
        """Starts it.

        Raises:
            ConfigError: this machine can't confine programs as far as the configuration asks.
        """
        ...


_running: Final[Shared[SandboxConfig, Sandbox]] = Shared()


def shared_sandbox(config: SandboxConfig) -> Sandbox:
    """The running sandbox of a configuration in this process, started by the first who asks; it ends with the process."""
    return _running.get(config, config.build)


def close_shared_sandboxes() -> None:
    """Ends what `shared_sandbox` has started in this process; the next who asks starts others."""
    _running.close()
