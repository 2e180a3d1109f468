"""Python as a tool: what a model writes runs in a sandbox, and it reads what was printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.agents import Tool, ToolError
from rlinf.core.config.ranges import expect_range
from rlinf.core.registry import SANDBOXES
from rlinf.core.sandbox import Execution, ExecutionLimits, ExecutionResult, SandboxConfig, shared_sandbox

_ENDS: Final[Mapping[str, str]] = {
    "timeout": "it took too long",
    "memory": "it needed too much memory",
    "output": "it printed too much",
    "processes": "it started too many processes",
    "killed": "it was ended by a signal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """Python programs in a sandbox with warm workers, by name: `agent.tools: [{type: python}]`.

    Each program begins anew. The model reads what it printed; of an error its last line, which is what the model needs to mend it.
    """

    name: str = "python"
    """The name under which the model calls it."""
    sandbox: str = "process"
    """A registered sandbox; nothing else runs a model's code."""
    sandbox_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its parameters, such as `level`, the least that it must confine programs."""
    program_time_s: float = 5.0
    """Seconds that a program may take."""
    program_memory_mb: int = 512
    """MiB that it may take."""
    longest: int = 2000
    """Characters of what a model reads; the beginning and the end of longer outputs."""

    def __post_init__(self) -> None:
        expect_range("longest", self.longest, 20, 2**20)
        expect_range("program_time_s", self.program_time_s, 0.0, 86400.0, open_low=True)
        expect_range("program_memory_mb", self.program_memory_mb, 1, 2**20)

    def check(self, place: str) -> None:
        """Refuses a machine on which the sandbox can't confine programs as far as it must."""
        self._sandbox(place).check(f"{place}.sandbox_params")

    def build(self) -> Tool:
        """The tool; its sandbox starts with the first call, and is shared with whoever asks for the same one."""
        config, limits = self._sandbox("tools.python"), self._limits()

        def python(code: str) -> str:
            """Runs a Python program and says what it printed.

            Args:
                code: the whole program; it prints what you want to see.
            """
            (result,) = shared_sandbox(config).run([Execution(program=code, limits=limits)])
            if not result.ok:
                raise ToolError(self._shown(f"{result.stdout.rstrip()}\n{_reason(result)}".strip()))
            return self._shown(result.stdout.rstrip())

        return Tool.of(python, name=self.name)

    def _sandbox(self, place: str) -> SandboxConfig:
        SANDBOXES.get(self.sandbox, place=f"{place}.sandbox")  # `build` would name the key of its parameters
        return SANDBOXES.build(self.sandbox, self.sandbox_params, place=f"{place}.sandbox_params")

    def _limits(self) -> ExecutionLimits:
        return ExecutionLimits(wall_s=self.program_time_s, memory_mb=self.program_memory_mb)

    def _shown(self, text: str) -> str:
        half = self.longest // 2
        return text if len(text) <= self.longest else f"{text[:half]}…{text[-half:]}"


def _reason(result: ExecutionResult) -> str:
    """The last line of the traceback, or what ended the program."""
    lines = result.stderr.strip().splitlines()
    said = lines[-1] if lines else f"it ended with status {result.status}"
    return said if result.reason == "error" else _ENDS.get(result.reason, result.reason)
