"""The configuration of an agent's run: that of a reasoning run, and the section `agent`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from rlinf.core.agents import EndpointConfig, Workflow
from rlinf.core.config import expect_range
from rlinf.core.language.problems import Problem
from rlinf.core.registry import ENDPOINTS, WORKFLOWS
from rlinf.runners.config.schema import chosen, not_negative, positive
from rlinf.runners.config.sections import resolved
from rlinf.runners.conversations.tool_use import ToolUseConfig
from rlinf.runners.reasoning.schema import ReasoningConfig

TOOLS: Final = "tools"
"""The component whose workers run tools, where it is placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSection:
    """`agent.endpoint`; it also holds the endpoint's own fields."""

    type: str = "openai"
    """A registered endpoint."""
    config: EndpointConfig = field(metadata=chosen(ENDPOINTS, "type"))
    """Its own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWorkersSection:
    """`agent.tool_workers`: what becomes of processes in which tools run, and of their calls."""

    max_restarts: int = 3
    """How often each tool worker is started again after its process ended; once more ends the run."""
    resends: int = 1
    """How often a call is sent again if the process ended during it; after that the model reads an error, with the outcome
    "lost"."""

    def __post_init__(self) -> None:
        not_negative(max_restarts=self.max_restarts, resends=self.resends)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection(ToolUseConfig):
    """`agent`: what plays an episode, and with what."""

    workflow_type: str = "tools"
    """A registered workflow, or `module:attr` of an async function `(task, generate) -> Episode`."""
    workflow: Workflow = field(metadata=chosen(WORKFLOWS, "workflow_type"))
    """Its own fields."""
    endpoint: EndpointSection | None = None
    """Where agents can reach the policy over HTTP with an OpenAI client; null unless the workflow needs it."""
    tool_workers: ToolWorkersSection = field(default_factory=ToolWorkersSection)
    """What becomes of tool workers that die. There are some where the component `tools` is placed; without it tools run in the
    rollout workers."""
    max_turns: int = 8
    """How many turns a conversation may have."""
    max_concurrent: int = 512
    """How many episodes one rollout worker plays at a time; further ones wait."""
    episode_timeout_s: float = 300.0
    """Seconds of one attempt at an episode, from when it begins; then it has failed."""
    attempts: int = 2
    """How often an episode is begun that fails for a reason of its own, such as an error of the workflow."""
    max_failed_share: float = 0.5
    """The largest share of a job's episodes that may fail after all attempts; with more the run ends and shows the first reason.
    Failed episodes are counted as `rollout/failed`, and are not trained on."""

    def __post_init__(self) -> None:
        positive(
            max_turns=self.max_turns,
            max_concurrent=self.max_concurrent,
            episode_timeout_s=self.episode_timeout_s,
            attempts=self.attempts,
        )
        expect_range("max_failed_share", self.max_failed_share, 0.0, 1.0)


_NOT_MEASURED = ("endpoint", "max_concurrent", "max_failed_share", "tool_workers")
"""Keys of `agent` that can't change what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(ReasoningConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    can_compare_with_greedy: ClassVar[bool] = False
    """What tools answer is part of an episode, and there is no likeliest one."""
    can_compare_tokens: ClassVar[bool] = False
    """Rows of one problem may be of several agents, and what tools answer stands between their tokens."""
    agent: AgentSection

    @property
    def optional_components(self) -> tuple[str, ...]:
        """What may be placed beside actor, rollout and reward."""
        return ("inference", TOOLS)

    @property
    def tool_supervisor(self) -> dict[str, Any]:
        """What becomes of a tool worker whose process ends unexpectedly."""
        return {"policy": "restart", "max_restarts": self.agent.tool_workers.max_restarts}

    @property
    def can_move_work(self) -> bool:
        """What tools have seen and done can't be gone on with elsewhere."""
        return False

    @property
    def measured_agent(self) -> Mapping[str, Any] | None:
        """What an evaluation depends on beside problems, sampling and reward."""
        return {key: value for key, value in resolved(self.agent).items() if key not in _NOT_MEASURED}

    def prepared(self, problem: Problem) -> Problem:
        """The problem, whose messages say which tools there are."""
        return self.agent.prepared(problem)
