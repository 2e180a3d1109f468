"""Tables that are filled in from many passages: `Bodaru,Kemilo:employer,home=`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem, Split, WorkedTurn
from rlinf.core.random import keyed_generator
from rlinf.envs.knowledge.base import KnowledgeBase
from rlinf.envs.knowledge.facts import KINDS, Kind, relations_of
from rlinf.envs.knowledge.generation import Knowledge, generated
from rlinf.envs.knowledge.questions import searched
from rlinf.envs.tasks.generated import SeededTask, called
from rlinf.envs.tasks.splits import check_sizes, first_distinct, is_worked

_ASKED = (
    "Fill in a table. Its rows are {rows}; its columns are, in this order, {columns}. Search for what you need. Answer with "
    "nothing but a line for each row: its name, then its cells, with commas between."
)
UNKNOWN: Final = "unknown"
"""What stands in a cell of which nothing was found."""
Working = Literal["delegate", "search"]
"""How worked examples of several rows find them: each by an agent of its own, or all by searching, one after the other."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of some entities of one kind."""

    rows: tuple[str, ...]
    """The names of the entities."""
    columns: tuple[str, ...]
    """The names of relations."""

    def __str__(self) -> str:
        return f"{','.join(self.rows)}:{','.join(self.columns)}"

    def answer(self, base: KnowledgeBase) -> str:
        """A line for each row: its name, and its cells."""
        return "\n".join(",".join([name, *(base[name].facts[column] for column in self.columns)]) for name in self.rows)

    def unknown(self) -> str:
        """The same lines of somebody who has found nothing."""
        return "\n".join(",".join([name, *(UNKNOWN for _ in self.columns)]) for name in self.rows)

    def parts(self) -> tuple[Table, ...]:
        """A table for each row."""
        return tuple(Table((name,), self.columns) for name in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideSearch(SeededTask[Table]):
    """Tables over a generated knowledge base, by name: `data.type: wide_search`; the reward is `item_f1`.

    What is asked is wide, not deep: no cell needs another one, so that the rows can be found at the same time. A share of the
    worked examples finds them: a table of several rows by handing each row to another agent (the workflow `delegate`), a table of
    one row, which is what such an agent is given, by searching. The others say something at once (`unsearched`). Tables
    held out are about entities of which no table to train on tells. After Wong et al., "WideSearch: Benchmarking Agentic Broad
    Info-Seeking" (2025), arXiv:2508.07999.
    """

    knowledge: Knowledge = field(default_factory=Knowledge)
    """What is asked about; the tool `search` takes the same."""
    kinds: tuple[Kind, ...] = ("person",)
    """Of which entities there are tables, each kind equally often."""
    rows: tuple[int, ...] = (3,)
    """How many rows a table may have, each number equally often."""
    columns: tuple[int, ...] = (2,)
    """How many columns beside the names, likewise."""
    worked_share: float = 0.35
    """The share of problems whose worked example finds its rows."""
    unsearched: Literal["answer", "unknown"] = "answer"
    """What the other worked examples state: the answer, as somebody does who knows it by heart; or `unknown` in each cell. Names
    that can't be foreseen are noise to a model that has to learn how to read a passage."""
    worked_by: Working = "delegate"
    """How it finds several rows: "delegate", or "search" by one agent alone."""
    delegate: str = "delegate"
    """The name of the tool in worked examples that hands on; it takes an argument `subtasks`."""
    tool: str = "search"
    """The name of the tool in worked examples that searches; it takes an argument `query`."""
    titles: bool = False
    """Whether results in worked examples begin with titles; as the tool has it."""
    train: int = 20_000
    """Problems to train on, all different."""
    validation: int = 512
    """Problems held out, all different."""
    seed: int = 0
    """Decides the tables and their worked examples."""

    def __post_init__(self) -> None:
        check_sizes(self.train, self.validation, self.knowledge.held_out)
        expect_range("worked_share", self.worked_share, 0.0, 1.0)
        if not self.kinds or any(kind not in KINDS for kind in self.kinds):
            raise ConfigError("kinds", f"expected some of {', '.join(KINDS)}, found {list(self.kinds)}")
        # Any number of rows and columns may be drawn for any kind, so that the smallest one sets the limit.
        known = min((self._relations(kind) for kind in self.kinds), key=len)
        fewest = min(min(self.knowledge.sizes(kind).values()) for kind in self.kinds)
        for name, sizes, most in (("rows", self.rows, fewest), ("columns", self.columns, len(known))):
            if not sizes or min(sizes) < 1 or max(sizes) > most:
                raise ConfigError(
                    name, f"expected numbers from 1 to {most}, found {list(sizes)}", "Ask for others, or other kinds."
                )

    def asked(self, split: Split) -> Sequence[Table]:
        count = self.train if split == "train" else self.validation
        return first_distinct(self._drawn(split), count, place=f"wide_search.{split}")

    def _problem(self, number: int, item: Table) -> Problem:
        worked = is_worked(str(item), self.worked_share, seed=self.seed)
        asked = _ASKED.format(rows=", ".join(item.rows), columns=", ".join(item.columns))
        answer = item.answer(self._base)
        said = answer if worked or self.unsearched == "answer" else item.unknown()
        return Problem(
            prompt=f"{item}=" if self.knowledge.style == "brief" else ({"role": "user", "content": asked},),
            answer=answer,
            id=number,
            turns=(*(self._found(item) if worked else ()), WorkedTurn(text=said)),
        )

    def _found(self, table: Table) -> tuple[WorkedTurn, ...]:
        """The turns that find the rows of a table."""
        if len(table.rows) > 1 and self.worked_by == "delegate":
            parts = table.parts()
            answers = "\n".join(part.answer(self._base) for part in parts)
            return (called(self.delegate, {"subtasks": "\n".join(map(str, parts))}, answers),)
        return tuple(searched(self._base, name, tool=self.tool, titles=self.titles) for name in table.rows)

    def _relations(self, kind: Kind) -> tuple[str, ...]:
        return tuple(relation.name for relation in relations_of(kind, values=self.knowledge.values))

    @property
    def _base(self) -> KnowledgeBase:
        return generated(self.knowledge)

    def _drawn(self, split: Split) -> Iterator[Table]:
        """Tables without end."""
        generator = keyed_generator(self.seed, f"tables of {split}")
        names = {kind: [entity.name for entity in self._base.of_kind(kind, split)] for kind in self.kinds}
        while True:
            kind = self.kinds[int(generator.integers(len(self.kinds)))]
            rows, columns = (sizes[int(generator.integers(len(sizes)))] for sizes in (self.rows, self.columns))
            known = self._relations(kind)
            chosen: list[int] = generator.choice(len(known), columns, replace=False).tolist()
            picked: list[int] = generator.choice(len(names[kind]), rows, replace=False).tolist()
            # The columns in one order: the same ones in another order would not be another table.
            yield Table(tuple(names[kind][number] for number in picked), tuple(known[number] for number in sorted(chosen)))
