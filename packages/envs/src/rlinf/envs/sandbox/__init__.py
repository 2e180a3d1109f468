"""Programs that nobody trusts, such as those that a model wrote, run in processes that can do no harm."""

from rlinf.core.sandbox import Execution as Execution
from rlinf.core.sandbox import ExecutionLimits as ExecutionLimits
from rlinf.core.sandbox import ExecutionResult as ExecutionResult
from rlinf.envs.sandbox.levels import LEVELS as LEVELS
from rlinf.envs.sandbox.levels import SandboxLevel as SandboxLevel
from rlinf.envs.sandbox.process import ProcessSandbox as ProcessSandbox
from rlinf.envs.sandbox.process import RunningSandbox as RunningSandbox
