"""Sandboxes that several users share: one for each configuration and process, which ends with it."""

from dataclasses import dataclass, field

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.sandbox import Execution, ExecutionLimits, ExecutionResult, close_shared_sandboxes, shared_sandbox


class Echo:
    """Says what it was asked; it runs nothing."""

    def __init__(self) -> None:
        self.closed = 0

    def run(self, executions: list[Execution]) -> list[ExecutionResult]:
        return [
            ExecutionResult(reason="ok", status=0, stdout=execution.program, stderr="", wall_s=0.0, cpu_s=0.0)
            for execution in executions
        ]

    def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class EchoConfig:
    name: str
    built: list[Echo] = field(default_factory=list, compare=False)
    languages: tuple[str, ...] = ("python",)

    def check(self, place: str) -> None:
        """Nothing can be missing."""

    def build(self) -> Echo:
        self.built.append(Echo())
        return self.built[-1]


def test_equal_configurations_share_a_sandbox() -> None:
    first, again, other = EchoConfig("a"), EchoConfig("a"), EchoConfig("b")
    running = shared_sandbox(first)
    assert shared_sandbox(again) is running
    assert again.built == []
    assert shared_sandbox(other) is not running
    assert running.run([Execution(program="x")])[0].stdout == "x"
    close_shared_sandboxes()
    close_shared_sandboxes()
    assert [first.built[0].closed, other.built[0].closed] == [1, 1]
    assert shared_sandbox(first) is first.built[1]
    close_shared_sandboxes()


@pytest.mark.parametrize(
    ("key", "value"),
    [("wall_s", 0.0), ("wall_s", float("nan")), ("cpu_s", 0.0), ("memory_mb", 0), ("processes", 0), ("output_kb", 0)],
)
def test_limits_that_are_none(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        ExecutionLimits(**{key: value})
