"""Loggers that send to a server: Weights & Biases and SwanLab, each by its own library.

What is not said here they take from where their users already set it: account and entity, server, and whether to send at all, from
`WANDB_API_KEY`, `WANDB_ENTITY`, `WANDB_BASE_URL`, `WANDB_MODE` and `SWANLAB_API_KEY`, `SWANLAB_WORKSPACE`, `SWANLAB_MODE`, …
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any, Final

from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.runners.reporting.loggers.registry import LoggedRun, refusal

_UNSENT: Final = ("offline", "disabled", "dryrun")
_WANDB_REMEDY: Final = "Log in with `wandb login`, or set WANDB_MODE=offline."


class WandbLogger:
    """`wandb`: a run of Weights & Biases, which goes on when ours resumes.

    `wandb.init` and `Run.log`, https://docs.wandb.ai/ref/python.
    """

    def __init__(self, run: LoggedRun) -> None:
        wandb: Any = importlib.import_module("wandb")
        identity = run.identity()
        try:
            # `allow` goes on with the run of that id, or begins it if there is none.
            self._run: Any = wandb.init(
                project=run.project, name=run.name, id=identity, resume="allow", dir=str(run.folder), config=dict(run.config)
            )
        except wandb.Error as error:
            raise refusal("wandb", error, _WANDB_REMEDY) from error

    @staticmethod
    def check(place: str) -> None:
        """Refuses to begin where the library is not installed, or has no key for the server that it would send to."""
        require_modules("wandb", place=place, extra="wandb")
        wandb: Any = importlib.import_module("wandb")
        # A login of older versions can't be kept from asking at a prompt.
        if "prompt" not in inspect.signature(wandb.login).parameters or wandb.setup().settings.mode in _UNSENT:
            return
        try:
            # Without a look at the server, which may take long.
            known = wandb.login(prompt=False, verify=False)
        except wandb.Error as error:
            raise refusal("wandb", error, _WANDB_REMEDY) from error
        if not known:
            raise ConfigError(place, "wandb has no key of an account", _WANDB_REMEDY)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the numbers to the history of the run."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Sends what is left."""
        self._run.finish()


class SwanLabLogger:
    """`swanlab`: an experiment of SwanLab, which goes on when ours resumes.

    `swanlab.init` and `swanlab.log`, https://docs.swanlab.cn/en/api/py-init.html.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._swanlab: Any = importlib.import_module("swanlab")
        folder = run.folder / "swanlab"
        folder.mkdir(exist_ok=True)
        named = {"project": run.project, "experiment_name": run.name, "config": dict(run.config), "logdir": str(folder)}
        mode = os.environ.get("SWANLAB_MODE")
        # Only an experiment that a server keeps can be gone on with.
        goes_on = {"id": run.identity(), "resume": "allow"} if mode in (None, "", "cloud", "online") else {}
        try:
            self._swanlab.init(**named, **goes_on, **({"mode": mode} if mode else {}))
        except Exception as error:
            raise refusal("swanlab", error, "Log in with `swanlab login`, or set SWANLAB_MODE=offline.") from error

    @staticmethod
    def check(place: str) -> None:
        """Refuses to begin where the library is not installed."""
        require_modules("swanlab", place=place, extra="swanlab")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the numbers to the curves of the experiment."""
        values: dict[str, Any] = dict(scalars)
        self._swanlab.log(values, step=step)

    def close(self) -> None:
        """Sends what is left."""
        self._swanlab.finish()
