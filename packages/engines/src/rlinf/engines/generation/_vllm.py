"""vLLM in this process (`AsyncLLM`, whose engine runs in a child), or as a server over its own HTTP interface."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.errors import RLinfError, error_text
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.process import log_tail
from rlinf.engines.generation._engine import Asked, Piece
from rlinf.engines.generation._served import command_line
from rlinf.engines.generation._served_engine import Model, ServedEngine, beside_weights, generator, serve, share_of_gpu
from rlinf.engines.generation._streamed import StreamedGenerator
from rlinf.engines.generation._weight_folder import WeightFolder

if TYPE_CHECKING:
    from rlinf.engines.generation.vllm import VLLMGeneratorConfig

EXTRA: Final = "rlinf"
"""The key of `SamplingParams.extra_args` that `_vllm_sampling` reads."""
_ENVIRONMENT: Final = {
    # The interface of `_vllm_sampling` is that of the first runner of models.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # A fork of a process with threads may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_CPU: Final = {
    # Engines that share a machine would all be bound to its first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # One process for the engine and its only worker.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_FAULT: Final = re.compile(r"[\w.]*(?:Error|Exception|Interrupt): .*")


def build(config: VLLMGeneratorConfig, policy: LanguageModelPolicy) -> StreamedGenerator:
    start = start_server if config.mode == "server" else start_here
    return generator(config, policy, lambda model: start(config, model), lambda: memory(config, policy))


def memory(config: VLLMGeneratorConfig, policy: LanguageModelPolicy) -> dict[str, int]:
    """What it reserves: on a GPU `gpu_memory_utilization` of it, which holds the weights, too, and on a CPU a cache beside them."""
    share = config.engine_args.get("gpu_memory_utilization", config.gpu_memory_utilization)
    return share_of_gpu(share, config.tensor_parallel_size) or beside_weights(policy, config.cpu_cache_gib << 30)


def engine_arguments(config: VLLMGeneratorConfig, model: Model) -> dict[str, Any]:
    """Arguments of `vllm.AsyncEngineArgs`, by name."""
    return {
        "model": str(model.folder.path),
        "skip_tokenizer_init": True,
        "dtype": model.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_num_seqs": config.max_running_requests,
        "max_model_len": model.limit,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enforce_eager": config.enforce_eager,
        "enable_prefix_caching": True,
        # The processor must have seen a token before it chooses the next one.
        "async_scheduling": False,
        "logprobs_mode": "processed_logits",
        "logits_processors": ["rlinf.engines.generation._vllm_sampling:SeededDraw"],
        **config.engine_args,
    }


def sampling_arguments(asked: Asked) -> dict[str, Any]:
    """Arguments of `vllm.SamplingParams`, as plain JSON; vLLM takes the one token that `_vllm_sampling` leaves."""
    s: SamplingConfig = asked.sampling
    how = {"max_new_tokens": s.max_new_tokens, "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p}
    return {
        "max_tokens": s.max_new_tokens - asked.written,
        "temperature": 0.0,
        "logprobs": 0,
        "detokenize": False,
        # Nothing but the stop tokens of the request ends it.
        "ignore_eos": True,
        "stop_token_ids": list(s.stop_token_ids),
        "extra_args": {EXTRA: {**how, "seed": asked.seed, "offset": asked.written}},
    }


def environment(config: VLLMGeneratorConfig, *, cpu: bool) -> dict[str, str]:
    """What the engine's processes should find."""
    own = {**_ENVIRONMENT, "VLLM_ENGINE_READY_TIMEOUT_S": str(int(config.start_timeout_s))}
    return own | {**_CPU, "VLLM_CPU_KVCACHE_SPACE": str(config.cpu_cache_gib)} if cpu else own


async def start_here(config: VLLMGeneratorConfig, model: Model) -> VLLMEngine:
    """The engine, up."""
    held = _Environment()
    held.set({"VLLM_LOGGING_CONFIG_PATH": str(_logging(model.folder))})  # read by the import
    try:
        vllm: Any = importlib.import_module("vllm")
        cpu: bool = importlib.import_module("vllm.platforms").current_platform.is_cpu()
        held.set(environment(config, cpu=cpu))
        arguments = vllm.AsyncEngineArgs(**engine_arguments(config, model))
        llm = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(arguments)
    except Exception as error:
        held.restore()
        found = log_summary(log_tail(model.folder.log, lines=400))
        raise RLinfError("generator", f"vLLM did not start: {error_text(error)}\n{found}\n") from error
    return VLLMEngine(llm, model, held)


class _Environment:
    """Variables that are set as long as an engine needs them, where the user has not said otherwise."""

    def __init__(self) -> None:
        self._names: Final[list[str]] = []

    def set(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if name not in os.environ:
                os.environ[name] = value
                self._names.append(name)

    def restore(self) -> None:
        for name in self._names:
            os.environ.pop(name, None)
        self._names.clear()


def _logging(folder: WeightFolder) -> Any:
    """A configuration of logging, as a file: warnings go where they went, and everything to a file of the folder, too."""
    handlers = {
        "console": {
            "class": "logging.StreamHandler",
            "level": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
            "formatter": "plain",
        },
        "file": {"class": "logging.FileHandler", "filename": str(folder.log), "formatter": "plain"},
    }
    configuration = {
        "version": 1,
        # The loggers of the program that imports vLLM stay as they are.
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(levelname)s %(asctime)s vllm[%(process)d] %(message)s"}},
        "handlers": handlers,
        "loggers": {"vllm": {"handlers": list(handlers), "level": "INFO", "propagate": False}},
    }
    path = folder.path / "logging.json"
    path.write_text(json.dumps(configuration))
    return path


def log_summary(text: str) -> str:
    """The faults that a log names, each once, then its end."""
    faults = list(dict.fromkeys(_FAULT.findall(text)))
    return "\n".join([*faults, *text.splitlines()[-6:]])


class VLLMEngine:
    """An `Engine` over `AsyncLLM`."""

    def __init__(self, llm: Any, model: Model, held: _Environment) -> None:
        self._llm: Any = llm
        self._folder, self._held = model.folder, held
        self.limit: int = model.limit
        self.vocabulary: int = model.vocabulary
        self._ids: Final = count()
        parameters: Any = importlib.import_module("vllm.sampling_params")
        self._parameters, self._delta = parameters.SamplingParams, parameters.RequestOutputKind.DELTA

    async def stream(self, asked: Asked) -> AsyncGenerator[Piece]:
        parameters = self._parameters(**sampling_arguments(asked), output_kind=self._delta)
        outputs = self._llm.generate({"prompt_token_ids": asked.tokens}, parameters, f"rlinf-{next(self._ids)}")
        try:
            async for output in outputs:
                one = output.outputs[0]
                tokens: list[int] = list(one.token_ids)
                logprobs = [found[token].logprob for token, found in zip(tokens, one.logprobs, strict=True)]
                yield Piece(tokens=tokens, logprobs=logprobs)
        finally:
            await outputs.aclose()

    async def pause(self) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Each worker reads the weights from the folder, as it did at its start."""
        self._folder.write(tensors)
        try:
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(self._folder.path)})
        finally:
            self._folder.empty()
        if not await self._llm.reset_prefix_cache():
            raise RLinfError("load", "vLLM still holds its cache of prefixes, of which old weights made a part")

    async def close(self) -> None:
        """Ends the engine's process."""
        self._llm.shutdown()
        self._llm = None
        self._held.restore()
        self._folder.remove()

    def log_tail(self) -> str:
        """Faults in the log, and its end."""
        return log_summary(log_tail(self._folder.log, lines=400))


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

    def log_tail(self) -> str:
        return log_summary(self._server.log_tail())
