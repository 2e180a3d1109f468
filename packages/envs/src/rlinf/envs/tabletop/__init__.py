"""Four small tasks on a table, vectorised in NumPy, each with a scripted expert and drawn images."""

from rlinf.envs.tabletop.config import Tabletop as Tabletop
from rlinf.envs.tabletop.demonstrations import Demonstrations as Demonstrations
from rlinf.envs.tabletop.demonstrations import demonstrate as demonstrate
from rlinf.envs.tabletop.scene import Scene as Scene
