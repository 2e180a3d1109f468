"""The words of agents: tools and how they are called, turns and episodes, workflows."""

from rlinf.core.agents.episodes import Branch as Branch
from rlinf.core.agents.episodes import Episode as Episode
from rlinf.core.agents.episodes import EpisodeFinish as EpisodeFinish
from rlinf.core.agents.episodes import Turn as Turn
from rlinf.core.agents.formats import ToolFormat as ToolFormat
from rlinf.core.agents.serving import EndpointConfig as EndpointConfig
from rlinf.core.agents.serving import PolicyEndpoint as PolicyEndpoint
from rlinf.core.agents.serving import RatedAnswer as RatedAnswer
from rlinf.core.agents.serving import ServedSession as ServedSession
from rlinf.core.agents.serving import SessionConfig as SessionConfig
from rlinf.core.agents.serving import Write as Write
from rlinf.core.agents.toolbox import ToolBox as ToolBox
from rlinf.core.agents.tools import HasTools as HasTools
from rlinf.core.agents.tools import Tool as Tool
from rlinf.core.agents.tools import ToolConfig as ToolConfig
from rlinf.core.agents.tools import ToolError as ToolError
from rlinf.core.agents.tools import ToolLimits as ToolLimits
from rlinf.core.agents.tools import tool as tool
from rlinf.core.agents.workflow import AgentTask as AgentTask
from rlinf.core.agents.workflow import Conversation as Conversation
from rlinf.core.agents.workflow import Generate as Generate
from rlinf.core.agents.workflow import Workflow as Workflow
from rlinf.core.language.tool_calls import ToolCall as ToolCall
from rlinf.core.language.tool_calls import ToolOutcome as ToolOutcome
from rlinf.core.language.tool_calls import ToolResult as ToolResult
