"""A learned model of the world as an environment."""

from rlinf.envs.world_model.world_model import Part as Part
from rlinf.envs.world_model.world_model import WorldModel as WorldModel
from rlinf.envs.world_model.world_model import save_frames as save_frames
