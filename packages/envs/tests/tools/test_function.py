"""A function, or a tool that was made of one, in a recipe."""

import pytest

from rlinf.core.agents import tool
from rlinf.core.errors import ConfigError
from rlinf.core.registry import TOOLS, register_tool


def half(x: float) -> float:
    """Halves a number.

    Args:
        x: the number.
    """
    return x / 2


@tool(inline=True)
def double(x: float) -> float:
    """Doubles a number.

    Args:
        x: the number.
    """
    return 2 * x


def bare(x: int) -> int:
    return x


def untyped(x):  # type: ignore[no-untyped-def]
    """Says nothing of what it takes."""
    return str(x)  # type: ignore[reportUnknownArgumentType]


number = 3


@pytest.mark.parametrize(("name", "inline"), [("half", False), ("double", True)])
def test_a_path_is_enough_and_may_have_another_name(name: str, inline: bool) -> None:
    built = TOOLS.build(f"{__name__}:{name}", {}, place="tools").build()
    assert (built.name, built.inline, built.function(x=4)) == (name, inline, {"half": 2, "double": 8}[name])
    renamed = TOOLS.build(f"{__name__}:{name}", {"name": "other"}, place="tools").build()
    assert (renamed.name, renamed.inline) == ("other", inline)


def test_a_tool_can_be_registered() -> None:
    register_tool("twice_for_a_test")(double)
    assert TOOLS.build("twice_for_a_test", {}, place="tools").build().function(x=1) == 2


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"^tools: expected a function at '{__name__}:number', found 3"):
        TOOLS.build(f"{__name__}:number", {}, place="tools").check("tools")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("bare", r"tool 'bare': expected a function with a docstring, found none\. Say in"),
        ("untyped", r"tool 'untyped': parameter 'x' has no type\. Annotate it"),
    ],
)
def test_a_function_that_can_not_be_a_tool_is_told_with_its_key(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.tools\[1\] \('{__name__}:{name}'\): {found}"):
        TOOLS.build(f"{__name__}:{name}", {}, place="agent.tools[1]").check("agent.tools[1]")
