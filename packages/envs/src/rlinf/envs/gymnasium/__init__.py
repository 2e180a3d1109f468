"""Any single environment of Gymnasium's registry."""

from rlinf.envs.gymnasium.gymnasium import Gymnasium as Gymnasium
