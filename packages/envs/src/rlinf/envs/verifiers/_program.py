"""The process in which an environment of the library verifiers plays; it needs that library, and nothing of ours but one file.

    python -P _program.py FILE_OF_THE_CONNECTION

    {"tasks": n, "env": …}  ►  {"tasks": [{"key": …, "data": …}, …]}                     then it ends
    {"serve": n, "env": …}  ►  {"ready": true}, and from then on, as episodes end:
    {"id": 7, "play": 3, "key": …, "base_url": …, "api_key": …, "model": …}  ►  {"id": 7, "reward": …, "answer": …}
    {"id": 7, "cancel": true}

What goes wrong is an answer, too: `{"id": 7, "error": …}`, without `id` for the environment itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rlinf.core.process import connection
else:
    # Alone, by its path: this interpreter need not have rlinf-core.
    _spec = importlib.util.spec_from_file_location("connection", sys.argv[1])
    connection = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(connection)

# None of these has types that are known where this is checked: the library wants an interpreter of its own.
web: Final[Any] = importlib.import_module("aiohttp.web")
aiohttp: Final[Any] = importlib.import_module("aiohttp")
openai: Final[Any] = importlib.import_module("openai")
vf: Final[Any] = importlib.import_module("verifiers.v1")
loaders: Final[Any] = importlib.import_module("verifiers.v1.utils.loaders")
null: Final[Any] = importlib.import_module("verifiers.v1.harnesses.null.harness")
mcp: Final[Any] = importlib.import_module("verifiers.v1.harnesses.utils.mcp")
to_wire: Final[Any] = importlib.import_module("verifiers.v1.dialects.chat").message_to_wire
SESSION: Final[str] = importlib.import_module("verifiers.v1.clients.client").SESSION_ID_HEADER

HARNESS: Final = "rlinf_chat"
"""The name under which `ChatHarness` can be chosen."""
_NEVER_S: Final = 1e6
# What belongs to one connection alone: each side of the relay has its own.
_DROPPED: Final = frozenset({"host", "authorization", "content-length", "transfer-encoding", "connection", "content-encoding"})


class ChatHarness(null.NullHarness):
    """The library's chat loop with tools, in this process: its own runs a script with uv for each episode, which installs packages.

    As the library demands, each request goes through its interception, which counts turns, stops, and records the trace.
    """

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Any) -> None:
        """Nothing has to be installed."""

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        """Asks and calls tools until an answer calls none, or the library ends the rollout."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(map(to_wire, prompt or []))
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        try:
            async with contextlib.AsyncExitStack() as stack:
                tools, dispatch, open_servers = await mcp.connect_mcp({"mcpServers": servers}, stack)
                client = await stack.enter_async_context(_client(endpoint, secret))
                offered = {"tools": tools} if tools else {}
                while True:
                    answer = await client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                    message = answer.choices[0].message
                    messages.append(message.model_dump(exclude_none=True))
                    if not message.tool_calls:
                        break
                    for call in message.tool_calls:
                        content = await _called(call, dispatch, open_servers)
                        messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": content})
        except openai.APIStatusError as error:
            # The library refuses the request after the last turn: `trace.stop_condition` then says why.
            return vf.ProgramResult(1, "", f"{type(error).__name__}: {error}")
        return vf.ProgramResult(0, "", "")


async def _called(call: Any, dispatch: Any, servers: Any) -> Any:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except json.JSONDecodeError as error:
        return f"error: the arguments are no JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    if call.function.name not in dispatch:
        return f"error: there is no tool {call.function.name!r}"
    return await mcp.call_mcp(servers, dispatch, call.function.name, arguments)


def _client(endpoint: str, secret: str) -> Any:
    # Without TLS: reading certificates takes longer than most requests.
    http = openai.DefaultAsyncHttpxClient(verify=False, timeout=_NEVER_S)
    return openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=_NEVER_S, http_client=http)


class Relay:
    """One address for all episodes, from which each request goes on to the session of its own episode.

    The library keeps a client for every address that it was ever given, each with certificates of its own: with an address for each
    episode, memory would grow without end.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[str, str]] = {}
        """Address and key by the trace's id, which the library sends with each request."""
        self.base_url = ""
        """That of the relay."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[Relay]:
        """Listens on the loopback interface."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/v1/{path:.*}", self._passed_on)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), connector=aiohttp.TCPConnector(limit=0)) as self._http:
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _passed_on(self, request: Any) -> Any:
        target = self.sessions.get(request.headers.get(SESSION, ""))
        if target is None:
            return web.json_response({"error": {"message": "the episode is over", "type": "invalid_request_error"}}, status=404)
        base_url, key = target
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _DROPPED}
        headers["Authorization"] = f"Bearer {key}"
        url = f"{base_url.rstrip('/')}/{request.match_info['path']}"
        async with self._http.request(request.method, url, data=await request.read(), headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _DROPPED}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response


class Service:
    """Plays episodes of one environment, many at a time."""

    def __init__(self, env: Any, tasks: list[Any], relay: Relay, send: Any) -> None:
        self._env, self._tasks, self._relay, self._send = env, tasks, relay, send
        self._playing: dict[int, asyncio.Task[None]] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Begins an episode, or ends one."""
        number = message["id"]
        if "cancel" in message:
            if number in self._playing:
                self._playing[number].cancel()
            return
        self._playing[number] = asyncio.get_running_loop().create_task(self._answered(number, message))

    async def _answered(self, number: int, message: dict[str, Any]) -> None:
        try:
            self._send({"id": number, **await self._played(message)})
        # A cancellation is none: nobody waits for an answer then.
        except Exception as error:  # noqa: BLE001  (whatever it is, somebody waits for an answer)
            self._send({"id": number, "error": f"{type(error).__name__}: {error}"})
        finally:
            self._playing.pop(number, None)

    async def _played(self, message: dict[str, Any]) -> dict[str, Any]:
        task = self._tasks[message["play"]]
        if task.key != message["key"]:
            return {"error": f"task {message['play']} is another one than before; load() must always give the same tasks"}
        opened: list[str] = []

        def minted(trace: Any) -> None:
            self._relay.sessions[trace.id] = (message["base_url"], message["api_key"])
            opened.append(trace.id)

        context = vf.ModelContext(model=message["model"], client=vf.EvalClientConfig(base_url=self._relay.base_url))
        try:
            (slot,) = self._env.slots(task)
            episode = await self._env.run_slot(slot, context, on_trace=minted)
        finally:
            for each in opened:
                self._relay.sessions.pop(each, None)
        if not episode.ok:
            failed = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            return {"error": f"{failed[0].type}: {failed[0].message}" if failed else "the environment says that it is not ok"}
        trained = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
        return {"reward": sum(trace.reward for trace in trained) / len(trained), "answer": trained[-1].last_reply}


def _with_defaults(config: Any, max_turns: int | None) -> Any:
    """With our chat loop for agents that have no harness of their own, on this machine, and with the run's limit of turns.

    Raises:
        ValueError: a harness would run what a model wrote on this machine, without a container.
    """
    bundled = loaders.default_harness_id(config.taskset.id)
    changes: dict[str, Any] = {}
    for name, agent in config:
        if not isinstance(agent, vf.AgentConfig):
            continue
        harness = agent.harness or (vf.HarnessConfig(id=HARNESS) if bundled == "bash" else None)
        runtime = agent.runtime if "runtime" in agent.model_fields_set else vf.SubprocessConfig()
        ident = bundled if harness is None else harness.id
        if loaders.harness_class(ident).EXECUTES_CODE and isinstance(runtime, vf.SubprocessConfig):
            found = f"the harness '{ident}' of '{name}' runs what a model wrote on this machine"
            raise ValueError(f"{found}; choose {HARNESS}, or a runtime that is a container")
        changes[name] = agent.model_copy(update={"harness": harness, "runtime": runtime, "max_turns": agent.max_turns or max_turns})
    return config.model_copy(update=changes)


async def serve(link: Any, env: Any, tasks: list[Any]) -> None:
    """Until the other side is gone."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    async with Relay().running() as relay, env.serving():
        service = Service(env, tasks, relay, link.send)

        def read() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(service.take, link.wait()[0])
            except connection.ConnectionLost:
                loop.call_soon_threadsafe(gone.set)

        threading.Thread(target=read, daemon=True, name="requests").start()
        link.send({"ready": True})
        await gone.wait()


def main() -> None:
    """One conversation with the process that started this."""
    link = connection.Connection.to_parent()
    asked, _ = link.wait()
    # By name, so that a configuration can choose it like those of the library.
    sys.modules[HARNESS] = sys.modules[__name__]
    try:
        env = loaders.load_environment(_with_defaults(loaders.resolve_env_config(asked["env"]), asked.get("max_turns")))
        tasks = list(env.taskset.take(asked.get("tasks") or asked["serve"]))
    except Exception as error:  # noqa: BLE001  (told, and refused there)
        link.send({"error": f"{type(error).__name__}: {error}"})
        return
    if "tasks" in asked:
        link.send({"tasks": [{"key": task.key, "data": task.data.model_dump(mode="json")} for task in tasks]})
    else:
        asyncio.run(serve(link, env, tasks))


__all__ = ["ChatHarness"]
if __name__ == "__main__":
    main()
