"""The configuration of a client of any server that speaks OpenAI's completions; light to import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.core.config import expect_at_least, expect_seconds
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules

if TYPE_CHECKING:
    from rlinf.engines.generation._streamed import StreamedGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIGeneratorConfig:
    """Asks a server that runs elsewhere, by name: `rollout.rollout_backend: openai`.

    The server must stream `POST {base_url}/completions` for a prompt of token ids, with `seed`, `logprobs`, `stop_token_ids`,
    `top_k` and `return_token_ids`, and give `token_ids` with each part, stop token and all, as vLLM does from 0.11 on.
    """

    base_url: str
    """Such as `http://127.0.0.1:8000/v1`."""
    model: str
    """By which the server knows the model."""
    api_key_env: str | None = None
    """The environment variable that holds the key; it is read when the client is built and written nowhere. None for no key."""
    max_model_len: int | None = None
    """The longest prompt and response together; None leaves the refusal to the server."""
    tempered_logprobs: bool = False
    """Whether the server reports log-probabilities after temperature and cuts (vLLM: `--logprobs-mode processed_logprobs`). If
    not, the temperature must be 0 or 1; if so, nothing may be cut."""
    timeout_s: float = 600.0
    """Seconds that a request waits for its next token, retries included, and a caller for new weights."""
    max_retries: int = 2
    """How often a request is repeated after a lost connection, or a server that is busy or fails; what was written is kept."""
    update_path: str | None = None
    """Where the server of `base_url` takes weights over from a folder, by a `POST` with `model_path`: SGLang's is
    `/update_weights_from_disk`. None refuses `load`."""
    update_folder: str | None = None
    """A folder that this process and the server share; weights are written there before each update."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError("base_url", f"expected an address that begins with http:// or https://, found '{self.base_url}'")
        expect_seconds("timeout_s", self.timeout_s)
        expect_at_least("max_model_len", self.max_model_len, 2)
        expect_at_least("max_retries", self.max_retries, 0)
        if (self.update_path is None) != (self.update_folder is None):
            raise ConfigError(
                "update_path", "expected update_path and update_folder together, found one of them", "Set both, or none."
            )

    def check(self, place: str) -> None:
        """Refuses a machine without the library, or without the key."""
        require_modules("openai", place=place, extra="rlinf-engines[openai]")
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ConfigError(f"{place}.api_key_env", f"the environment has no {self.api_key_env}", "Set it to the server's key.")

    def build(self, policy: Any, *, rank: int = 0, world_size: int = 1) -> StreamedGenerator:
        """A client; the server is first asked when something is to be written.

        Args:
            policy: a `rlinf.core.capabilities.LanguageModelPolicy`; its network only writes weights for the server's update.
            rank: names the folder of updates.
            world_size: not used.

        Raises:
            ConfigError: there is no key.
            MissingExtra: the library is not installed.
        """
        self.check("generator")
        from rlinf.engines.generation._openai import build

        return build(self, policy, rank)
