"""Schemas from signatures, arguments that don't fit, and what a model is told of a call."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Literal

import pytest

from rlinf.core.agents import Tool, ToolBox, ToolCall, ToolError, ToolLimits, tool
from rlinf.core.agents.schema import ArgumentError, check_arguments, signature_schema
from rlinf.core.errors import ConfigError


def search(query: str, k: int = 3, *, kind: Literal["web", "news"] = "web", tags: list[str] | None = None) -> list[str]:
    """Finds pages.

    Slowly.

    Args:
        query: what is looked for: words,
            or a sentence.
        k: how many.

    Returns:
        Their titles.
    """
    return [f"{query} {n}" for n in range(k)]


def test_the_schema_of_a_function() -> None:
    found = Tool.of(search)
    assert (found.name, found.description) == ("search", "Finds pages. Slowly.")
    assert found.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what is looked for: words, or a sentence."},
            "k": {"type": "integer", "description": "how many."},
            "kind": {"enum": ["web", "news"]},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def untyped(x):  # type: ignore[no-untyped-def]
    """Does something."""


def strange(x: threading.Thread) -> None:
    """Does something."""


def greedy(*x: int) -> None:
    """Does something."""


@pytest.mark.parametrize(
    ("function", "said"),
    [(untyped, "'x' has no type"), (strange, "parameter 'x': expected a type that JSON has"), (greedy, "named parameters")],
)
def test_what_can_be_no_tool_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Tool.of(function)


def test_a_function_without_a_docstring_is_refused() -> None:
    with pytest.raises(ConfigError, match="docstring"):
        Tool.of(lambda: 1, name="one")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"query": "a", "k": 2, "kind": "news", "tags": ["x"]}, ""),
        ({"query": "a", "k": 2.0, "tags": None}, ""),
        ({}, "missing argument 'query'; expected 'query', 'k', 'kind', 'tags'"),
        ({"query": 1}, "argument 'query': expected a string, found 1"),
        ({"query": "a", "k": "2"}, "argument 'k': expected an integer, found '2'"),
        ({"query": "a", "k": True}, "argument 'k': expected an integer, found True"),
        ({"query": "a", "k": 2.5}, "argument 'k': expected an integer, found 2.5"),
        ({"query": "a", "kind": "tv"}, "argument 'kind': expected one of 'web', 'news', found 'tv'"),
        ({"query": "a", "tags": [1]}, r"argument 'tags\[0\]': expected a string, found 1"),
        ({"query": "a", "tags": "x"}, "argument 'tags': expected a list or null, found 'x'"),
        ({"query": "a", "n": 1}, "unknown argument 'n'"),
        ("a", "expected the arguments as an object, found 'a'"),
    ],
)
def test_arguments_are_checked(arguments: Any, said: str) -> None:
    schema = signature_schema(search)
    if said:
        with pytest.raises(ArgumentError, match=said):
            check_arguments(arguments, schema)
    else:
        assert check_arguments(arguments, schema) == arguments


def test_whole_numbers_arrive_as_such() -> None:
    @tool
    def many(k: int, sizes: list[int], more: dict[str, int], shares: list[float], mixed: int | str = 1) -> str:
        """Shows them."""
        return repr((k, sizes, more, shares, mixed))

    given: dict[str, Any] = {"k": 2.0, "sizes": [1.0, 2], "more": {"a": 3.0}, "shares": [1.0], "mixed": 4.0}
    assert ask(ToolBox([many]), "many", **given) == ("ok", "(2, [1, 2], {'a': 3}, [1.0], 4)")
    assert given["sizes"] == [1.0, 2]


def ask(box: ToolBox, name: str, **arguments: Any) -> tuple[str, str]:
    result = asyncio.run(box.call(ToolCall(name=name, arguments=arguments)))
    return result.outcome, result.text


def fails(kind: str) -> str:
    """Fails."""
    if kind == "told":
        raise ToolError("not so")
    raise KeyError("x")


def test_whatever_goes_wrong_is_a_message() -> None:
    box = ToolBox([Tool.of(search), Tool.of(fails)])
    assert ask(box, "search", query="a", k=2) == ("ok", '["a 0", "a 1"]')
    assert ask(box, "serch", query="a") == ("unknown", "error: no tool named 'serch'. Did you mean 'search'? Tools: fails, search.")
    assert ask(box, "search", q="a")[0] == "arguments"
    assert ask(box, "fails", kind="told") == ("error", "error: not so")
    assert ask(box, "fails", kind="bug") == ("error", "error: KeyError: 'x'")
    malformed = asyncio.run(box.call(ToolCall(name="", fault="no JSON")))
    assert (malformed.outcome, malformed.text) == ("malformed", "error: no JSON")


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(("error", "text"), [(SystemExit(3), "SystemExit: 3"), (StopIteration("none"), "StopIteration")])
def test_a_tool_that_ends_the_program_or_an_iteration_only_fails(inline: bool, error: BaseException, text: str) -> None:
    @tool(inline=inline)
    def ends(x: int) -> int:
        """Ends."""
        raise error

    outcome, said = ask(ToolBox([(ends, ToolLimits(timeout_s=5.0))]), "ends", x=1)
    assert outcome == "error"
    assert text in said


def test_an_error_of_python_is_retried_and_an_answer_is_not() -> None:
    calls: list[str] = []

    @tool
    def flaky(kind: str) -> int:
        """Works the third time."""
        calls.append(kind)
        if kind == "told":
            raise ToolError("no")
        if len(calls) < 3:
            raise OSError("gone")
        return len(calls)

    box = ToolBox([(flaky, ToolLimits(retries=2))])
    assert ask(box, "flaky", kind="x") == ("ok", "3")
    assert ask(box, "flaky", kind="told") == ("error", "error: no")
    assert calls == ["x", "x", "x", "told"]


def test_an_end_of_time_that_is_the_tool_s_own_is_an_error_like_others() -> None:
    calls: list[int] = []

    @tool(inline=True)
    def late(x: int) -> int:
        """Asks a server."""
        calls.append(x)
        raise TimeoutError("the server said nothing")

    assert ask(ToolBox([(late, ToolLimits(retries=2))]), "late", x=1) == ("error", "error: TimeoutError: the server said nothing")
    assert calls == [1, 1, 1]


def test_a_tool_that_hangs_keeps_its_place_and_nobody_waits_for_ever() -> None:
    release, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    @tool
    def hangs(x: int) -> int:
        """Hangs."""
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        release.wait(30)
        with lock:
            running[0] -= 1
        return x

    async def all_of_them() -> list[str]:
        box = ToolBox([(hangs, ToolLimits(timeout_s=0.05, max_concurrent=2))])
        results = await box.call_all([ToolCall(name="hangs", arguments={"x": n}) for n in range(4)])
        until = time.monotonic() + 60
        while running[0] < 2 and time.monotonic() < until:  # a thread may begin later than its caller gives it up
            await asyncio.sleep(0.001)
        release.set()
        return [result.outcome for result in results]

    assert asyncio.run(all_of_them()) == ["timeout"] * 4
    assert most[0] == 2


def test_answers_are_kept_and_errors_are_not() -> None:
    calls: list[int] = []

    @tool(inline=True)
    def square(x: int) -> int:
        """Squares."""
        calls.append(x)
        if x < 0:
            raise ToolError("negative")
        return x * x

    box = ToolBox([(square, ToolLimits(cache=2))])
    assert [ask(box, "square", x=x)[1] for x in (2, 2, 3, 2, 4, 3, -1, -1)] == [
        *("4", "4", "9", "4", "16", "9", "error: negative", "error: negative")
    ]
    assert calls == [2, 3, 4, 3, -1, -1]  # 3 was the one asked for longest ago when 4 came


def test_async_functions_are_tools() -> None:
    @tool(name="later")
    async def slow(x: int) -> int:
        """Waits."""
        await asyncio.sleep(0)
        return x + 1

    assert ask(ToolBox([(slow, ToolLimits(max_concurrent=1))]), "later", x=1) == ("ok", "2")


def test_what_returns_an_awaitable_keeps_its_place_until_that_is_done() -> None:
    running, most = [0], [0]

    async def work(x: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        # Others that had a place would begin meanwhile.
        for _ in range(3):
            await asyncio.to_thread(lambda: None)
        running[0] -= 1
        return x

    @tool
    def begun(x: int) -> Any:
        """Begins."""
        return work(x)

    box = ToolBox([(begun, ToolLimits(max_concurrent=1))])
    results = asyncio.run(box.call_all([ToolCall(name="begun", arguments={"x": n}) for n in range(6)]))
    assert [result.text for result in results] == list("012345")
    assert most[0] == 1


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("abcde", "abcde"),
        ("abcdef", "abc\n[1 characters are left out]\nef"),
        ("ab" + "x" * 10**6 + "cde", "abx\n[1000000 characters are left out]\nde"),
    ],
)
def test_of_an_answer_that_is_too_long_the_middle_is_left_out(said: str, read: str) -> None:
    def says() -> str:
        """Says."""
        return said

    def fails() -> str:
        """Fails."""
        raise ToolError(said)

    box = ToolBox([(Tool.of(says), ToolLimits(max_response_length=5)), (Tool.of(fails), ToolLimits(max_response_length=12))])
    assert asyncio.run(box.call(ToolCall(name="says"))).text == read
    failed = asyncio.run(box.call(ToolCall(name="fails")))
    assert (failed.text.startswith("error"), failed.outcome) == (True, "error")
    assert len(failed.text) < 60
    with pytest.raises(ConfigError, match="max_response_length"):
        ToolLimits(max_response_length=0)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="'search'"):
        ToolBox([Tool.of(search), Tool.of(search)])
