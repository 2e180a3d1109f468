"""Agents that use tools over many turns: workflows, episodes as exact tokens, and the task type `agent`."""

from rlinf.runners.agent.client_agents import ClientAgent as ClientAgent
from rlinf.runners.agent.delegation import Delegate as Delegate
from rlinf.runners.agent.delegation import DelegateTool as DelegateTool
from rlinf.runners.agent.online import LearnFromUsers as LearnFromUsers
from rlinf.runners.agent.rules import read_agent as read_agent
from rlinf.runners.agent.schema import AgentConfig as AgentConfig
from rlinf.runners.agent.workflows import UseTools as UseTools
from rlinf.runners.conversations.rows import episode_rows as episode_rows
