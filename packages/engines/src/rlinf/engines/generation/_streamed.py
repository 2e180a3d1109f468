"""A `Generator` over an engine that streams tokens: a loop of its own, and a version for each token.

    caller's loop ──generate()──▶ loop of the engine ──stream()──▶ engine
                                   │ pause, load: streams are ended; what was written goes on as a longer prompt

A stream that was ended gives no more tokens, so each token is known to be of the weights that were there when it came. Nothing that
old weights computed is used again, for the longer prompt is read anew. An engine that fails is broken for all, unless it says that
only one request failed (`RequestFailed`), or that it still has its old weights (`WeightSyncError`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from torch import Tensor

from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError, WeightSyncError, error_text
from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.generation._engine import Asked, Engine, RequestFailed
from rlinf.engines.generation._response import Response

_END_S: Final = 20.0
"""Seconds for what ends with the loop: more than a server is given to end."""
T = TypeVar("T")
Tensors = Callable[[Weights[Any]], Mapping[str, Tensor]]
"""Makes of a policy's weights what an engine takes over; raises a `WeightSyncError` if they don't fit."""


class StreamedGenerator:
    """A `rlinf.core.language.generation.Generator`; see the top of this file. Any event loop may call it.

    Args:
        start: makes the engine, in the generator's own loop.
        version: that of the engine's weights.
        tensors: makes of other weights what the engine takes over.
        timeout_s: how long a request waits for its next token, and a caller for anything else.
        start_timeout_s: how long the engine may take to start.
        memory: what it takes of its device, by part; {} if nobody knows.

    Raises:
        DeadlineExceeded: it took longer.
    """

    def __init__(
        self,
        start: Coroutine[Any, Any, Engine],
        version: int,
        tensors: Tensors,
        *,
        timeout_s: float,
        start_timeout_s: float,
        memory: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._memory: Final = memory
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="generator", daemon=True)
        self._thread.start()
        try:
            engine = asyncio.run_coroutine_threadsafe(start, self._loop).result(timeout=start_timeout_s)
        except BaseException as error:
            self._end_loop()
            # Not its subclasses: a `DeadlineExceeded` of the engine's own says more.
            if type(error) is TimeoutError:
                found = f"the engine did not start within {start_timeout_s:g} s"
                raise DeadlineExceeded("generator", found, "Raise rollout.start_timeout_s.") from error
            raise
        self._limit: Final = engine.limit
        self._streams: Final = _Streams(engine, version, tensors, timeout_s)
        self._closed = False

    @property
    def version(self) -> int:
        return self._streams.version

    @property
    def context_length(self) -> int | None:
        """Tokens of the longest prompt and response together; None if the engine sets no bound."""
        return None if self._limit == sys.maxsize else self._limit

    @property
    def in_flight(self) -> int:
        return len(self._streams.flying)

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values the engine holds for requests in flight, at most."""
        return self._streams.cached_tokens

    def memory(self) -> dict[str, int]:
        """Bytes that the engine was told to reserve; see `rlinf.core.capabilities.HasMemory`."""
        return self._memory()

    def progress(self, request_id: str) -> Sequence[int]:
        request = self._streams.flying.get(request_id)
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
            RLinfError: the engine failed; the message has the end of its log.
            DeadlineExceeded: no token came in time.
        """
        return await self._call(self._streams.generate(prompt, sampling, seed, request_id, partial))

    def abort(self, request_ids: Collection[str] | None = None) -> None:
        if not self._closed:
            # Twice, so that it comes after the first step of every `generate` that was called before.
            named = None if request_ids is None else list(request_ids)
            self._loop.call_soon_threadsafe(self._loop.call_soon, self._streams.abort, named)

    async def pause(self) -> None:
        await self._call(self._streams.pause())

    async def resume(self) -> None:
        await self._call(self._streams.resume())

    async def load(self, weights: Weights[Any]) -> None:
        """Takes over weights; requests in flight are read again with them, and go on.

        Raises:
            WeightSyncError: the policy has no such weights, or the engine refused them; the old ones stay.
            RLinfError: the engine did not take them; it can't be used any more, for nobody knows what it holds.
        """
        await self._call(self._streams.load(weights))

    async def close(self) -> None:
        """Aborts what is in flight, and ends the engine's processes."""
        if self._closed:
            return
        try:
            await self._call(self._streams.close())
        finally:
            self._closed = True
            self._end_loop()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            # A coroutine that is dropped without it warns that it was never awaited.
            work.close()
            raise ConfigError("generator", "the generator is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _end_loop(self) -> None:
        with contextlib.suppress(TimeoutError):  # what blocks the loop is not waited for
            asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result(timeout=_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_END_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end_tasks(self) -> None:
        # One may be a start that took too long: cancelled, it ends its server, which would keep its memory.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class _Streams:
    """The state of a generator, touched in the engine's loop alone."""

    def __init__(self, engine: Engine, version: int, tensors: Tensors, timeout_s: float) -> None:
        self._engine, self._tensors, self._timeout_s = engine, tensors, timeout_s
        self.version = version
        self.flying: Final[dict[object, Response]] = {}
        self._tasks: Final[dict[Response, asyncio.Task[None]]] = {}
        self._callers: Final[set[asyncio.Task[Any]]] = set()
        self._calls: Final = asyncio.Lock()
        self._held = False
        """Whether the engine stands, and requests wait here."""
        self._paused = False
        """Whether a caller wants that."""
        self._broken: RLinfError | None = None

    @property
    def cached_tokens(self) -> int:
        return sum(len(request.prompt) + len(request.tokens) for request in list(self._tasks))

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingConfig, seed: int, request_id: str | None, partial: Completion[Any] | None
    ) -> Completion[Tensor]:
        request = Response.asked(prompt, sampling, seed=seed, request_id=request_id, partial=partial)
        self._refuse_if_broken()
        request.check(limit=self._engine.limit, vocabulary=self._engine.vocabulary)
        if request.finish is not None:
            request.end(request.finish)
            return await request.future
        if request.id in self.flying:
            raise ConfigError("generate(request_id)", f"'{request.id}' is in flight already", "Give each request its own.")
        self.flying[request.id] = request
        caller = cast("asyncio.Task[Any]", asyncio.current_task())
        self._callers.add(caller)
        self._start(request)
        try:
            return await request.future
        finally:
            # After an abort the id may belong to another request already.
            if self.flying.get(request.id) is request:
                del self.flying[request.id]
            await self._cut([request])
            self._callers.discard(caller)

    def abort(self, request_ids: Iterable[str] | None) -> None:
        for name in list(self.flying) if request_ids is None else request_ids:
            request = self.flying.pop(name, None)
            if request is not None:
                request.end("abort")

    async def pause(self) -> None:
        async with self._calls:
            self._paused = True
            await self._hold()

    async def resume(self) -> None:
        async with self._calls:
            self._paused = False
            await self._release()

    async def load(self, weights: Weights[Any]) -> None:
        async with self._calls:
            self._refuse_if_broken()
            # Before the streams are ended, so that weights that don't fit disturb nobody.
            tensors = self._tensors(weights)
            await self._hold()
            try:
                await self._in_time("new weights", self._engine.update(tensors))
                self.version = weights.version
            except WeightSyncError:
                raise
            except asyncio.CancelledError as error:
                self._break("load", error)  # nobody knows which weights it has
                raise
            except Exception as error:
                raise self._break("load", error) from error
            finally:
                if not self._paused and self._broken is None:
                    await self._release()

    async def close(self) -> None:
        self.abort(None)
        await self._cut(list(self._tasks))
        await self._in_time("its end", self._engine.close())
        if self._callers:
            await asyncio.wait(self._callers, timeout=self._timeout_s)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _hold(self) -> None:
        """Ends the streams, and waits until no forward pass runs."""
        if not self._held:
            # First, so that no stream begins while the others are ended.
            self._held = True
            await self._cut(list(self._tasks))
            await self._in_time("a pause", self._engine.pause())

    async def _release(self) -> None:
        if self._held:
            await self._in_time("the end of a pause", self._engine.resume())
            self._held = False
            for request in self.flying.values():
                self._start(request)

    def _start(self, request: Response) -> None:
        if not self._held:
            self._tasks[request] = asyncio.get_running_loop().create_task(self._write(request))

    async def _cut(self, requests: Iterable[Response]) -> None:
        """Ends the streams of requests, which can go on later."""
        tasks = [task for task in (self._tasks.pop(request, None) for request in requests) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, request: Response) -> None:
        so_far = [*request.prompt, *request.tokens]
        asked = Asked(tokens=so_far, written=len(request.tokens), sampling=request.sampling, seed=request.seed)
        stream = self._engine.stream(asked)
        try:
            while request.finish is None:
                piece = await self._in_time("a token", anext(stream))
                for token, logprob in zip(piece.tokens, piece.logprobs, strict=True):
                    if request.finish is None:
                        request.add(token, logprob, self.version)
            request.end(request.finish)
        except DeadlineExceeded as error:
            request.fail(error)
        except RequestFailed as failed:
            request.fail(failed.error)
        except StopAsyncIteration:
            request.fail(RLinfError("generate", f"the engine ended a completion after {len(request.tokens)} tokens"))
        except Exception as error:  # noqa: BLE001 - an engine may fail in any way, and all requests are told
            self._break("generate", error)
        finally:
            # At once, and not when it is collected, as this ends the request in the engine.
            await stream.aclose()

    def _break(self, place: str, error: BaseException) -> RLinfError:
        """The engine can't be used any more; whoever waits is told the first cause."""
        if self._broken is None:
            problem = f"the engine failed: {error_text(error)}{self._log()}"
            self._broken = RLinfError(place, problem, "Build the generator again.")
            self._broken.__cause__ = error
        for request in self.flying.values():
            request.fail(self._broken)
        return self._broken

    def _refuse_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _in_time(self, what: str, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError as error:
            found = f"the engine did not come back with {what} within {self._timeout_s:g} s{self._log()}"
            raise DeadlineExceeded("generator", found) from error

    def _log(self) -> str:
        words = self._engine.log_tail()
        return f"\nThe end of its log:\n{words}\n" if words else ""
