"""Formats of tool calls: what is written can be read, and what can't be read becomes a message."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlinf.core.agents import Tool, ToolCall, ToolFormat, ToolResult
from rlinf.core.errors import ConfigError
from rlinf.core.registry import TOOL_FORMATS


def search(query: str) -> str:
    """Finds a page."""
    return query


def add(x: int, y: float) -> float:
    """Adds."""
    return x + y


TOOLS = (Tool.of(search), Tool.of(add))


def form(name: str, **params: Any) -> ToolFormat:
    return TOOL_FORMATS.build(name, params, place="agent.tool_format")


@pytest.mark.parametrize("name", ["hermes", "llama", "qwen_xml", "tags"])
@pytest.mark.parametrize(
    "call", [ToolCall(name="search", arguments={"query": "Faust; by whom?"}), ToolCall(name="add", arguments={"x": 1, "y": 2.5})]
)
def test_what_is_written_is_read(name: str, call: ToolCall) -> None:
    assert form(name).parse(f"{form(name).write_calls([call])}", TOOLS) == (call,)


@pytest.mark.parametrize("name", ["hermes", "llama", "qwen_xml", "tags"])
def test_a_text_without_a_call_calls_nothing_and_tools_are_described(name: str) -> None:
    assert form(name).parse("The answer is {42}.", TOOLS) == ()
    told = form(name).instructions(TOOLS)
    assert "search" in told
    assert "Finds a page." in told
    assert form(name).instructions(()) == ""


@pytest.mark.parametrize("name", ["hermes", "llama", "qwen_xml"])
def test_several_calls_in_a_turn(name: str) -> None:
    calls = [ToolCall(name="search", arguments={"query": str(n)}) for n in range(3)]
    assert form(name).parse(form(name).write_calls(calls), TOOLS) == tuple(calls)


def test_a_tag_ends_the_turn_and_the_first_call_counts() -> None:
    assert form("tags").stops(TOOLS) == ("</search>", "</add>")
    text = "I look. <search> a </search> or <search>b</search>"
    assert form("tags").parse(text, TOOLS) == (ToolCall(name="search", arguments={"query": "a"}),)
    results = [ToolResult(text="x"), ToolResult(text="y")]
    assert (
        form("tags", result_tag="information").write_results(results) == "<information>x</information><information>y</information>"
    )
    assert form("hermes").write_results(results) == "<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>"


@pytest.mark.parametrize(
    ("name", "text", "tool", "fault"),
    [
        ("hermes", "<tool_call>{not json}</tool_call>", "", "no JSON"),
        ("hermes", '<tool_call>{"name": "search", ', "", "no end"),
        ("hermes", "<tool_call>[1]</tool_call>", "", r"found \[1\]"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "", "found no name"),
        ("hermes", '<tool_call>{"name": "search", "arguments": [1]}</tool_call>', "search", "as an object"),
        ("hermes", '<tool_call>{"name": "search", "arguments": "x"}</tool_call>', "search", "as an object"),
        ("llama", '{"name": "search", "parameters": ', "", "no JSON"),
        ("llama", "<|python_tag|>search()", "", "no JSON"),
        ("tags", "<search>who", "search", "expected </search>"),
        ("qwen_xml", "<tool_call>\n<function=search>\n<parameter=query>\nwho", "", "no end"),
        ("qwen_xml", "<tool_call><parameter=query>who</parameter></tool_call>", "", "expected a call as <function=name>"),
        (
            "qwen_xml",
            '<tool_call><function=search>{"query": "who"}</function></tool_call>',
            "search",
            "each argument as <parameter=key>",
        ),
        ("qwen_xml", "<tool_call><function=search><parameter=query>who</function></tool_call>", "search", "each argument as"),
    ],
)
def test_what_cannot_be_read_says_what_is_wrong(name: str, text: str, tool: str, fault: str) -> None:
    (call,) = form(name).parse(text, TOOLS)
    assert call.name == tool
    assert re.search(fault, call.fault), call.fault


def places(cities: list[str], days: int, note: str, exact: bool) -> str:
    """Plans a journey."""
    return note


def test_qwen_xml_as_qwen3_coder_writes_it() -> None:
    """As the template of the models documents it: a line for each tag, values of several lines, no quotes, no escapes."""
    text = """I plan it.
<tool_call>
<function=places>
<parameter=cities>
["Rom", "Köln"]
</parameter>
<parameter=days>
3
</parameter>
<parameter=note>
by train,
  "not" <b>by car</b> & 007

</parameter>
<parameter=exact>
true
</parameter>
</function>
</tool_call>"""
    arguments = {"cities": ["Rom", "Köln"], "days": 3, "note": 'by train,\n  "not" <b>by car</b> & 007\n', "exact": True}
    tools, call = (Tool.of(places),), ToolCall(name="places", arguments=arguments)
    assert form("qwen_xml").parse(text, tools) == (call,)
    assert text.endswith(form("qwen_xml").write_calls([call]))
    digits = ToolCall(name="search", arguments={"query": "007"})
    assert form("qwen_xml").parse(form("qwen_xml").write_calls([digits]), TOOLS) == (digits,), "a text stays a text"
    (odd,) = form("qwen_xml").parse("<tool_call><function=add><parameter=x>many</parameter></function></tool_call>", TOOLS)
    assert odd.arguments == {"x": "many"}, "the schema says then what it should have been"
    told = form("qwen_xml").instructions((Tool.of(add),))
    assert (
        "<function>\n<name>add</name>\n<description>Adds.</description>\n<parameters>\n<parameter>\n<name>x</name>\n<type>integer"
        in told
    )
    assert '<required>["x", "y"]</required>' in told


def test_arguments_as_a_text_of_json_are_read() -> None:
    (call,) = form("hermes").parse('<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}</tool_call>', TOOLS)
    assert call == ToolCall(name="search", arguments={"query": "a"})


def test_a_tag_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="result_tag"):
        form("tags", result_tag="<r>")


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_words_are_one_token_each_and_come_back(kind: Any) -> None:
    from rlinf.models.language import TokensConfig, _tokenizers

    words = ("<add>", "</add>")
    config = TokensConfig(kind=kind, size=300, words=words)
    tokenizer = _tokenizers.made(config, ["1+2=<add>1+2</add>#3"])
    text = "7<add>1+2</add>3"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert (len(tokens), len(tokenizer)) == (7, config.vocabulary)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
    with pytest.raises(ConfigError, match="words"):
        TokensConfig(words=("a", "a"))


def test_a_made_template_ends_what_the_assistant_said() -> None:
    from rlinf.models.language import TokensConfig, _tokenizers

    tokenizer = _tokenizers.made(TokensConfig(), ["hello"])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "user: a\nassistant: b<eos>\nuser: c\nassistant: "
