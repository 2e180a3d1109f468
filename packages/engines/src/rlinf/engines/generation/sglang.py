"""The configuration of the generator over SGLang; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.engines.generation.served import ServedGeneratorConfig

if TYPE_CHECKING:
    from rlinf.engines.generation._streamed import StreamedGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangGeneratorConfig(ServedGeneratorConfig):
    """SGLang, by name: `rollout.rollout_backend: sglang`.

    It always runs in processes of its own, a server on the loopback interface, because a fault in SGLang kills the process that
    started it. Its deterministic inference is on: without it SGLang ignores seeds.
    """

    device: Literal["cuda", "cpu"] | None = None
    """Where a server that is started runs; None for a GPU if torch sees one. A CPU needs a platform plug-in, see the guide."""
    mem_fraction_static: float = 0.8
    """The part of a GPU's memory that weights and cache may take; not used on a CPU."""
    max_cached_tokens: int | None = None
    """Room of the cache in tokens; None for what the memory of a GPU gives, and 32768 on a CPU."""
    server_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `sglang.launch_server`, by the names of `ServerArgs`; True for a flag."""

    def __post_init__(self) -> None:
        ServedGeneratorConfig.__post_init__(self)
        expect_range("mem_fraction_static", self.mem_fraction_static, 0.0, 1.0, open_low=True)
        expect_at_least("max_cached_tokens", self.max_cached_tokens, 2)

    def check(self, place: str) -> None:
        """Refuses a machine without SGLang, or without what talks to it."""
        self.check_machine("sglang", place, served=True)

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> StreamedGenerator:
        """A generator with a policy's weights, which it owns; returns when the engine is up. Ports and folders are picked free.

        Raises:
            ConfigError: the policy writes no text.
            MissingExtra: SGLang is not installed.
            RLinfError: the engine died at its start; the message has the end of its log.
            DeadlineExceeded: it was not up in time.
        """
        self.check("generator")
        from rlinf.engines.generation._sglang import build

        return build(self, policy)
