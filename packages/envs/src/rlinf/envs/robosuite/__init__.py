"""robosuite: tasks of one arm on MuJoCo."""

from rlinf.envs.robosuite.robosuite import Robosuite as Robosuite
