"""`Endpoint`: a policy behind OpenAI's chat completions, which records exact tokens, log-probabilities and weight versions.

    client ──HTTP──► session ──► prompt (tokens of earlier turns as they were, and what is new) ──► generator
       ◄── answer ◄──── turn ◄──────────────────────────────────────────────────────── tokens, log-probabilities, versions

| path | what it does |
|---|---|
| `POST /v1/chat/completions` | writes |
| `POST /v1/feedback` | `{"id": …, "reward": 1.0}` or `{"id": …, "accepted": true}` gives an answer its reward |
| `GET /v1/models` | the model, and the version of its weights |
| `GET /health` | whether it is there |
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import unquote

from rlinf.core.agents import ToolFormat
from rlinf.core.agents.serving import RatedAnswer, SessionConfig, Write
from rlinf.core.errors import ConfigError, error_text
from rlinf.core.language.generation import Generator
from rlinf.core.language.problems import Tokenizer
from rlinf.engines.endpoint.answering import Answering
from rlinf.engines.endpoint.chat_request import APIError, ChatRequest, Feedback, read_feedback, read_request
from rlinf.engines.endpoint.http_server import HTTPAnswer, HTTPRequest, HTTPServer
from rlinf.engines.endpoint.openai import OpenAIEndpointConfig
from rlinf.engines.endpoint.session import Session
from rlinf.engines.endpoint.sessions import Sessions, split_path

_LOG: Final = logging.getLogger(__name__)
_MODELS: Final = "/v1/models/"
_NEVER_AGAIN: Final = {"x-should-retry": "false"}
"""OpenAI's client by itself repeats what failed on the server's side, unless it is told not to; a broken engine stays so."""


class Endpoint:
    """A policy behind HTTP; see `OpenAIEndpointConfig.start`.

    Args:
        config: where, and within which bounds.
        generator: writes; the endpoint does not own it.
        tokenizer: that of the model.
        form: how the model writes calls of tools.
        session: how requests of clients without a session of their own are answered.
    """

    def __init__(
        self, config: OpenAIEndpointConfig, generator: Generator, tokenizer: Tokenizer, form: ToolFormat, session: SessionConfig
    ) -> None:
        self._config, self._tokenizer, self._form, self._generator = config, tokenizer, form, generator
        self._default: Final = session
        self._rated: Final = asyncio.Queue[RatedAnswer](config.max_rated)
        self._names: Final = (config.model, *config.aliases)
        self._key: Final = os.environ[config.api_key_env] if config.api_key_env else ""
        self._sessions: Final = Sessions(lambda name: self._session(name, self._default, None), config.max_sessions)
        self._answering: Final = Answering(generator, tokenizer, form, config.model)
        self._places: Final = asyncio.Semaphore(config.max_concurrent)
        self._waiting = 0
        self._numbers: Final = itertools.count(1)
        # Some more than may wait, so that a refusal or a health check finds a connection, too.
        most = config.max_concurrent + config.max_waiting + 64
        self._server: Final = HTTPServer(self._handle, _refusal, max_bytes=config.max_request_bytes, max_connections=most)
        self._address = ""

    @property
    def model(self) -> str:
        """The name that requests give the policy."""
        return self._config.model

    @property
    def base_url(self) -> str:
        """Where it is, for clients without a session of their own."""
        return f"{self._address}/v1"

    async def start(self, rank: int = 0) -> None:
        """Listens.

        Raises:
            ConfigError: the port is taken.
        """
        port = self._config.port + rank if self._config.port else 0
        try:
            port = await self._server.start(self._config.host, port)
        except OSError as error:
            place = f"{self._config.host}:{port}"
            raise ConfigError("endpoint.port", f"can't listen at {place}: {error}", "Choose another, or 0.") from None
        # An address of IPv6 stands in brackets within a URL.
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        self._address = f"http://{host}:{port}"

    async def rated(self) -> RatedAnswer:
        return await self._rated.get()

    async def close(self) -> None:
        """Ends it, and all requests that are under way."""
        await self._server.close()

    def open(self, name: str, config: SessionConfig, *, write: Write | None = None) -> Session:
        """A new session; see `rlinf.core.agents.serving.PolicyEndpoint`.

        Raises:
            ConfigError: the name can't be part of an address, or is taken.
        """
        session = self._session(name, config, write)
        self._sessions.open(name, session)
        return session

    def session(self, name: str) -> Session | None:
        """The session of a client that opened none, by its header or its `user`; None if nobody of that name has asked."""
        return self._sessions.find(name)

    def _session(self, name: str, config: SessionConfig, write: Write | None) -> Session:
        return Session(
            name,
            config,
            self._tokenizer,
            self._form,
            base_url=f"{self._address}/sessions/{name}/v1",
            model=self._config.model,
            api_key=self._key or "none",
            write=write,
            forget=self._sessions.forget,
        )

    async def _handle(self, request: HTTPRequest) -> HTTPAnswer:
        """The answer to a request, whatever happens."""
        try:
            return await self._route(request)
        except APIError as error:
            return _refused(error)
        except Exception as error:  # noqa: BLE001 - one request that fails must not end the others
            _LOG.exception("a request failed")
            return _refused(APIError(500, error_text(error)))

    async def _route(self, request: HTTPRequest) -> HTTPAnswer:
        if request.method == "GET" and request.path == "/health":
            return HTTPAnswer(content={"status": "ok"})
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        # In constant time: how long a comparison takes must not tell how much of a key is right.
        if self._key and not hmac.compare_digest(key.encode(), self._key.encode()):
            raise APIError(401, "a wrong key, or none", code="invalid_api_key")
        name, path = split_path(request.path)
        if request.method == "GET" and path == "/v1/models":
            return HTTPAnswer(content={"object": "list", "data": [self._described(each) for each in self._names]})
        if request.method == "GET" and path.startswith(_MODELS):
            # Clients write the slash of a name such as `org/model` as %2F.
            return HTTPAnswer(content=self._described(unquote(path.removeprefix(_MODELS))))
        if path not in ("/v1/chat/completions", "/v1/feedback"):
            raise APIError(404, f"there is nothing at {request.method} {request.path[:200]}")
        if request.method != "POST":
            raise APIError(405, f"expected POST, found {request.method}")
        # A page in a browser can send other types to this machine without asking.
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise APIError(415, "expected a body of application/json")
        chat = read_request(request.body) if path == "/v1/chat/completions" else read_feedback(request.body)
        if isinstance(chat, ChatRequest) and chat.model is not None:
            self._expect_served(chat.model)
        session = self._sessions.of(name, request.headers, chat.user, "" if self._key else key)
        return await self._in_time(chat, session) if isinstance(chat, ChatRequest) else self._reward(chat, session)

    def _described(self, name: str) -> dict[str, Any]:
        self._expect_served(name)
        return {"id": name, "object": "model", "created": 0, "owned_by": "rlinf", "version": self._generator.version}

    def _expect_served(self, name: str) -> None:
        if name not in self._names:
            found = f"the model '{name[:80]}' does not exist; here is {', '.join(map(repr, self._names))}"
            raise APIError(404, found, param="model", code="model_not_found")

    def _reward(self, feedback: Feedback, session: Session) -> HTTPAnswer:
        try:
            session.reward(feedback.reward, feedback.id)
        except ConfigError as error:
            raise APIError(404, str(error), param="id") from None
        # Whoever opened a session reads its rewards from its branches.
        if not self._sessions.is_open(session.name):
            for branch in session.rated(feedback.id):
                # Where nobody learns from ratings, the newest are kept.
                if self._rated.full():
                    self._rated.get_nowait()
                self._rated.put_nowait(RatedAnswer(branch=branch, reward=feedback.reward, session=session.name))
        return HTTPAnswer(content={"object": "feedback", "id": feedback.id, "reward": feedback.reward})

    async def _in_time(self, chat: ChatRequest, session: Session) -> HTTPAnswer:
        """An answer within the bounds on requests and time."""
        # `max_waiting` may be 0, which refuses nobody as long as a place is free.
        if self._waiting >= self._config.max_waiting and self._places.locked():
            raise APIError(429, f"{self._waiting} requests wait already", code="rate_limit_exceeded")
        begin = asyncio.get_running_loop().time()
        name = f"chatcmpl-{next(self._numbers):08d}"
        if chat.stream:
            return HTTPAnswer(events=self._events(chat, session, name, begin + self._config.request_timeout_s))
        async with self._bounded(begin + self._config.request_timeout_s):
            return HTTPAnswer(content=await self._answering.answer(chat, session, name))

    @contextlib.asynccontextmanager
    async def _bounded(self, deadline: float) -> AsyncGenerator[None]:
        """A place among those that are answered, until the deadline on the event loop's clock."""
        try:
            async with asyncio.timeout_at(deadline):
                self._waiting += 1
                try:
                    await self._places.acquire()
                finally:
                    self._waiting -= 1
                try:
                    yield
                finally:
                    self._places.release()
        except TimeoutError:
            found = f"no answer within request_timeout_s = {self._config.request_timeout_s:g} s"
            raise APIError(504, found, code="timeout") from None

    async def _events(self, chat: ChatRequest, session: Session, name: str, deadline: float) -> AsyncGenerator[Any]:
        """The pieces of an answer; a fault is the last of them, as the status has been sent."""
        try:
            pieces = contextlib.aclosing(self._answering.stream(chat, session, name))
            async with self._bounded(deadline), pieces as events:
                async for event in events:
                    yield event
        except APIError as error:
            yield error.content


def _refusal(status: int, problem: str) -> Any:
    return APIError(status, problem).content


def _refused(error: APIError) -> HTTPAnswer:
    return HTTPAnswer(status=error.status, content=error.content, headers=_NEVER_AGAIN if error.status >= 500 else {})
