"""The configuration of the generator over vLLM; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.engines.generation.served import ServedGeneratorConfig

if TYPE_CHECKING:
    from rlinf.engines.generation._streamed import StreamedGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMGeneratorConfig(ServedGeneratorConfig):
    """vLLM, by name: `rollout.rollout_backend: vllm`.

    vLLM computes logits. Tokens are drawn as the `hf` generator draws them: the same seed and weights give the same tokens wherever
    they are drawn, up to rounding.
    """

    mode: Literal["in_process", "server"] = "in_process"
    """"in_process" imports vLLM here, and runs its engine in a process that belongs to this one. "server" talks to it over HTTP."""
    gpu_memory_utilization: float = 0.85
    """The part of a GPU's memory that weights and cache may take; not used on a CPU."""
    cpu_cache_gib: int = 1
    """GiB of the cache on a CPU; not used on a GPU."""
    enforce_eager: bool = False
    """Whether to run without compilation and CUDA graphs: up at once, slower then."""
    engine_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `vllm.AsyncEngineArgs`, by its names."""

    def __post_init__(self) -> None:
        ServedGeneratorConfig.__post_init__(self)
        expect_range("gpu_memory_utilization", self.gpu_memory_utilization, 0.0, 1.0, open_low=True)
        expect_at_least("cpu_cache_gib", self.cpu_cache_gib, 1)
        if self.mode == "in_process" and (self.base_url or self.python):
            given = "base_url" if self.base_url else "python"
            raise ConfigError(given, "it belongs to a server, and mode is 'in_process'", "Set mode: server.")

    def check(self, place: str) -> None:
        """Refuses a machine without vLLM, or without what talks to it."""
        self.check_machine("vllm", place, served=self.mode == "server")

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> StreamedGenerator:
        """A generator with a policy's weights, which it owns; returns when the engine is up. Ports and folders are picked free.

        Raises:
            ConfigError: the policy writes no text, or vLLM does not take the arguments.
            MissingExtra: vLLM is not installed.
            RLinfError: the engine died at its start; the message has the end of its log.
            DeadlineExceeded: it was not up in time.
        """
        self.check("generator")
        from rlinf.engines.generation._vllm import build

        return build(self, policy)
