"""Tools that a model can call."""

from rlinf.envs.tools.calculator import Calculator as Calculator
from rlinf.envs.tools.calculator import calculate as calculate
from rlinf.envs.tools.function import FunctionTool as FunctionTool
