"""vLLM as a server, over its own HTTP interface."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, cast

from torch import Tensor

from rlinf.core.errors import RLinfError
from rlinf.engines.generation._engine import Asked, Piece
from rlinf.engines.generation._served import command_line
from rlinf.engines.generation._served_engine import Model, ServedEngine, serve
from rlinf.engines.generation._vllm import engine_arguments, environment, last_words, sampling_arguments

if TYPE_CHECKING:
    from rlinf.engines.generation.vllm import VLLMGeneratorConfig


async def start_server(config: VLLMGeneratorConfig, model: Model) -> ServedEngine:
    """A server that was started, or the one that `base_url` names, with the policy's weights."""

    def command(port: int) -> list[str]:
        arguments = {**engine_arguments(config, model), "host": "127.0.0.1", "port": port, "enable_scale_out": True}
        return [config.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server", *command_line(arguments)]

    env = {**environment(config, cpu=True), "VLLM_SERVER_DEV_MODE": "1"}  # those for a CPU mean nothing to a GPU
    return await serve(config, model, VLLMServerEngine, command, env)


class VLLMServerEngine(ServedEngine):
    """An `Engine` over a server of vLLM."""

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

    def last_words(self) -> str:
        """Faults in the log, and its end."""
        return last_words(self._server.last_words())
