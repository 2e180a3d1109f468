"""Games about a thing in one of the rooms around: `take lamp⏎hall: north east.` is answered by `go east`, then by what is seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rlinf.core.config.ranges import expect_range
from rlinf.core.language.problems import Problem, WorkedTurn
from rlinf.core.random import keyed_generator
from rlinf.core.registry import require_modules
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes, called
from rlinf.envs.tasks.splits import is_worked

EXTRA: Final = "rlinf-envs[textworld]"
COMMAND: Final = "do"
"""The tool that takes a command."""
BACK: Final = {"north": "south", "south": "north", "east": "west", "west": "east"}
_ROOMS: Final = (
    "hall", "attic", "cellar", "kitchen", "pantry", "studio", "garden", "garage", "office", "bedroom", "library", "chapel",
    "stable", "tower", "parlor", "nursery",
)  # fmt: skip
_THINGS: Final = (
    "lamp", "comb", "coin", "book", "knife", "apple", "candle", "shirt", "glove", "brush", "spoon", "towel", "ribbon", "mirror",
    "bottle", "basket",
)  # fmt: skip
WON: Final = "taken."
"""What the last command is answered by."""
REFUSED: Final = "no."
"""The answer to what can't be done."""
GIVEN_UP: Final = "not here"
"""What somebody says who goes no further; the game ends with it."""


@dataclass(frozen=True, slots=True)
class House:
    """A room with others around it, and something in each of these."""

    middle: str
    """The room in which the player begins."""
    around: tuple[tuple[str, str, str], ...]
    """Direction, room and thing, in the order in which a person would look."""
    wanted: str
    """The thing that is to be taken."""

    def __str__(self) -> str:
        return f"{self.wanted} {self.middle} {self.around}"

    def begins(self) -> str:
        """What is to be done, and what is seen at first."""
        return f"take {self.wanted}\n{seen(self.middle, [direction for direction, _, _ in self.around], [])}\n"

    def looked_for(self) -> list[tuple[str, str]]:
        """Commands and answers of somebody who tries to take the thing in one room after the other."""
        found: list[tuple[str, str]] = []
        for choice, (direction, _, thing) in enumerate(self.around):
            found += self.one_room(choice)
            if thing == self.wanted:
                break
            found.append((f"go {BACK[direction]}", seen(self.middle, [way for way, _, _ in self.around], [])))
        return found

    def one_room(self, choice: int) -> list[tuple[str, str]]:
        """Commands and answers of somebody who tries it in one room alone."""
        direction, room, thing = self.around[choice % len(self.around)]
        answer = WON if thing == self.wanted else REFUSED
        return [(f"go {direction}", seen(room, [BACK[direction]], [thing])), (f"take {self.wanted}", answer)]


def seen(room: str, ways: Sequence[str], things: Sequence[str]) -> str:
    """What the player sees: the room, the ways out, and what lies there."""
    lying = "".join(f" {thing}." for thing in sorted(things))
    return f"{room}: {' '.join(sorted(ways, key=list(BACK).index))}.{lying}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWorld(GeneratedTask[House]):
    """Games that the library TextWorld makes and plays, by name: `data.type: textworld`, with the workflow `textworld`.

    The thing that is asked for is in one of the rooms around the first, and each of the others has something else. A share of the
    worked examples tries to take it in one room after the other, as far as needed. The others try it in one room and, if it is not
    there, say `not here`: a small model that imitates both finds it now and then, and has to find out by itself that going on pays.

    What the player sees is said in short sentences, from the facts of the library's own game logic. Its prose is made by compiling
    each game, which takes seconds.

    Côté et al., "TextWorld: A Learning Environment for Text-based Games" (2018), arXiv:1806.11532.
    """

    place: ClassVar[str] = "textworld"
    rooms: int = 4
    """Rooms around the first, from 2 to 4."""
    worked_share: float = 0.25
    """The share of games whose worked example goes on to the next room."""
    train: int = 4000
    validation: int = 512

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        expect_range("rooms", self.rooms, 2, 4)
        expect_range("worked_share", self.worked_share, 0.0, 1.0)

    def check(self, place: str) -> None:
        """Refuses where the library is not installed.

        Raises:
            MissingExtra: the message has the command that installs it.
        """
        require_modules("textworld", place=place, extra=EXTRA)

    def _problem(self, number: int, item: House) -> Problem:
        goes_on = is_worked(str(item), self.worked_share, seed=self.seed)
        moves = item.looked_for() if goes_on else item.one_room(number)
        turns = [called(COMMAND, {"command": command}, answer) for command, answer in moves]
        if moves[-1][1] != WON:
            turns.append(WorkedTurn(text=GIVEN_UP))
        return Problem(prompt=item.begins(), answer=item.wanted, id=number, turns=tuple(turns), row={"textworld": item})

    def _drawn(self) -> Iterator[House]:
        """Houses without end, from one stream for all splits."""
        generator = keyed_generator(self.seed, "textworld")
        ways = list(BACK)
        while True:
            rooms: list[int] = generator.choice(len(_ROOMS), self.rooms + 1, replace=False).tolist()
            things: list[int] = generator.choice(len(_THINGS), self.rooms, replace=False).tolist()
            order: list[int] = generator.choice(len(ways), self.rooms, replace=False).tolist()
            around = tuple((ways[way], _ROOMS[r], _THINGS[t]) for way, r, t in zip(order, rooms[1:], things, strict=True))
            wanted = around[int(generator.integers(self.rooms))][2]
            yield House(_ROOMS[rooms[0]], around, wanted)
