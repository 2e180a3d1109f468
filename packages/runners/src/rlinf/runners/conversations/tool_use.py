"""Which tools a model has and how it calls them: what learning by reinforcement and from examples share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlinf.core.agents import HasTools, Tool, ToolBox, ToolConfig, ToolFormat, ToolLimits
from rlinf.core.agents.rendering import with_instructions
from rlinf.core.language.problems import Problem
from rlinf.core.registry import TOOL_FORMATS, TOOLS
from rlinf.runners.config.schema import chosen, not_negative, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSection:
    """An entry of `agent.tools`; it also holds the tool's own fields."""

    type: str
    """A registered tool, or `module:attr` of a typed function."""
    tool: ToolConfig = field(metadata=chosen(TOOLS, "type"))
    """Its own fields."""
    timeout_s: float = 30.0
    """Seconds of one call, those in which it waits for a place among them."""
    max_concurrent: int | None = None
    """Calls that run at one time, over all episodes of a worker; null for any number."""
    retries: int = 0
    """How often a call is repeated that ended with an error of Python; what a tool tells the model is never repeated."""
    cache: int = 0
    """Of how many different arguments the answers are kept, so that the same call is not run twice; 0 for none."""
    max_response_length: int = 65536
    """Characters of an answer that the model reads; of a longer one the middle is left out, and how much that was is said."""

    def __post_init__(self) -> None:
        positive(timeout_s=self.timeout_s, max_concurrent=self.max_concurrent, max_response_length=self.max_response_length)
        not_negative(retries=self.retries, cache=self.cache)

    def built(self) -> tuple[Tool, ...]:
        """The tool, or all that it stands for."""
        return tuple(self.tool.build_all()) if isinstance(self.tool, HasTools) else (self.tool.build(),)

    @property
    def limits(self) -> ToolLimits:
        """What the tool may take."""
        return ToolLimits(
            timeout_s=self.timeout_s,
            max_concurrent=self.max_concurrent,
            retries=self.retries,
            cache=self.cache,
            max_response_length=self.max_response_length,
        )


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
        return ToolBox([(tool, section.limits) for section in self.tools for tool in section.built()])
