"""`ToolBox`: calls tools for many episodes at once; whatever goes wrong becomes a message to the model."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf.core.agents.own_thread import in_own_thread
from rlinf.core.agents.schema import ArgumentError, check_arguments
from rlinf.core.agents.tools import Tool, ToolError, ToolLimits, awaited, result_text
from rlinf.core.errors import ConfigError, did_you_mean, error_text
from rlinf.core.language.tool_calls import ToolCall, ToolResult


@dataclass(slots=True)
class _Entry:
    """A tool with its limits, and what is known of it."""

    tool: Tool
    limits: ToolLimits
    kept: OrderedDict[str, ToolResult] = field(default_factory=OrderedDict[str, ToolResult])
    elsewhere: Callable[[ToolCall], Awaitable[ToolResult]] | None = None
    """Makes the call in another process, which keeps the limits."""
    places: asyncio.Semaphore | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def place(self) -> asyncio.Semaphore | None:
        """The places of the loop that runs now; another loop, as in the next test, begins anew."""
        if self.limits.max_concurrent is None:
            return None
        loop = asyncio.get_running_loop()
        if self.places is None or self.loop is not loop:
            self.places, self.loop = asyncio.Semaphore(self.limits.max_concurrent), loop
        return self.places


class ToolBox:
    """Some tools with their limits.

    Args:
        tools: each with what it may take.

    Raises:
        ConfigError: two have one name.
    """

    def __init__(self, tools: Sequence[Tool | tuple[Tool, ToolLimits]] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        for each in tools:
            tool, limits = each if isinstance(each, tuple) else (each, ToolLimits())
            if tool.name in self._entries:
                raise ConfigError("tools", f"two of them are called '{tool.name}'", "Give one of them another name.")
            self._entries[tool.name] = _Entry(tool, limits)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in order."""
        return tuple(entry.tool for entry in self._entries.values())

    def only(self, names: Collection[str]) -> ToolBox:
        """Those of these names; limits, places and what was answered before are shared with this box."""
        return self._of({name: entry for name, entry in self._entries.items() if name in names})

    def bound(self, name: str, function: Callable[..., Any]) -> ToolBox:
        """The same, in which one tool runs another function; the others are shared with this box.

        The limits of the tool hold for this box alone: a call of it that waits for calls of the same name in other boxes, as where
        agents have agents, never waits for a place that it takes itself.

        Args:
            name: of one of the tools.
            function: takes the same arguments.
        """
        entry = self._entries[name]
        return self._of({**self._entries, name: _Entry(replace(entry.tool, function=function), entry.limits)})

    def elsewhere(self, make: Callable[[ToolCall], Awaitable[ToolResult]]) -> ToolBox:
        """The same, whose calls are made in another process; calls that don't fit a tool are answered here.

        Timeouts, places, retries and caches are those of the box in that process. A tool that is `bound` afterwards runs here.

        Args:
            make: makes a call whose arguments fit the tool; never raises for what the tool did.
        """
        return self._of({name: _Entry(entry.tool, entry.limits, elsewhere=make) for name, entry in self._entries.items()})

    def keeps(self, name: str) -> bool:
        """Whether answers of a tool are kept, so that its calls should come to the same box."""
        return self._entries[name].limits.cache > 0

    @staticmethod
    def _of(entries: dict[str, _Entry]) -> ToolBox:
        box = ToolBox()
        box._entries = entries
        return box

    async def call(self, call: ToolCall) -> ToolResult:
        """What a model is told of its call; never raises for what the model or the tool did."""
        if call.fault:
            return ToolResult(text=f"error: {call.fault}", outcome="malformed", name=call.name)
        entry = self._entries.get(call.name)
        if entry is None:
            hint = did_you_mean(call.name, list(self._entries), label="Tools")
            return ToolResult(text=f"error: no tool named '{call.name}'. {hint}", outcome="unknown", name=call.name)
        try:
            arguments = check_arguments(call.arguments, entry.tool.parameters)
        except ArgumentError as error:
            return ToolResult(text=f"error: {error}", outcome="arguments", name=call.name)
        if entry.elsewhere is not None:
            return await entry.elsewhere(ToolCall(name=call.name, arguments=arguments))
        # As text: arguments may be lists and mappings, which can't be keys, and their order says nothing.
        key = json.dumps(arguments, sort_keys=True, default=str) if entry.limits.cache else ""
        if key in entry.kept:
            entry.kept.move_to_end(key)
            return replace(entry.kept[key], cached=True)
        result = await self._answered(entry, arguments)
        result = replace(result, text=_shortened(result.text, entry.limits.max_response_length))
        # What failed may go well the next time.
        if entry.limits.cache and result.outcome == "ok":
            entry.kept[key] = result
            if len(entry.kept) > entry.limits.cache:
                entry.kept.popitem(last=False)
        return result

    async def call_all(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """The results of several calls, which run at the same time."""
        return tuple(await asyncio.gather(*map(self.call, calls)))

    async def _answered(self, entry: _Entry, arguments: Mapping[str, Any]) -> ToolResult:
        name, limits = entry.tool.name, entry.limits
        deadline = asyncio.timeout(limits.timeout_s)
        try:
            async with deadline:
                return ToolResult(text=await _retried(entry, arguments), name=name)
        except ToolError as error:
            return ToolResult(text=f"error: {error}", outcome="error", name=name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a tool raises is an answer to the model)
            # The tool may raise a TimeoutError of its own, such as a socket's.
            if deadline.expired():
                text = f"error: '{name}' did not answer within {limits.timeout_s:g} s"
                return ToolResult(text=text, outcome="timeout", name=name)
            return ToolResult(text=f"error: {error_text(error)}", outcome="error", name=name)


def _shortened(text: str, most: int) -> str:
    """A text of so many characters at most and what is said of those left out; tokenising a huge one would hold up all episodes."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end]}\n[{len(text) - most} characters are left out]\n{text[len(text) - end :]}"


async def _retried(entry: _Entry, arguments: Mapping[str, Any]) -> str:
    for left in range(entry.limits.retries, -1, -1):
        try:
            return result_text(await _placed(entry, arguments))
        except ToolError:
            raise
        except (Exception, SystemExit):
            if not left:
                raise
    raise AssertionError("unreachable")


async def _placed(entry: _Entry, arguments: Mapping[str, Any]) -> object:
    """One run of a tool, in a place of its own where they are limited."""
    tool, places = entry.tool, entry.place()
    if places is None:
        return await _run(tool, arguments, None)
    # The call's own time (`timeout_s`) runs meanwhile.
    await places.acquire()
    loop = asyncio.get_running_loop()
    # Who must leave before another call begins: whoever awaits the result, and the thread, which goes on when time is over.
    inside = 1 if _on_loop(tool) else 2

    def leave() -> None:
        nonlocal inside
        inside -= 1
        if not inside:
            places.release()

    def left() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(leave)

    try:
        return await _run(tool, arguments, left)
    finally:
        leave()


async def _run(tool: Tool, arguments: Mapping[str, Any], left: Callable[[], None] | None) -> object:
    if _on_loop(tool):
        return await awaited(tool.function(**arguments))
    # A tool that hangs must neither keep others waiting nor the process from ending.
    value = await in_own_thread(lambda: tool.function(**arguments), name=f"tool {tool.name}", left=left)
    return await awaited(value)


def _on_loop(tool: Tool) -> bool:
    """Whether its calls need no thread."""
    return tool.inline or inspect.iscoroutinefunction(tool.function)
