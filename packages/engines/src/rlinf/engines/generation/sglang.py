"""The configuration of the generator over SGLang; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlinf.engines.generation._refusals import refuse_machine, refuse_sizes

if TYPE_CHECKING:
    from rlinf.engines.generation._streamed import StreamedGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangGeneratorConfig:
    """SGLang, by name: `rollout.rollout_backend: sglang`.

    It always runs in processes of its own, a server on the loopback interface, because a fault in SGLang kills the process that
    started it. Its deterministic inference is on: without it SGLang ignores seeds.
    """

    base_url: str | None = None
    """A server that runs already, `http://host:port`, see the guide; it must see our folders. None starts one on this machine."""
    python: str | None = None
    """The Python that runs a server that is started, which may be of an environment of its own; None for this one."""
    device: Literal["cuda", "cpu"] | None = None
    """Where a server that is started runs; None for a GPU if torch sees one. A CPU needs a platform plug-in, see the guide."""
    tensor_parallel_size: int = 1
    """Devices that share the network."""
    max_running_requests: int = 64
    """Completions that are written at the same time; others wait."""
    max_model_len: int | None = None
    """The longest prompt and response together; None for what the network was made for."""
    mem_fraction_static: float = 0.8
    """The part of a GPU's memory that weights and cache may take; not used on a CPU."""
    max_cached_tokens: int | None = None
    """Room of the cache in tokens; None for what the memory of a GPU gives, and 32768 on a CPU."""
    server_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `sglang.launch_server`, by the names of `ServerArgs`; True for a flag."""
    transfer_dir: str | None = None
    """Where weights lie on their way to the engine; None for memory if there is room, otherwise the folder for temporary files."""
    timeout_s: float = 600.0
    """Seconds that a request waits for its next token, and a caller for a pause or new weights."""
    start_timeout_s: float = 900.0
    """Seconds that the engine may take to start."""

    def __post_init__(self) -> None:
        counts = ("tensor_parallel_size", "max_running_requests")
        refuse_sizes(self, counts=counts, lengths=("max_model_len", "max_cached_tokens"), part="mem_fraction_static")

    def check(self, place: str) -> None:
        """Refuses a machine without SGLang, or without what talks to it."""
        refuse_machine("sglang", place, base_url=self.base_url, python=self.python, served=True)

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> StreamedGenerator:
        """A generator with a policy's weights; returns when the engine is up.

        Args:
            policy: a `rlinf.core.capabilities.LanguageModelPolicy`; the generator owns it from now on.
            rank: not used: ports and folders are picked free.
            world_size: not used.

        Raises:
            ConfigError: the policy writes no text.
            MissingExtra: SGLang is not installed.
            RLinfError: the engine died at its start; the message has the end of its log.
            DeadlineExceeded: it was not up in time.
        """
        self.check("generator")
        from rlinf.engines.generation._sglang import build

        return build(self, policy)
