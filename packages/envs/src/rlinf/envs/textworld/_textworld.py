"""The library TextWorld itself."""

from __future__ import annotations

import importlib
import tempfile
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rlinf.envs.textworld.games import BACK, REFUSED, WON, House, seen

# The library has no types.
_textworld: Final[Any] = importlib.import_module("textworld")
_parts: Final[Any] = importlib.import_module("textworld.generator.game")
_logic: Final[Any] = importlib.import_module("textworld.envs.tw")
# Grammar and rules are read from files, once.
_OPTIONS: Final[Any] = _textworld.GameOptions()
_HELD: Final = 1024
"""Games that are kept, for all episodes of a group play the same one."""


class Game:
    """A game in play, in this process and without a thread: its logic is Python, a command takes half a millisecond.

    Args:
        house: what it is about.
    """

    def __init__(self, house: House) -> None:
        # Shallow, and then its own state: TextWorld's `copy` copies the whole grammar of the game, too.
        self._env = copy(_made(house))
        self._env.reset()
        self.won = False
        """Whether the thing was taken."""

    def play(self, command: str) -> str:
        """What the game says of a command."""
        state, _, _ = self._env.step(command)
        self.won = self.won or bool(state["won"])
        if state.feedback == "Invalid command.":
            return REFUSED
        return WON if self.won else self.look()

    def look(self) -> str:
        """What the player sees, from the game's facts."""
        names = {ident: info.name for ident, info in self._env.state["game"].infos.items()}
        facts = [(fact.name, [variable.name for variable in fact.arguments]) for fact in self._env.state["_facts"]]
        here = next(arguments[1] for name, arguments in facts if name == "at" and arguments[0] == "P")
        ways = [name.removesuffix("_of") for name, arguments in facts if name[:-3] in BACK and arguments[1:] == [here]]
        things = [names[who] for name, (who, *rest) in facts if name == "at" and who != "P" and rest == [here]]
        return seen(names[here], ways, things)


@lru_cache(maxsize=_HELD)
def _made(house: House) -> Any:
    """A game at its beginning, never played itself."""
    maker = _textworld.GameMaker(_OPTIONS)
    middle = maker.new_room(house.middle)
    maker.set_player(middle)
    for direction, name, thing in house.around:
        room = maker.new_room(name)
        maker.connect(getattr(middle, direction), getattr(room, BACK[direction]))
        lying = maker.new("o", name=thing)
        room.add(lying)
        if thing == house.wanted:
            won = _parts.Event(conditions={maker.new_fact("in", lying, maker.inventory)})
            maker.quests = [_parts.Quest(win_events=[won], reward=1)]
    env = _logic.TextWorldEnv(_textworld.EnvInfos(won=True))
    with tempfile.TemporaryDirectory(prefix="rlinf-textworld-") as folder:
        path = str(Path(folder) / "game.json")
        maker.build(validate=False).save(path)
        env.load(path)
    env.reset()
    return env
