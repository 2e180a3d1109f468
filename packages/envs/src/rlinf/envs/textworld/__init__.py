"""Text games of the library TextWorld."""

from rlinf.envs.textworld.games import TextWorld as TextWorld
from rlinf.envs.textworld.playing import CommandTool as CommandTool
from rlinf.envs.textworld.playing import PlayTextWorld as PlayTextWorld
