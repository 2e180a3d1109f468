"""What the configurations of vLLM and SGLang have in common; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf.core.config import expect_at_least, expect_seconds
from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.installing import install_command, is_there
from rlinf.core.registry import require_modules


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedGeneratorConfig:
    """An engine of text that runs in processes of its own, or somewhere else."""

    base_url: str | None = None
    """A server that runs already, `http://host:port`, see the guide; it must see our folders. None starts one on this machine."""
    python: str | None = None
    """The Python that runs a server that is started, which may be of an environment of its own; None for this one."""
    tensor_parallel_size: int = 1
    """How many devices share the network, each with a part of every layer; more than 1 where it does not fit on one."""
    max_running_requests: int = 64
    """Completions that are written at the same time; others wait."""
    max_model_len: int | None = None
    """The longest prompt and response together; None for what the network was made for."""
    transfer_dir: str | None = None
    """Where weights lie on their way to the engine; None for memory if there is room, otherwise the folder for temporary files."""
    timeout_s: float = 600.0
    """Seconds that a request waits for its next token, and a caller for a pause or new weights."""
    start_timeout_s: float = 900.0
    """Seconds that the engine may take to start."""

    def __post_init__(self) -> None:
        expect_at_least("tensor_parallel_size", self.tensor_parallel_size, 1)
        expect_at_least("max_running_requests", self.max_running_requests, 1)
        expect_at_least("max_model_len", self.max_model_len, 2)
        expect_seconds("timeout_s", self.timeout_s)
        expect_seconds("start_timeout_s", self.start_timeout_s)

    def check_machine(self, engine: str, place: str, *, served: bool) -> None:
        """Refuses a machine without an engine, or without what talks to it.

        Args:
            engine: its module, and its extra.
            place: of the configuration.
            served: whether it is spoken to over HTTP.

        Raises:
            ConfigError: there is no Python where `python` points.
            MissingExtra: something is not installed; the message says how to.
        """
        if self.python is not None and not Path(self.python).is_file():
            remedy = f"Point to the Python of an environment with {engine}."
            raise ConfigError(f"{place}.python", f"no file '{self.python}'", remedy)
        cpu = f"an environment of its own, from requirements-{engine}-cpu.txt of rlinf-engines"
        if not self.base_url and not self.python and not is_there(engine):
            remedy = f"For a GPU: {install_command(f'rlinf-engines[{engine}]')}. For a CPU: {cpu}."
            raise MissingExtra(place, f"the module '{engine}' is not installed", remedy)
        if served:
            require_modules("aiohttp", place=place, extra="rlinf-engines[served]")
