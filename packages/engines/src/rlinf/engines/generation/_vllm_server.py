"""vLLM as a server, over its own HTTP interface."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, cast

from torch import Tensor

from rlinf.core.capabilities import Writing
from rlinf.core.errors import RLinfError
from rlinf.engines.generation._served import Server, command_line, context_length, free_port
from rlinf.engines.generation._streamed import Asked, Piece
from rlinf.engines.generation._vllm import engine_arguments, environment, last_words, sampling_arguments
from rlinf.engines.generation._weight_folder import WeightFolder

if TYPE_CHECKING:
    from rlinf.engines.generation.vllm import VLLMGeneratorConfig


async def start_server(config: VLLMGeneratorConfig, folder: WeightFolder, policy: Writing) -> VLLMServerEngine:
    """A server that was started, or the one that `base_url` names, with the policy's weights."""
    limit = context_length(config.max_model_len, policy)
    if config.base_url is None:
        port = free_port()
        own = {**environment(config, cpu=True), "VLLM_SERVER_DEV_MODE": "1"}  # those for a CPU mean nothing to a GPU
        server = await Server.start(_command(config, folder, policy, port), port=port, env=own, log=folder.log)
    else:
        server = Server(config.base_url, None)
    engine = VLLMServerEngine(server, folder, policy, limit)
    try:
        await server.up("/health")
        if config.base_url is not None:
            await engine.pause()
            await engine.update(policy.network.state_dict())
            await engine.resume()
    except BaseException:
        await engine.close()
        raise
    folder.empty()
    return engine


def _command(config: VLLMGeneratorConfig, folder: WeightFolder, policy: Writing, port: int) -> list[str]:
    arguments = {**engine_arguments(config, folder, policy), "host": "127.0.0.1", "port": port, "enable_scale_out": True}
    return [config.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server", *command_line(arguments)]


class VLLMServerEngine:
    """An `Engine` over a server of vLLM."""

    def __init__(self, server: Server, folder: WeightFolder, policy: Writing, limit: int) -> None:
        self._server, self._folder, self.limit = server, folder, limit
        self.vocabulary: int = policy.network.config.get_text_config().vocab_size

    async def stream(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Tokens as they come; closing it ends the request in the engine."""
        body = {"token_ids": asked.tokens, "sampling_params": sampling_arguments(asked), "stream": True}
        events = self._server.events("/inference/v1/generate", body)
        try:
            async for event in events:
                if "choices" not in event:
                    raise RLinfError("generate", f"the server answers {event}")
                for choice in event["choices"]:
                    scored = cast("dict[str, list[dict[str, float]]]", choice["logprobs"] or {}).get("content") or []
                    yield Piece(tokens=choice["token_ids"] or [], logprobs=[one["logprob"] for one in scored])
        finally:
            await events.aclose()

    async def pause(self) -> None:
        """Returns when no forward pass runs; requests whose connection was closed are aborted, should one still be there."""
        await self._server.post("/pause?mode=abort&clear_cache=false")

    async def resume(self) -> None:
        """Goes on."""
        await self._server.post("/resume")

    async def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Each worker of the server reads the weights from the folder."""
        self._folder.write(tensors)
        try:
            arguments = {"weights_path": str(self._folder.path)}
            await self._server.post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
        finally:
            self._folder.empty()
        answer = await self._server.post("/reset_prefix_cache")
        if not answer["success"]:
            raise RLinfError("load", "vLLM still holds its cache of prefixes, of which old weights made a part")

    async def close(self) -> None:
        """Ends a server that was started here; somebody's stays."""
        await self._server.close()
        self._folder.remove()

    def last_words(self) -> str:
        """Faults in the log, and its end."""
        return last_words(self._server.last_words())
