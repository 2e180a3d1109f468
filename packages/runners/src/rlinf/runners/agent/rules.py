"""The rules across the sections of an agent's run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final

from rlinf.core.declarations import Checks
from rlinf.core.errors import ConfigError
from rlinf.runners.agent.client_agents import ClientAgent
from rlinf.runners.agent.delegation import NAME, Delegate
from rlinf.runners.agent.online import LearnFromUsers
from rlinf.runners.agent.schema import TOOLS, AgentConfig
from rlinf.runners.config.rules import Rule, cannot_call, placed_components
from rlinf.runners.config.sections import Section
from rlinf.runners.reasoning.rules import REASONING
from rlinf.runners.task_types import read_run


def _episodes_can_go_on(cfg: AgentConfig) -> ConfigError | None:
    """Where an episode that was suspended would be gone on with."""
    expected = f"expected 0, found {cfg.rollout.partial_lag}: "
    if not cfg.rollout.partial_lag:
        return None
    if isinstance(cfg.agent.workflow, LearnFromUsers):
        problem = f"{expected}an episode of the workflow '{cfg.agent.workflow_type}' is an answer that was rated, and whole"
        return ConfigError("rollout.partial_lag", problem, "Leave it out; rollout.max_lag says how old an answer may be.")
    if isinstance(cfg.agent.workflow, Delegate):
        problem = f"{expected}a call of '{NAME}' waits for its agents, and its timeout_s runs on while they are suspended"
        return ConfigError("rollout.partial_lag", problem, "Leave it out: episodes then begin anew.")
    if TOOLS in placed_components(cfg.cluster):
        problem = f"{expected}a tool worker ends the calls of a job with the job"
        remedy = f"Leave it out, or leave out cluster.component_placement.{TOOLS}: tools then run in the rollout workers."
        return ConfigError("rollout.partial_lag", problem, remedy)
    return None


def _tool_names(cfg: AgentConfig) -> list[str]:
    """Of all tools, each of which is asked first whether it can be built: it knows under which key it stands."""
    for number, section in enumerate(cfg.agent.tools):
        if isinstance(section.tool, Checks):
            section.tool.check(f"agent.tools[{number}]")
    return [tool.name for tool in cfg.agent.built()]


def _workflow_can_be_called(cfg: AgentConfig) -> ConfigError | None:
    workflow: object = cfg.agent.workflow
    problem = cannot_call(workflow, "task", "generate")
    if not problem and inspect.isfunction(workflow) and not inspect.iscoroutinefunction(workflow):
        problem = f"expected an async function, found the plain function '{workflow.__name__}'"
    if not problem:
        return None
    return ConfigError("agent.workflow_type", problem, "Write it as `async def …(task, generate) -> Episode`.")


def _tools_differ(cfg: AgentConfig) -> ConfigError | None:
    names = _tool_names(cfg)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is None:
        return None
    return ConfigError("agent.tools", f"two tools are called '{twice}'", "Give one of them another name.")


def _delegation_has_its_tool(cfg: AgentConfig) -> ConfigError | None:
    workflow = cfg.agent.workflow
    if not isinstance(workflow, Delegate):
        return None
    names = _tool_names(cfg)
    if NAME not in names:
        return ConfigError("agent.tools", f"the workflow '{NAME}' has no tool '{NAME}'", f"Add {{type: {NAME}}}.")
    missing = next((name for name in workflow.lead_tools or () if name not in names), None)
    if missing is None:
        return None
    return ConfigError("agent.lead_tools", f"expected some of {', '.join(names)}, found '{missing}'", "Add it to agent.tools.")


def _clients_have_an_endpoint(cfg: AgentConfig) -> ConfigError | None:
    if not isinstance(cfg.agent.workflow, ClientAgent | LearnFromUsers) or cfg.agent.endpoint is not None:
        return None
    problem = f"the workflow '{cfg.agent.workflow_type}' needs one, found null"
    return ConfigError("agent.endpoint", problem, "Add `endpoint: {}` to `agent`.")


def _tool_workers_have_tools(cfg: AgentConfig) -> ConfigError | None:
    if TOOLS not in placed_components(cfg.cluster) or cfg.agent.tools:
        return None
    return ConfigError(f"cluster.component_placement.{TOOLS}", "this run has no tools", "Leave it out, or add agent.tools.")


AGENT: Final[Sequence[Rule[AgentConfig]]] = (
    *REASONING,
    _episodes_can_go_on,
    _workflow_can_be_called,
    _tools_differ,
    _delegation_has_its_tool,
    _tool_workers_have_tools,
    _clients_have_an_endpoint,
)


def read_agent(data: Section) -> AgentConfig:
    """The typed configuration of an agent's run, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(AgentConfig, data, task_type="agent", rules=AGENT)
