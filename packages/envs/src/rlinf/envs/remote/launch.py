"""How the process of a simulator is started: its command, its environment variables, its files, its deadlines."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rlinf.core
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import ChildProcess, SharedMemory
from rlinf.core.registry import ENVS

# Read when a library is loaded, so they must be set before the process starts.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# PYTHONPATH and PYTHONHOME lead an interpreter to our packages; so does the last one, which macOS sets for a virtual environment.
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")


class SimulatorDied(RLinfError):
    """The process of a simulator ended, or didn't answer in time, more often than it may be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a simulator that doesn't answer has failed; it is killed and, but for `start`, started again."""

    start: float = 300.0
    """From the start of its process until it has built its environments."""
    reset: float = 120.0
    step: float = 60.0
    close: float = 10.0
    """Seconds to close its environments before it is killed."""

    def __post_init__(self) -> None:
        for name in ("start", "reset", "step", "close"):
            expect_range(name, getattr(self, name), 0.0, open_low=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every process of one environment is started with; see `Remote` for most fields."""

    python: str
    env: str
    """A name that the interpreter's own registry knows, or `module:attr`."""
    params: Mapping[str, Any]
    max_episode_steps: int | None
    ignore_terminations: bool
    render: bool
    paths: tuple[str, ...] = ()
    """Folders to import from; what of them holds more than `rlinf` is the caller's choice."""
    lend: bool = True
    """Whether rlinf-core and rlinf-envs are lent to the interpreter; otherwise it finds them on `paths`."""
    variables: Mapping[str, str]
    threads: int | None
    cpus: tuple[int, ...] = ()
    """Process `i` runs on the `i`-th of these processors, over and over; on any where empty."""
    restarts: int
    episodes: int | None = None
    """Episodes after which a process is replaced; None: never."""
    deadlines: Deadlines


def target(name: str) -> str:
    """An environment's name as another interpreter can resolve it, whose installed packages announce nothing of ours.

    Raises:
        ConfigError: it was registered by the script that runs now, which another process doesn't run.
    """
    if ":" in name or name.casefold() not in ENVS.names():
        return name
    owner = ENVS.owner(name)
    if owner.startswith("__main__:"):
        remedy = "Put its class into a module that can be imported."
        raise ConfigError(
            "env.env", f"'{name}' was registered by the running script, which the simulator's process can't see", remedy
        )
    return owner


def variables_for(import_path: Sequence[str]) -> dict[str, str]:
    """Our environment variables for another interpreter: by them it finds these folders, and none of our packages."""
    own = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    return {**own, "PYTHONPATH": os.pathsep.join(import_path)} if import_path else own


class RunFolder:
    """A folder with the logs of an environment's processes, gone when the environment is closed.

    `path/` holds links to exactly `rlinf.core` and `rlinf.envs`: what else is installed beside them here stays invisible there.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rlinf-remote-"))
        import_path = self.folder / "path" / "rlinf"
        import_path.mkdir(parents=True)
        for name, folder in (("core", Path(rlinf.core.__path__[0])), ("envs", Path(__file__).parents[1])):
            (import_path / name).symlink_to(folder.resolve())
        # Unlike `__del__` this also runs when the interpreter ends.
        self.clear = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def import_path(self) -> str:
        """The folder to import `rlinf` from."""
        return str(self.folder / "path")

    def log(self, index: int) -> Path:
        """What process `index` and its successors write to their standard output and error."""
        return self.folder / f"simulator-{index}.log"


def start(launch: Launch, folder: RunFolder, index: int, memory: SharedMemory) -> ChildProcess:
    """Starts a process that serves environments in shared memory, see `server`.

    Raises:
        ConfigError: the interpreter can't be started.
    """
    # `-P` keeps the working directory off the import path, where a folder may be named like a package of the simulator.
    command = [launch.python, "-P", "-m", "rlinf.envs.remote.server", str(memory.fd)]
    variables = variables_for([folder.import_path, *launch.paths] if launch.lend else launch.paths)
    if launch.threads is not None:
        variables |= dict.fromkeys(_THREADS, str(launch.threads))
    # Last, so that what the user sets wins.
    variables |= launch.variables
    try:
        return ChildProcess(command, env=variables, log=folder.log(index), connect=True, pass_fds=(memory.fd,))
    except OSError as error:
        raise ConfigError(
            "env.python", f"'{launch.python}' can't be started ({error})", "Give the path of its `python`."
        ) from error
