"""Python as a tool: what a model reads of programs in a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf.core.agents import ToolBox, ToolCall
from rlinf.core.errors import ConfigError
from rlinf.core.sandbox import close_shared_sandboxes
from rlinf.envs.sandbox import ProcessSandbox
from rlinf.envs.tools import Python

LEVEL = {"level": "landlock", "workers": 2}
pytestmark = pytest.mark.skipif(
    bool(ProcessSandbox(level="landlock").refusal()), reason="this machine can't confine programs so far"
)


def read(*programs: str, **config: Any) -> list[tuple[str, str]]:
    box = ToolBox([Python(sandbox_params=LEVEL, **{"program_time_s": 60.0, **config}).build()])
    try:
        results = asyncio.run(box.call_all([ToolCall(name="python", arguments={"code": program}) for program in programs]))
    finally:
        close_shared_sandboxes()
    return [(result.outcome, result.text) for result in results]


def test_a_model_reads_what_was_printed_and_the_last_line_of_an_error() -> None:
    found = read(
        "def f(a):return a*a\nprint(f(12))",
        "print(1)\nprint(c)",
        "open('/etc/passwd')",
        "import sys; sys.exit(7)",
        "x = 1",
    )
    assert found[0] == ("ok", "144")
    assert found[1] == ("error", "error: 1\nNameError: name 'c' is not defined")
    assert found[2][0] == "error"
    assert "PermissionError" in found[2][1]
    assert found[3] == ("error", "error: it ended with status 7")
    assert found[4] == ("ok", "")


def test_long_outputs_and_endless_programs_end() -> None:
    (long,) = read("print('a' * 5000 + 'b' * 5000)", longest=20)
    (endless,) = read("while True: pass", program_time_s=1.0)
    assert long == ("ok", "a" * 10 + "…" + "b" * 10)
    assert endless == ("error", "error: it took too long")


def test_a_sandbox_that_is_not_there_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"tools\[0\]\.sandbox: no sandbox named 'docker'"):
        Python(sandbox="docker").check("tools[0]")
