"""The configuration of the generator over vLLM; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.errors import ConfigError
from rlinf.engines.generation._refusals import refuse_machine, refuse_sizes

if TYPE_CHECKING:
    from rlinf.engines.generation._streamed import StreamedGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMGeneratorConfig:
    """vLLM, by name: `rollout.rollout_backend: vllm`.

    vLLM computes logits. Tokens are drawn as the `hf` generator draws them: the same seed and weights give the same tokens wherever
    they are drawn, up to rounding.
    """

    mode: Literal["in_process", "server"] = "in_process"
    """"in_process" imports vLLM here, and runs its engine in a process that belongs to this one. "server" talks to it over HTTP."""
    base_url: str | None = None
    """A server that runs already, `http://host:port`, see the guide; it must see our folders. None starts one on this machine."""
    python: str | None = None
    """The Python that runs a server that is started, which may be of an environment of its own; None for this one."""
    tensor_parallel_size: int = 1
    """GPUs that share the network."""
    max_running_requests: int = 64
    """Completions that are written at the same time; others wait."""
    max_model_len: int | None = None
    """The longest prompt and response together; None for what the network was made for."""
    gpu_memory_utilization: float = 0.85
    """The part of a GPU's memory that weights and cache may take; not used on a CPU."""
    cpu_cache_gib: int = 1
    """GiB of the cache on a CPU; not used on a GPU."""
    enforce_eager: bool = False
    """Whether to run without compilation and CUDA graphs: up at once, slower then."""
    engine_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `vllm.AsyncEngineArgs`, by its names."""
    transfer_dir: str | None = None
    """Where weights lie on their way to the engine; None for memory if there is room, otherwise the folder for temporary files."""
    timeout_s: float = 600.0
    """Seconds that a request waits for its next token, and a caller for a pause or new weights."""
    start_timeout_s: float = 900.0
    """Seconds that the engine may take to start."""

    def __post_init__(self) -> None:
        counts = ("tensor_parallel_size", "max_running_requests", "cpu_cache_gib")
        refuse_sizes(self, counts=counts, lengths=("max_model_len",), part="gpu_memory_utilization")
        if self.mode == "in_process" and (self.base_url or self.python):
            given = "base_url" if self.base_url else "python"
            raise ConfigError(given, "it belongs to a server, and mode is 'in_process'", "Set mode: server.")

    def check(self, place: str) -> None:
        """Refuses a machine without vLLM, or without what talks to it."""
        refuse_machine("vllm", place, base_url=self.base_url, python=self.python, served=self.mode == "server")

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> StreamedGenerator:
        """A generator with a policy's weights; returns when the engine is up.

        Args:
            policy: a `rlinf.core.capabilities.LanguageModelPolicy`; the generator owns it from now on.
            rank: not used: ports and folders are picked free.
            world_size: not used.

        Raises:
            ConfigError: the policy writes no text, or vLLM does not take the arguments.
            MissingExtra: vLLM is not installed.
            RLinfError: the engine died at its start; the message has the end of its log.
            DeadlineExceeded: it was not up in time.
        """
        self.check("generator")
        from rlinf.engines.generation._vllm import build

        return build(self, policy)
