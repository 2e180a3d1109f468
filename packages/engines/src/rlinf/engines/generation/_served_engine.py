"""What the servers of vLLM and SGLang share as engines: how they start and end, what they say last, what memory they reserve."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.process import free_port
from rlinf.engines.generation._engine import Engine, context_length
from rlinf.engines.generation._served import Server
from rlinf.engines.generation._streamed import StreamedGenerator
from rlinf.engines.generation._weight_folder import WeightFolder
from rlinf.engines.generation.served import ServedGeneratorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What an engine is started for."""

    policy: LanguageModelPolicy
    folder: WeightFolder
    limit: int
    """The longest prompt and response together."""

    @property
    def dtype(self) -> str:
        """Of its weights, by torch's name."""
        return str(self.policy.network.dtype).removeprefix("torch.")

    @property
    def vocabulary(self) -> int:
        """Token ids are below."""
        return self.policy.network.config.get_text_config().vocab_size


def generator(
    config: ServedGeneratorConfig,
    policy: LanguageModelPolicy,
    start: Callable[[Model], Coroutine[Any, Any, Engine]],
    memory: Callable[[], dict[str, int]],
) -> StreamedGenerator:
    """A generator over an engine that is started from a folder with the policy's weights; if it does not start, nothing stays.

    Args:
        config: its settings.
        policy: whose weights it has.
        start: starts it.
        memory: what such an engine reserves; of one that ran before nobody knows.
    """
    folder = WeightFolder(policy, config.transfer_dir)
    try:
        model = Model(policy=policy, folder=folder, limit=context_length(config.max_model_len, policy.network.config))
        waits = {"timeout_s": config.timeout_s, "start_timeout_s": config.start_timeout_s}
        known = memory if config.base_url is None else dict[str, int]
        made = StreamedGenerator(start(model), policy.version, policy.network_weights, memory=known, **waits)
    except BaseException:
        folder.remove()
        raise
    # The engine has read the weights.
    folder.empty()
    return made


class ServedEngine(Engine):
    """What an engine over a server is, beside how it streams, pauses and takes over weights.

    Args:
        server: not up yet, perhaps.
        model: what it serves.
    """

    def __init__(self, server: Server, model: Model) -> None:
        self._server, self._folder = server, model.folder
        self.limit: int = model.limit
        self.vocabulary: int = model.vocabulary

    async def close(self) -> None:
        """Ends a server that was started here; one that ran before stays."""
        await self._server.close()
        self._folder.remove()

    def log_tail(self) -> str:
        return self._server.log_tail()


Made = Callable[[Server, Model], ServedEngine]


async def serve(
    config: ServedGeneratorConfig, model: Model, made: Made, command: Callable[[int], Sequence[str]], env: Mapping[str, str]
) -> ServedEngine:
    """An engine over a server that is up and has the policy's weights.

    Args:
        config: whose `base_url` names a server that runs already; without one, a server is started.
        model: what it serves.
        made: the engine over a server.
        command: starts a server on a port of the loopback interface.
        env: what its environment has beside ours.
    """
    port = free_port("127.0.0.1")
    if config.base_url is None:
        server = await Server.start(command(port), port=port, env=env, log=model.folder.log)
    else:
        server = Server(config.base_url, None)
    engine = made(server, model)
    try:
        await server.up("/health")
        # A server that ran before has weights of its own.
        if config.base_url is not None:
            await engine.pause()
            await engine.update(model.policy.network.state_dict())
            await engine.resume()
    except BaseException:
        await engine.close()
        raise
    return engine


def share_of_gpu(share: float, gpus: int) -> dict[str, int]:
    """Of an engine that takes a share of each of its GPUs for weights and cache together; {} where this process sees none."""
    if not torch.cuda.is_available():
        return {}
    # Makes a context on the GPU, a few hundred MB; this is asked in traced runs only.
    return {"cache": int(share * gpus * torch.cuda.mem_get_info(0)[1])}


def beside_weights(policy: LanguageModelPolicy, cache: int) -> dict[str, int]:
    """Of an engine that has a cache of so many bytes beside its weights."""
    return {"parameters": sum(each.nbytes for each in policy.network.parameters()), "cache": cache}


def bytes_of_token(policy: LanguageModelPolicy) -> int:
    """Of the keys and values of one token, in the type of the weights."""
    own = policy.network.config.get_text_config()
    heads = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
    width = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return 2 * own.num_hidden_layers * heads * width * policy.network.dtype.itemsize
