"""Meta-World: fifty tasks of a Sawyer arm on MuJoCo."""

from rlinf.envs.metaworld.metaworld import TASKS as TASKS
from rlinf.envs.metaworld.metaworld import MetaWorld as MetaWorld
