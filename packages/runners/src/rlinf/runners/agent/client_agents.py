"""Agents that know nothing but an OpenAI client: any function, sync or async, that talks to the policy over HTTP.

task ──► function ──► client ──HTTP──► endpoint ──► session ──► the episode's turns and branches
           └──► answer (and reward) ──────────────────────────►
"""

from __future__ import annotations

import contextlib
import inspect
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from rlinf.core.agents import AgentTask, Episode, Generate, ServedSession
from rlinf.core.agents.own_thread import in_own_thread
from rlinf.core.errors import ConfigError
from rlinf.core.registry import AGENTS, require_modules
from rlinf.runners.agent.playing import OutOfTurns, Task

_KNOWN: Final = ("task", "client", "base_url", "api_key", "model", "session")
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The endpoint speaks plain HTTP. Made once and without certificates, which each client would otherwise read: 40 ms of CPU."""
NEVER_S: Final = 1e6
"""The endpoint has a deadline of its own, and so has the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAgent:
    """A function of yours that asks the policy through an OpenAI client, by name: `agent.workflow_type: client`.

    It takes any of these by name, and returns its answer (None for the text of the last turn), or its answer and a reward:

    | parameter | what it gets |
    |---|---|
    | `task` | `rlinf.core.agents.AgentTask`: the problem, the tools of the run |
    | `client` | an `openai.AsyncOpenAI`, or an `openai.OpenAI` for a function that is not async |
    | `base_url`, `api_key`, `model` | what any other client is pointed to |
    | `session` | `rlinf.core.agents.ServedSession`: gives turns rewards of their own |

    A function that is not async runs in a thread of its own.
    """

    agent: str
    """A registered agent, or `module:attr` of a function."""

    def check(self, place: str) -> None:
        """Refuses what is no function, asks for something unknown, or for a client that is not installed.

        Raises:
            ConfigError: the message says what it can take.
        """
        function = self._function(f"{place}.agent")
        parameters = inspect.signature(function).parameters
        unknown = [name for name, each in parameters.items() if _needed(each) and name not in _KNOWN]
        if unknown:
            remedy = f"It can take {', '.join(_KNOWN)}."
            raise ConfigError(f"{place}.agent", f"'{self.agent}' takes '{unknown[0]}', of which nothing is known", remedy)
        if "client" in parameters:
            require_modules("openai", place=place, extra="rlinf-runners[openai]")

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """Plays one episode."""
        session = await task.session(generate)
        try:
            found = await self.run(task, session.base_url, session.api_key, session.model, session)
        except Exception:
            # What the engine failed with is the cause of what the client says, and may be no fault at all.
            if isinstance(session.failure, OutOfTurns):
                return cast("Task", task).episode("turns")
            if session.failure is not None:
                raise session.failure from None
            raise
        # The function may have passed over the error that its client raised.
        if session.failure is not None and not isinstance(session.failure, OutOfTurns):
            raise session.failure
        return _episode(cast("Task", task), session, found)

    def _function(self, place: str) -> Callable[..., Any]:
        found = AGENTS.get(self.agent, place=place)
        if not callable(found):
            raise ConfigError(place, f"expected a function, found {found!r:.80}", "Name a function.")
        return found

    async def run(self, task: AgentTask, base_url: str, api_key: str, model: str, session: ServedSession | None = None) -> Any:
        """What the function returns.

        Args:
            task: what it works on.
            base_url: where its requests go.
            api_key: what its client gives.
            model: the name that it asks for.
            session: that of these requests, if they have one.
        """
        function = self._function("agent.agent")
        parameters = inspect.signature(function).parameters
        # An object may be called as a function is.
        waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        given: dict[str, Any] = {"task": task, "session": session, "model": model, "base_url": base_url, "api_key": api_key}
        client = _client(base_url, api_key, waits) if "client" in parameters else contextlib.nullcontext()
        async with client as opened:
            arguments = {name: value for name, value in {**given, "client": opened}.items() if name in parameters}
            if waits:
                return await function(**arguments)
            return await in_own_thread(lambda: function(**arguments), name=f"agent {self.agent}")


def _needed(parameter: inspect.Parameter) -> bool:
    kinds = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and parameter.kind not in kinds


@contextlib.asynccontextmanager
async def _client(base_url: str, api_key: str, waits: bool) -> AsyncGenerator[Any]:
    """An OpenAI client that repeats nothing: for the running event loop if the function `waits`, else for a thread."""
    import openai

    made: dict[str, Any] = {"base_url": base_url, "api_key": api_key, "max_retries": 0, "timeout": NEVER_S}
    if waits:
        http = openai.DefaultAsyncHttpxClient(verify=NO_TLS, timeout=NEVER_S)
        async with openai.AsyncOpenAI(**made, http_client=http) as client:
            yield client
    else:
        http = openai.DefaultHttpxClient(verify=NO_TLS, timeout=NEVER_S)
        with openai.OpenAI(**made, http_client=http) as client:
            yield client


def _episode(task: Task, session: ServedSession, found: Any) -> Episode:
    answer, reward = cast("tuple[Any, Any]", found) if isinstance(found, tuple) else (found, 0.0)
    branches = session.branches()
    last = branches[-1].turns[-1] if branches else None
    text = (last.text if last is not None else "") if answer is None else str(answer)
    cut = last is not None and last.completion.finish == "length"
    # A failure that gets here is `OutOfTurns`; others were raised by `__call__`.
    finish = "turns" if session.failure is not None else "length" if cut and answer is None else "stop"
    return task.episode(finish, answer=text, reward=float(reward))
