"""Problems with answers that can be checked: generated, or read from files."""

from rlinf.envs.tasks.arithmetic import Arithmetic as Arithmetic
from rlinf.envs.tasks.arithmetic import Expression as Expression
from rlinf.envs.tasks.calculation import Calculation as Calculation
from rlinf.envs.tasks.calculation import Chain as Chain
from rlinf.envs.tasks.countdown import Countdown as Countdown
from rlinf.envs.tasks.countdown import Puzzle as Puzzle
from rlinf.envs.tasks.countdown import solve as solve
from rlinf.envs.tasks.dataset import Dataset as Dataset
from rlinf.envs.tasks.programs import Programs as Programs
from rlinf.envs.tasks.programs import Specification as Specification
from rlinf.envs.tasks.reasoning_gym import ReasoningGym as ReasoningGym
from rlinf.envs.tasks.reasoning_gym import ReasoningGymReward as ReasoningGymReward
from rlinf.envs.tasks.shapes import Shapes as Shapes
from rlinf.envs.tasks.splits import split_of as split_of
