"""Continuous batching over a network of transformers, deterministic."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy, VisionLanguagePolicy
from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import ShownPrompt
from rlinf.core.worker import Worker
from rlinf.engines.generation.hf._batch import Batch
from rlinf.engines.generation.hf._network import check_cache, context_of
from rlinf.engines.generation.hf._request import Request, new_request
from rlinf.engines.generation.hf.generator import HFGeneratorConfig


class HFGenerator:
    """See `HFGeneratorConfig`; a `rlinf.core.language.generation.Generator`.

    Passes run in a task of the running event loop, one between two turns of the loop, so that every call below takes effect
    between two passes. A token depends on the weights, the tokens before it, and its request's seed; on the requests beside it only
    as far as a sum depends on the order of its terms.

    Args:
        config: sizes.
        policy: a `LanguageModelPolicy`.
    """

    def __init__(self, config: HFGeneratorConfig, policy: Any) -> None:
        if not isinstance(policy, LanguageModelPolicy):
            raise ConfigError("generator", f"expected a policy that writes text, found {type(policy).__name__}", "Use causal_lm.")
        self._policy: LanguageModelPolicy | None = policy
        network = policy.network.to(_device(config.device, policy.network.device)).eval()
        if network.config._attn_implementation not in ("sdpa", "eager"):
            network.set_attn_implementation("sdpa")  # others don't know masks of rows of different lengths
        self._limit: Final = context_of(network, config.max_model_len)
        self._batch: Final = Batch(
            network,
            rows=config.max_running_requests,
            limit=self._limit,
            max_batch_tokens=config.max_batch_tokens,
            inputs=policy.network_inputs if isinstance(policy, VisionLanguagePolicy) else None,
        )
        check_cache(network, self._batch)
        self._version: int = policy.version
        self._flying: Final[dict[object, Request]] = {}
        self._waiting: list[Request] = []
        self._task: asyncio.Task[None] | None = None
        self._paused = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_length(self) -> int:
        return self._limit

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def cached_tokens(self) -> int:
        return self._batch.cached_tokens

    def memory(self) -> dict[str, int]:
        """Bytes of its weights, and of the cache at the most since this was asked last; see `rlinf.core.capabilities.HasMemory`."""
        weights = 0 if self._policy is None else sum(each.nbytes for each in self._policy.network.parameters())
        return {"parameters": weights, "cache": self._batch.largest_cache()}

    def progress(self, request_id: str) -> Sequence[int]:
        request = self._flying.get(request_id)
        return () if request is None else tuple(request.tokens)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Tensor]:
        """A completion of one prompt; see `rlinf.core.language.generation.Generator`. Its arrays are tensors on the CPU.

        Raises:
            ConfigError: the prompt is empty, too long, or has tokens that the network doesn't know; the id is in flight.
            RLinfError: a pass failed; whatever was in flight then fails with the same cause.
        """
        return await self._answer(new_request(prompt, sampling, seed=seed, request_id=request_id, partial=partial))

    async def generate_with_images(
        self,
        prompt: ShownPrompt,
        sampling: SamplingConfig,
        *,
        seed: int,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Tensor]:
        """A completion of a prompt with pictures; see `rlinf.core.capabilities.HasImages` and `generate`.

        Raises:
            ConfigError: also if the policy can't look at pictures, or the last token of the prompt shows one.
        """
        if len(prompt.at) and not isinstance(self._policy, VisionLanguagePolicy):
            found = f"a prompt with pictures for {type(self._policy).__name__}, which can't look at them"
            raise ConfigError("generate(prompt)", found, "Use vlm.")
        # The last token is read by the pass that writes, which is given no pictures.
        if len(prompt.at) and prompt.at[-1] == len(prompt.tokens) - 1:
            raise ConfigError("generate(prompt)", "the last token shows a picture", "Put text behind it.")
        return await self._answer(new_request(prompt, sampling, seed=seed, request_id=request_id, partial=partial))

    async def _answer(self, request: Request) -> Completion[Tensor]:
        self._check(request)
        if request.finish is not None:
            request.end(request.finish)
            return await request.future
        self._flying[request.id] = request
        self._waiting.append(request)
        self._wake()
        try:
            return await request.future
        finally:
            self._drop(request)

    def _check(self, request: Request) -> None:
        if self._policy is None:
            raise ConfigError("generate", "the generator is closed")
        request.check(limit=self._limit, vocabulary=self._batch.vocabulary)
        if request.id in self._flying:
            raise ConfigError("generate(request_id)", f"'{request.id}' is in flight already", "Give each request its own.")

    def abort(self, request_ids: Collection[str] | None = None) -> None:
        for name in list(self._flying) if request_ids is None else request_ids:
            request = self._flying.get(name)
            if request is not None:
                # At once, and not when its task goes on: no further pass writes for it.
                self._drop(request)
                request.end("abort")

    async def pause(self) -> None:
        """No pass runs from now on."""
        self._paused = True

    async def resume(self) -> None:
        self._paused = False
        self._wake()

    async def load(self, weights: Weights[Any]) -> None:
        """Takes over weights; requests in flight are read again with them, and go on."""
        if self._policy is None:
            raise ConfigError("load", "the generator is closed")
        self._policy.load(weights)
        self._version = weights.version
        self._batch.forget()

    async def close(self) -> None:
        """Aborts what is in flight, and lets go of weights and cache."""
        self.abort()
        self._batch.close()
        self._policy = None

    def _drop(self, request: Request) -> None:
        # After an abort the id may belong to another request already.
        if self._flying.get(request.id) is not request:
            return
        del self._flying[request.id]
        if request in self._batch.requests:
            self._batch.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _wake(self) -> None:
        if not self._paused and self._flying and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """One pass between two turns of the loop, as long as there is anything to write."""
        try:
            while self._flying and not self._paused:
                self._step()
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - a network may fail in any way, and all requests are told
            self._fail(error)

    def _step(self) -> None:
        taken, finished = self._batch.write(self._waiting, self._version)
        del self._waiting[:taken]
        for request, finish in finished:
            del self._flying[request.id]
            request.end(finish)

    def _fail(self, error: Exception) -> None:
        """Ends all that wait with the cause."""
        flying = list(self._flying.values())
        self._flying.clear()
        self._waiting.clear()
        self._batch.clear()
        problem = f"a pass for {len(flying)} requests failed: {error_text(error)}"
        for request in flying:
            # One for each: a single error that is raised in many tasks collects all their tracebacks.
            failure = RLinfError("generate", problem, "Lower rollout.max_running_requests if memory is short.")
            failure.__cause__ = error
            request.fail(failure)


def _device(named: str | None, own: torch.device) -> torch.device:
    """The named one; else the accelerator that the process sees, unless its worker was placed on none; else that of the weights."""
    worker: Worker | None = Worker.current_worker
    if named is None and worker is not None and not worker.has_device:
        return own
    seen = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device(named) if named is not None else seen or own
