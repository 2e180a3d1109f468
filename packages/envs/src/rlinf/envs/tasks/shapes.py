"""Questions about pictures of shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks.drawing import COLORS, KINDS, Color, Kind, Shape, draw
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes

Question = Literal["color", "kind", "count", "present"]
LETTERS: Final = "ABCDEFGHIJ"
"""Of choices."""
QUESTIONS: Final[tuple[Question, ...]] = ("color", "kind", "count", "present")


@dataclass(frozen=True, slots=True)
class Scene:
    """Shapes on a square grid, and what is asked about them."""

    shapes: tuple[Shape, ...]
    """No two in the same cell."""
    question: str
    answer: str
    solution: str

    def key(self) -> str:
        """The same for the same picture, whatever is asked about it."""
        return ";".join(sorted(f"{s.color} {s.kind} {s.row} {s.column}" for s in self.shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes(GeneratedTask[Scene]):
    """Visual question answering on drawings, by name: `type: shapes`.

    The reward `vqa` scores it with `choices`, and without them any that compares words, such as `exact_match`.
    """

    place: ClassVar[str] = "shapes"
    questions: tuple[Question, ...] = QUESTIONS
    """"color": that of the only circle, square or triangle; "kind": what the only shape of a colour is; "count": how many shapes
    there are of a kind; "present": whether there is a shape of a colour and kind, yes or no."""
    choices: bool = False
    """Whether answers to choose from follow the question, "A red B green …". The answer is then a letter, and the worked solution
    names the thing first: "green (B)"."""
    shuffled: bool = True
    """Whether choices have an order drawn for each question; otherwise the same answer always has the same letter."""
    grid: int = 2
    """Cells along each side, in each of which there is at most one shape."""
    cell: int = 16
    """Pixels along each side of a cell."""
    fewest: int = 1
    """The least number of shapes in a picture."""
    most: int = 3
    """The greatest number of shapes in a picture."""
    image_mark: str = "<image>"
    """The mark of the image in the prompt, as in the tokenizer of the model."""
    train: int = 2_000
    """Questions to train on, all different."""
    validation: int = 128
    """Questions held out, all different; none is about a picture that is trained on."""
    validation_share: float = 0.1
    """The share of all possible pictures from which those held out are taken."""

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        for name, value in (("grid", self.grid), ("fewest", self.fewest), ("questions", len(self.questions))):
            expect_at_least(name, value, 1)
        if self.choices and "count" in self.questions and self.most >= len(LETTERS):
            found = f"expected fewer than {len(LETTERS)} shapes with choices, found {self.most}"
            raise ConfigError("most", found, "Leave the question count out.")
        expect_at_least("cell", self.cell, 8, "Smaller shapes look alike.")
        if not self.fewest <= self.most <= self.grid**2:
            raise ConfigError(
                "most", f"expected from {self.fewest} to {self.grid**2} shapes, found {self.most}", "Enlarge the grid."
            )

    def _key(self, item: Scene) -> str:
        return item.key()

    def _problem(self, number: int, item: Scene) -> Problem:
        """A question with a picture of `[grid · cell, grid · cell, 3]`."""
        return Problem(
            prompt=f"{self.image_mark}{item.question}",
            answer=item.answer,
            id=number,
            solution=item.solution,
            images=(draw(item.shapes, grid=self.grid, cell=self.cell),),
        )

    def _drawn(self) -> Iterator[Scene]:
        # Choices have a generator of their own, so that the pictures are the same without them.
        generator, choosing = keyed_generator(self.seed, "shapes"), keyed_generator(self.seed, "choices")
        while True:
            count = int(generator.integers(self.fewest, self.most + 1))
            cells = generator.permutation(self.grid**2)[:count]
            shapes = tuple(
                Shape(
                    color=COLORS[int(generator.integers(len(COLORS)))],
                    kind=KINDS[int(generator.integers(len(KINDS)))],
                    row=int(cell) // self.grid,
                    column=int(cell) % self.grid,
                )
                for cell in cells
            )
            asked = self.questions[int(generator.integers(len(self.questions)))]
            found = _ask(asked, shapes, generator)
            if found is not None:
                yield self._scene(shapes, asked, *found, choosing)

    def _scene(
        self, shapes: tuple[Shape, ...], asked: Question, question: str, answer: str, choosing: np.random.Generator
    ) -> Scene:
        if not self.choices:
            return Scene(shapes, question, answer, answer)
        possible = _possible(asked, self.most)
        places = choosing.permutation(len(possible)) if self.shuffled else range(len(possible))
        order = [possible[int(place)] for place in places]
        # There may be fewer answers than letters, never more.
        listed = " ".join(f"{letter} {word}" for letter, word in zip(LETTERS, order, strict=False))
        letter = LETTERS[order.index(answer)]
        return Scene(shapes, f"{question} {listed}", letter, f"{answer} ({letter})")


def _ask(asked: Question, shapes: Sequence[Shape], generator: np.random.Generator) -> tuple[str, str] | None:
    """A question and its answer; None if the picture does not decide it."""
    kind: Kind = KINDS[int(generator.integers(len(KINDS)))]
    color: Color = COLORS[int(generator.integers(len(COLORS)))]
    if asked == "count":
        return f"How many {kind}s?", str(sum(shape.kind == kind for shape in shapes))
    if asked == "color":
        of_kind = [shape.color for shape in shapes if shape.kind == kind]
        return (f"What color is the {kind}?", of_kind[0]) if len(of_kind) == 1 else None
    if asked == "kind":
        of_color = [shape.kind for shape in shapes if shape.color == color]
        return (f"What is {color}?", of_color[0]) if len(of_color) == 1 else None
    # Half of the time something that is there: drawn at random alone, "yes" would be rare.
    if generator.integers(2):
        shape = shapes[int(generator.integers(len(shapes)))]
        color, kind = shape.color, shape.kind
    there = any((shape.color, shape.kind) == (color, kind) for shape in shapes)
    return f"Is there a {color} {kind}?", "yes" if there else "no"


def _possible(asked: Question, most: int) -> tuple[str, ...]:
    """All answers that a question can have."""
    if asked == "present":
        return "yes", "no"
    return {"color": COLORS, "kind": KINDS, "count": tuple(map(str, range(most + 1)))}[asked]
