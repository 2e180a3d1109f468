"""Lines of code to complete, and somebody who accepts a completion if it passes a test: `def double(x):return ` ► `x*2`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rlinf.core.agents import AgentTask, ToolError
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.envs.tasks.generated import GeneratedTask, SplitSizes
from rlinf.envs.tools.calculator import calculate

_DRAWS: Final = 1024
_PARTS: Final = 1 << 20
_FORMS: Final[Mapping[str, tuple[str, Callable[[int, int], int]]]] = {
    "add": ("{a}+{b}", lambda a, b: a + b),
    "subtract": ("{a}-{b}", lambda a, b: a - b),
    "multiply": ("{a}*{b}", lambda a, b: a * b),
    "double_sum": ("2*({a}+{b})", lambda a, b: 2 * (a + b)),
    "sum_of_squares": ("{a}*{a}+{b}*{b}", lambda a, b: a * a + b * b),
}
_PAIRS: Final = ((3, 5), (7, 2), (10, 11))
"""What a completion is tested with."""
_THINKS_S: Final = 0.02
"""The median time that the simulated user takes to judge."""


@dataclass(frozen=True, slots=True)
class Line:
    """The beginning of a line."""

    form: str
    """The name of the function, which says what it returns."""
    a: str
    b: str

    def __str__(self) -> str:
        return f"def {self.form}({self.a},{self.b}):return "

    def completed(self, form: str | None = None) -> str:
        """How it goes on; with another form, in a wrong way."""
        return _FORMS[form or self.form][0].format(a=self.a, b=self.b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions(GeneratedTask[Line]):
    """Generated lines to complete, by name: `data.type: completions`.

    The name of the function says what it returns; its parameters have any letters. Of the worked examples a share is right; the
    others return what another function does, as code does that somebody found somewhere.
    """

    place: ClassVar[str] = "completions"
    right_share: float = 0.4
    """The share of worked examples that are right."""
    train: int = 2000
    """How many lines there are to train on, all different."""
    validation: int = 256
    """Lines held out, all different; none of them is one to train on."""
    validation_share: float = 0.2
    """The share of all there could be (3,250) from which those held out are taken."""

    def __post_init__(self) -> None:
        SplitSizes.__post_init__(self)
        expect_range("right_share", self.right_share, 0.0, 1.0)

    def _problem(self, number: int, item: Line) -> Problem:
        drawn = keyed_seed(self.seed, f"worked {item}") % _PARTS
        others = [form for form in _FORMS if form != item.form]
        wrong = others[drawn % len(others)] if drawn >= self.right_share * _PARTS else None
        return Problem(prompt=str(item), answer=item.completed(), id=number, solution=item.completed(wrong))

    def _drawn(self) -> Iterator[Line]:
        """Lines without end, from one stream for all splits."""
        generator = keyed_generator(self.seed, "completions")
        forms = list(_FORMS)
        while True:
            drawn: list[list[int]] = generator.integers((len(forms), 26, 26), size=(_DRAWS, 3)).tolist()
            yield from (Line(forms[form], chr(97 + a), chr(97 + b)) for form, a, b in drawn if a != b)


def passes(prompt: str, completion: str) -> bool:
    """Whether a completed line returns what its function says, for a few arguments; it is read as arithmetic, never run."""
    head = re.fullmatch(r"def (\w+)\((\w),(\w)\):return ", prompt)
    if head is None or head[1] not in _FORMS:
        return False
    expected = _FORMS[head[1]][1]
    try:
        # Any letter is looked up; one that is no argument of the function ends in a KeyError.
        return all(
            calculate(re.sub(r"[a-z]", lambda letter, names={head[2]: a, head[3]: b}: str(names[letter[0]]), completion))
            == str(expected(a, b))
            for a, b in _PAIRS
        )
    except (ToolError, KeyError):
        return False


async def simulated_user(task: AgentTask, client: Any, model: str) -> str:
    """Somebody who writes code beside an assistant: begins a line, waits, and accepts what passes a test, or rejects it.

    Args:
        task: with the line.
        client: an `openai.AsyncOpenAI`.
        model: the name that is asked for.
    """
    prompt = task.problem.prompt
    if not isinstance(prompt, str):
        raise ConfigError("data.type", "the simulated user completes lines of text, found messages", "Use completions.")
    answer = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}])
    text = answer.choices[0].message.content or ""
    drawn = keyed_generator(task.problem.id, "thinks").lognormal(sigma=1.0)
    # Cut, as a lognormal distribution has no longest time.
    await asyncio.sleep(_THINKS_S * min(float(drawn), 20.0))
    # Not in OpenAI's interface, so that its client has no method for it.
    await client.post("/feedback", cast_to=object, body={"id": answer.id, "accepted": passes(prompt, text)})
    return text
