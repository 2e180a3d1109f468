"""Which tools a model has and how it calls them: what learning by reinforcement and from examples share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlinf.core.agents import HasTools, Tool, ToolBox, ToolConfig, ToolFormat, ToolLimits
from rlinf.core.agents.rendering import with_instructions
from rlinf.core.language.problems import Problem
from rlinf.core.registry import TOOL_FORMATS, TOOLS
from rlinf.runners.config.schema import chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSection(ToolLimits):
    """An entry of `agent.tools`: the tool, what it may take, and its own fields."""

    type: str
    """A registered tool, or `module:attr` of a typed function."""
    tool: ToolConfig = field(metadata=chosen(TOOLS, "type"))
    """Its own fields."""

    def built(self) -> tuple[Tool, ...]:
        """The tool, or all that it stands for."""
        return tuple(self.tool.build_all()) if isinstance(self.tool, HasTools) else (self.tool.build(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormatSection:
    """`agent.tool_format`; it also holds the format's own fields."""

    type: str = "hermes"
    """A registered format of tool calls."""
    format: ToolFormat = field(metadata=chosen(TOOL_FORMATS, "type"))
    """Its own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseConfig:
    """Which tools a model has, and how it calls them."""

    tools: tuple[ToolSection, ...] = ()
    """What the model can call."""
    tool_format: ToolFormatSection
    """How it writes calls."""

    def prepared(self, problem: Problem, tools: Sequence[Tool] | None = None) -> Problem:
        """The problem, whose messages say which tools there are; a text is left as it is.

        Args:
            problem: as the task has it.
            tools: those that are told of; None for all.
        """
        if isinstance(problem.prompt, str):
            return problem
        told = self.tool_format.format.instructions(self.built() if tools is None else tools)
        return replace(problem, prompt=with_instructions(problem.prompt, told)) if told else problem

    def built(self) -> tuple[Tool, ...]:
        """The tools."""
        return tuple(tool for section in self.tools for tool in section.built())

    def toolbox(self) -> ToolBox:
        """The tools with their limits; two of one name are refused.

        Raises:
            ConfigError: two have one name.
        """
        return ToolBox([(tool, section) for section in self.tools for tool in section.built()])
