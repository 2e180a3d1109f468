"""The configuration of a simulator in an interpreter of its own. Importing this starts nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import EnvConfig
from rlinf.core.registry import ENVS
from rlinf.envs.remote.launch import Deadlines, Launch, target, variables_for
from rlinf.envs.spaces import Vector, describe

_FILMS: Final = ("PIL", "imageio", "imageio_ffmpeg")
"""What films need in the interpreter, which draws and renders."""
_ASKED_S: Final = 30.0
"""What it is given to answer which of them it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcesses:
    """What environments in processes of their own have in common: which one it is, and how its processes are kept."""

    env: str
    """A registered environment, or `module:attr` of a configuration that the interpreter can import."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parameters of that environment."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables to add in its processes; another interpreter inherits ours but for `PYTHONPATH` and `PYTHONHOME`."""
    restarts: int = 3
    """How often in all a failed process is started again."""
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def runs(self) -> tuple[str, EnvConfig] | None:
        """That environment; None if another interpreter has to be asked, or if `check` refuses it."""
        return registered(self.env, self.params)

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote(OtherProcesses):
    """An environment in an interpreter of its own, for a simulator whose packages can't be installed beside ours.

    All its environments run in one process; `rlinf.envs.parallel.Parallel` has several.
    """

    python: str
    """The interpreter, such as `/opt/isaac/bin/python`. It needs gymnasium, numpy and the simulator; rlinf-core and rlinf-envs are
    lent to it."""
    paths: tuple[str, ...] = ()
    """Further folders from which the interpreter imports, such as one with a configuration of yours."""
    threads: int | None = None
    """Threads of its numerical libraries; None leaves that to them."""

    def check(self, place: str) -> None:
        """Refuses a missing interpreter, and parameters that a known environment doesn't take; starts nothing.

        Raises:
            ConfigError: no such interpreter, or a wrong parameter.
        """
        if shutil.which(os.path.expanduser(self.python)) is None:
            raise ConfigError(f"{place}.python", f"no interpreter at '{self.python}'", "Give the path of its `python`.")
        # What only another interpreter can import is checked there.
        if ":" in self.env:
            return
        if self.env.casefold() in ENVS.names():
            ENVS.build(self.env, self.params, place=f"{place}.params")
        elif os.path.expanduser(self.python) == sys.executable:
            ENVS.get(self.env, place=f"{place}.env")

    def check_films(self, place: str, otherwise: str) -> None:
        """Refuses films where the interpreter can't import what makes them; asks it, which takes as long as its start.

        Raises:
            ConfigError: with the module; a broken interpreter is told when it is needed.
        """
        look = f"from importlib.util import find_spec; print(*[m for m in {_FILMS!r} if find_spec(m) is None])"
        command = [os.path.expanduser(self.python), "-P", "-c", look]
        try:
            # The interpreter that the user names.
            variables = {**variables_for(self.paths), **self.variables}
            asked = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, check=True, timeout=_ASKED_S, env=variables
            )
        except (OSError, subprocess.SubprocessError):
            return
        missing = asked.stdout.split()
        if missing:
            problem = f"films of an environment in '{self.python}' need {', '.join(missing)}, which it can't import"
            raise ConfigError(place, problem, f"{self.python} -m pip install pillow 'imageio[ffmpeg]', or {otherwise}.")

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments in one process.

        Raises:
            SimulatorDied: its process failed before it was built; the message has the end of its log.
            RLinfError: it can't be built; as a rule the error that it would raise here.
        """
        self.check("env")
        from rlinf.envs.remote.asynchronous import assemble_processes

        launch = Launch(
            python=os.path.expanduser(self.python),
            env=target(self.env),
            params=self.params,
            max_episode_steps=max_episode_steps,
            ignore_terminations=ignore_terminations,
            render=render,
            paths=self.paths,
            variables=self.variables,
            threads=self.threads,
            restarts=self.restarts,
            deadlines=self.deadlines,
        )
        return assemble_processes(launch, num_envs, processes=1)


def registered(env: str, params: Mapping[str, Any]) -> tuple[str, EnvConfig] | None:
    """The name and the configuration of an environment that is registered here; None for others, and for wrong parameters."""
    try:
        return (env, ENVS.build(env, params, place="env.params")) if ":" not in env else None
    except ConfigError:
        return None
