"""Tools that a model can call."""

from rlinf.envs.tools.calculator import Calculator as Calculator
from rlinf.envs.tools.calculator import calculate as calculate
from rlinf.envs.tools.embedding import Embedding as Embedding
from rlinf.envs.tools.function import FunctionTool as FunctionTool
from rlinf.envs.tools.mcp import MCP as MCP
from rlinf.envs.tools.python import Python as Python
from rlinf.envs.tools.search import Search as Search
