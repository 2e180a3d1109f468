"""The configuration of the generator that needs nothing but transformers; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.core.config import expect_at_least
from rlinf.core.registry import require_modules

if TYPE_CHECKING:
    from rlinf.engines.generation.hf._generator import HFGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class HFGeneratorConfig:
    """Continuous batching over any causal language model of transformers, by name: `rollout.rollout_backend: hf`."""

    max_running_requests: int = 64
    """Completions that are written at the same time; others wait."""
    max_batch_tokens: int = 2048
    """Tokens of prompts, with padding, that are read in one pass between two passes that write; a longer prompt is read alone."""
    max_model_len: int | None = None
    """The longest prompt and response together; None for what the network was made for."""
    device: str | None = None
    """Where it computes, as torch names it; None for the accelerator that the process sees, or else where the policy is: on the CPU
    also for a worker that was placed on no accelerator, or on virtual ones."""

    def __post_init__(self) -> None:
        expect_at_least("max_running_requests", self.max_running_requests, 1)
        expect_at_least("max_batch_tokens", self.max_batch_tokens, 1)
        expect_at_least("max_model_len", self.max_model_len, 2)

    def check(self, place: str) -> None:
        """Refuses a machine without transformers."""
        require_modules("transformers", place=place, extra="rlinf-engines[hf]")

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> HFGenerator:
        """A generator with a policy's weights, on the configured device.

        Args:
            policy: a `rlinf.core.capabilities.LanguageModelPolicy`; the generator owns it from now on.
            rank: not used: completions depend on their own seeds only.
            world_size: not used.

        Raises:
            ConfigError: the policy writes no text, or the network attends in a way that the cache does not know.
            MissingExtra: transformers is not installed.
        """
        self.check("generator")
        from rlinf.engines.generation.hf._generator import HFGenerator

        return HFGenerator(self, policy)
