"""SGLang as a server, over its own HTTP interface."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.errors import RLinfError
from rlinf.engines.generation._engine import Asked, Piece
from rlinf.engines.generation._served import Server, command_line
from rlinf.engines.generation._served_engine import (
    Model,
    ServedEngine,
    beside_weights,
    bytes_of_token,
    generator,
    serve,
    share_of_gpu,
)
from rlinf.engines.generation._streamed import StreamedGenerator

if TYPE_CHECKING:
    from rlinf.engines.generation.sglang import SGLangGeneratorConfig

_SLACK: Final = 8
"""Columns that SGLang keeps back from a request of full length."""
_CPU_TOKENS: Final = 32768
_CPU: Final = {
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "max_total_tokens": _CPU_TOKENS,
}


def build(config: SGLangGeneratorConfig, policy: LanguageModelPolicy) -> StreamedGenerator:
    return generator(config, policy, lambda model: start_server(config, model), lambda: memory(config, policy))


def memory(config: SGLangGeneratorConfig, policy: LanguageModelPolicy) -> dict[str, int]:
    """What it reserves: on a GPU `mem_fraction_static` of it, weights included, and on a CPU room for tokens beside them."""
    if _device(config) == "cuda":
        share = config.server_args.get("mem_fraction_static", config.mem_fraction_static)
        return share_of_gpu(share, config.tensor_parallel_size)
    return beside_weights(policy, (config.max_cached_tokens or _CPU_TOKENS) * bytes_of_token(policy))


async def start_server(config: SGLangGeneratorConfig, model: Model) -> ServedEngine:
    """A server that was started, or the one that `base_url` names, with the policy's weights."""
    env = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    return await serve(config, model, SGLangEngine, lambda port: _command(config, model, port), env)


def _device(config: SGLangGeneratorConfig) -> str:
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def _command(config: SGLangGeneratorConfig, model: Model, port: int) -> list[str]:
    device = _device(config)
    arguments: dict[str, Any] = {
        "model_path": str(model.folder.path),
        "host": "127.0.0.1",
        "port": port,
        "device": device,
        "skip_tokenizer_init": True,
        "skip_server_warmup": True,
        "dtype": model.dtype,
        "tp_size": config.tensor_parallel_size,
        "context_length": model.limit + _SLACK,
        "max_running_requests": config.max_running_requests,
        # Seeds count only with the first of these; the others bring each token as soon as it is there, and once.
        "enable_deterministic_inference": True,
        "sampling_backend": "pytorch",
        "incremental_streaming_output": True,
        "stream_interval": 1,
        **(_CPU if device == "cpu" else {"mem_fraction_static": config.mem_fraction_static}),
    }
    if config.max_cached_tokens is not None:
        arguments["max_total_tokens"] = config.max_cached_tokens
    return [config.python or sys.executable, "-m", "sglang.launch_server", *command_line({**arguments, **config.server_args})]


class SGLangEngine(ServedEngine):
    """An `Engine` over a server of SGLang."""

    def __init__(self, server: Server, model: Model) -> None:
        super().__init__(server, model)
        self._ids: Final = count()

    async def stream(self, asked: Asked) -> AsyncGenerator[Piece]:
        name = (
            f"rlinf-{id(self):x}-{next(self._ids)}."  # the point, because SGLang aborts every name that begins with the one given
        )
        body = {
            "rid": name,
            "input_ids": asked.tokens,
            "sampling_params": _sampling(asked),
            "return_logprob": True,
            "stream": True,
        }
        finished = False
        async with contextlib.aclosing(self._server.events("/generate", body)) as events:
            try:
                async for event in events:
                    about: dict[str, Any] = event.get("meta_info") or {}
                    reason: dict[str, Any] = about.get("finish_reason") or {}
                    if "error" in event or reason.get("type") == "abort":
                        raise RLinfError("generate", f"the server answers {event.get('error') or reason}")
                    scored: list[tuple[float, int, Any]] = about["output_token_logprobs"]
                    finished = bool(reason)
                    yield Piece(tokens=[one[1] for one in scored], logprobs=[one[0] for one in scored])
            finally:
                # A server that can't be told must not hide why; the end of the connection ends the request, too.
                with contextlib.suppress(RLinfError):
                    if not finished:
                        await self._server.post("/abort_request", {"rid": name})

    async def pause(self) -> None:
        """Returns when no forward pass runs; what is still there of requests that were closed is aborted."""
        await self._server.post("/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        await self._server.post("/continue_generation")

    async def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Each worker of the server reads the weights from the folder; its cache of prefixes is flushed."""
        self._folder.write(tensors)
        try:
            await self._succeed("/begin_weight_update", {})
            await self._succeed("/update_weights_from_disk", {"model_path": str(self._folder.path), "flush_cache": True})
            await self._succeed("/end_weight_update", {})
        finally:
            self._folder.empty()

    async def _succeed(self, path: str, body: Mapping[str, Any]) -> None:
        answer = await self._server.post(path, body)
        if not answer.get("success"):
            raise RLinfError("load", f"SGLang refuses {path}: {answer.get('message')}")


def _sampling(asked: Asked) -> dict[str, Any]:
    s = asked.sampling
    return {
        "max_new_tokens": s.max_new_tokens - asked.written,
        "temperature": s.temperature,
        # To SGLang, −1 is the whole vocabulary.
        "top_k": -1 if s.top_k is None else s.top_k,
        "top_p": s.top_p,
        "stop_token_ids": list(s.stop_token_ids),
        "ignore_eos": True,
        # The stop token belongs to the response.
        "no_stop_trim": True,
        "sampling_seed": asked.seed,
    }
