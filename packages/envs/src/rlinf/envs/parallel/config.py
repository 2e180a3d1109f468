"""The configuration of environments in several processes. Importing this starts nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from rlinf.core.config import expect_at_least
from rlinf.core.registry import ENVS
from rlinf.envs.remote.config import OtherProcesses, Remote
from rlinf.envs.remote.launch import Launch, target
from rlinf.envs.spaces import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(OtherProcesses):
    """An environment whose `num_envs` are shared out to worker processes, which step at the same time.

    Every number is the same to the bit as in one process: each environment gets the same seed, and by the contract it depends on
    nothing else. `make` gives an `Asynchronous`, which has `send` and `recv` beside `step`.
    """

    processes: int | None = None
    """How many; one for each processor that this process may use if None. Never more than environments."""
    python: str | None = None
    """Another interpreter, as in `Remote`; this one, with all that it can import, if None."""
    threads: int | None = 1
    """Threads of the numerical libraries of each process; None leaves that to them."""
    pin: bool = False
    """Bind each process to a processor of its own, in turn."""
    recycle: int | None = None
    """Episodes after which a process is replaced by a fresh one, for a simulator that leaks; None: never."""

    def check(self, place: str) -> None:
        """Refuses what the environment itself refuses, and numbers below 1; starts nothing.

        Raises:
            ConfigError: as the environment's own `check`, or a wrong number.
        """
        for name, value in (("processes", self.processes), ("threads", self.threads), ("recycle", self.recycle)):
            expect_at_least(f"{place}.{name}", value, 1)
        if self.python is not None:
            Remote(python=self.python, env=self.env, params=self.params).check(place)
        else:
            ENVS.get(self.env, place=f"{place}.env")
            ENVS.build(self.env, self.params, place=f"{place}.params").check(f"{place}.params")

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments in processes.

        Raises:
            SimulatorDied: a process failed before it was ready.
            RLinfError: the environment can't be built; as a rule the error that it would raise here.
        """
        self.check("env")
        from rlinf.envs.remote.asynchronous import assemble_processes

        cpus = tuple(sorted(os.sched_getaffinity(0)))
        launch = Launch(
            python=self.python or sys.executable,
            env=target(self.env),
            params=self.params,
            max_episode_steps=max_episode_steps,
            ignore_terminations=ignore_terminations,
            render=render,
            # Our own interpreter imports what we do; the entry `''` of `sys.path` is the working directory.
            paths=() if self.python else tuple(os.path.abspath(path) for path in sys.path),
            lend=self.python is not None,
            variables=self.variables,
            threads=self.threads,
            cpus=cpus if self.pin else (),
            restarts=self.restarts,
            episodes=self.recycle,
            deadlines=self.deadlines,
        )
        return assemble_processes(launch, num_envs, self.processes or len(cpus))
