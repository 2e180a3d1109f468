"""Questions that lead over several passages: `the boss of the employer of Bodaru?`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem, Split, WorkedTurn
from rlinf.core.random import keyed_generator
from rlinf.envs.knowledge.base import KnowledgeBase
from rlinf.envs.knowledge.corpus import written
from rlinf.envs.knowledge.facts import relations_of
from rlinf.envs.knowledge.generation import Knowledge, generated
from rlinf.envs.tasks.generated import SeededTask, called
from rlinf.envs.tasks.splits import check_sizes, first_distinct, is_worked

_ASKED = (
    "Answer the question. Search for what you need, as often as you need it, and give the answer alone between <answer> and "
    "</answer>.\nQuestion: {question}"
)


def searched(base: KnowledgeBase, name: str, *, tool: str, titles: bool) -> WorkedTurn:
    """A worked turn that looks an entity up by its name, and finds its passage.

    Args:
        base: what is searched.
        name: of the entity.
        tool: the name of the tool, which takes an argument `query`.
        titles: whether results begin with titles.
    """
    return called(tool, {"query": name}, written([base.passage(base[name])], titles=titles))


@dataclass(frozen=True, slots=True)
class Question:
    """A path through the knowledge base, of one relation or more."""

    subject: str
    """The entity at which it begins."""
    relations: tuple[str, ...]
    """Each leads from the entity before it to the next one, the last one to the answer."""
    stations: tuple[str, ...]
    """The entities on the way, the subject first: what has to be looked up. As many as there are relations."""
    answer: str
    """Where it ends."""
    passages: tuple[str, ...]
    """The ids of the passages that tell it, in the order in which they are needed."""

    def __str__(self) -> str:
        return f"{' of '.join(reversed(self.relations))} of {self.subject}?"

    @property
    def sentence(self) -> str:
        """The question as a sentence."""
        return f"What is the {' of the '.join(reversed(self.relations))} of {self.subject}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHop(SeededTask[Question]):
    """Questions to a generated knowledge base, by name: `data.type: multi_hop`.

    A share of the worked examples looks up one entity after the other, as the tool `search` finds them in the same knowledge base;
    the others say something at once (`unsearched`). The answer stands in `<answer>` (rewards `search_em`, `search_f1`, `searchr1`).
    Problems held out are about entities that no problem to train on leads to.
    """

    knowledge: Knowledge = field(default_factory=Knowledge)
    """What is asked about; the tool `search` takes the same."""
    hops: tuple[int, ...] = (1, 2, 3)
    """How many passages a question may need, each number equally often."""
    worked_share: float = 0.35
    """The share of problems whose worked example searches."""
    unsearched: Literal["answer", "unknown"] = "answer"
    """What the other worked examples say: the answer, as somebody does who knows it by heart; or `unknown`. Names that can't be
    foreseen are noise, in which a small model takes several times as long to learn how to read a passage."""
    tool: str = "search"
    """The name of the tool in worked examples; it takes an argument `query`."""
    titles: bool = True
    """Whether results in worked examples begin with titles; as the tool has it."""
    train: int = 20_000
    """Problems to train on, all different."""
    validation: int = 512
    """Problems held out, all different."""
    seed: int = 0
    """Decides the questions and their worked examples."""

    def __post_init__(self) -> None:
        check_sizes(self.train, self.validation, self.knowledge.held_out)
        if not self.hops or min(self.hops) < 1 or max(self.hops) > 6 or len(set(self.hops)) < len(self.hops):
            raise ConfigError("hops", f"expected different numbers from 1 to 6, found {list(self.hops)}")
        expect_range("worked_share", self.worked_share, 0.0, 1.0)

    def asked(self, split: Split) -> Sequence[Question]:
        """The questions of a split, with their gold passages."""
        count = self.train if split == "train" else self.validation
        return first_distinct(self._drawn(split), count, place=f"multi_hop.{split}")

    def _problem(self, number: int, item: Question) -> Problem:
        worked = is_worked(str(item), self.worked_share, seed=self.seed)
        searches = [searched(self._base, name, tool=self.tool, titles=self.titles) for name in item.stations if worked]
        said = item.answer if worked or self.unsearched == "answer" else "unknown"
        brief = self.knowledge.style == "brief"
        return Problem(
            prompt=str(item) if brief else ({"role": "user", "content": _ASKED.format(question=item.sentence)},),
            answer=item.answer,
            id=number,
            turns=(*searches, WorkedTurn(text=f"<answer>{said}</answer>")),
            place=", ".join(item.passages),
        )

    @property
    def _base(self) -> KnowledgeBase:
        return generated(self.knowledge)

    def _drawn(self, split: Split) -> Iterator[Question]:
        """Questions without end; those that come back to where they were are left out, as their answer could be guessed."""
        generator = keyed_generator(self.seed, f"multi-hop questions of {split}")
        # Relations stay within a part, so that a path that begins in one ends in it.
        starts = [entity.name for entity in self._base.entities if entity.split == split]
        while True:
            subject = starts[int(generator.integers(len(starts)))]
            question = self._path(subject, self.hops[int(generator.integers(len(self.hops)))], generator)
            if len({*question.stations, question.answer}) == len(question.stations) + 1:
                yield question

    def _path(self, subject: str, hops: int, generator: np.random.Generator) -> Question:
        base, name = self._base, subject
        relations: list[str] = []
        stations: list[str] = []
        for hop in range(hops):
            entity = base[name]
            # Only the last relation may lead to what is no entity.
            choices = relations_of(entity.kind, values=self.knowledge.values and hop + 1 == hops)
            relation = choices[int(generator.integers(len(choices)))].name
            relations.append(relation)
            stations.append(name)
            name = entity.facts[relation]
        passages = tuple(base.passage(base[station]).id for station in stations)
        return Question(subject, tuple(relations), tuple(stations), name, passages)
