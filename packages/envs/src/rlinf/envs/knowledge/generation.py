"""A knowledge base made of random numbers: nothing in it can be known beforehand, so that it has to be looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Split
from rlinf.core.random import keyed_generator
from rlinf.envs.knowledge.base import Entity, KnowledgeBase, Style
from rlinf.envs.knowledge.facts import KINDS, RELATIONS, Kind, Relation, relations_of

_CONSONANTS: Final = "bcdfghjklmnpqrstvwxz"
_VOWELS: Final = "aeiou"
_SYLLABLES: Final = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS)
_PLURAL: Final[dict[Kind, str]] = {"person": "people", "company": "companies", "city": "cities", "country": "countries"}
_FULL: Final = 0.5
"""The largest share of all possible names that is used, so that most misspelt names are nobody's."""
_LOCAL: Final[dict[str, str]] = {"boss": "employer", "mayor": "home", "capital": "country"}
"""Relations whose choice another one narrows: the boss of a company is one of those whose employer it is, if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """How large a generated knowledge base is, and how it is told.

    Two parts, which know nothing of each other: a question to one of them needs facts of that part alone, so that whoever has
    learned all of the part for training by heart knows nothing of the part that is held out.
    """

    people: int = 1000
    """How many persons there are, those held out among them."""
    companies: int = 200
    """How many companies there are, those held out among them."""
    cities: int = 100
    """How many cities there are, those held out among them."""
    countries: int = 20
    """How many countries there are, those held out among them."""
    held_out: float = 0.2
    """The share of each kind that is held out, in (0, 1); each part has at least two of each kind."""
    syllables: int = 3
    """Of a name, two letters each; there are 100 syllables."""
    lower_case: bool = False
    """Whether names are written without a capital, so that a syllable is the same token everywhere; for small models."""
    style: Style = "sentences"
    """"sentences": passages are prose; "brief": `Bodaru: employer Velmi, home Tokone`, for small models."""
    values: bool = True
    """Whether passages also tell what is no entity: years, jobs, trades, rivers, money."""
    shuffled: bool = False
    """Whether each passage has its facts in an order of its own. Otherwise a relation has the same position in all passages of a
    kind, and a small model finds it without reading its name."""
    seed: int = 0
    """The seed of names and facts: the same seed makes the same knowledge base."""

    def __post_init__(self) -> None:
        expect_range("held_out", self.held_out, 0.0, 1.0, open_low=True, open_high=True)
        expect_range("syllables", self.syllables, 1, 8)
        for kind in KINDS:
            parts = self.sizes(kind)
            if min(parts.values()) < 2:
                found = f"{parts['train']} to train on, {parts['validation']} held out"
                raise ConfigError(
                    _PLURAL[kind], f"expected at least 2 in each part, found {found}", "Ask for more, or change held_out."
                )
        names, needed = len(_SYLLABLES) ** self.syllables, self.people + self.companies + self.cities + self.countries
        if needed > _FULL * names:
            found = f"{needed} entities and {names} names of {self.syllables} syllables"
            raise ConfigError("syllables", f"expected twice as many names as entities, found {found}", "Raise it.")

    def sizes(self, kind: Kind) -> dict[Split, int]:
        """How many entities of a kind each part has."""
        count: int = getattr(self, _PLURAL[kind])
        held_out = round(count * self.held_out)
        return {"train": count - held_out, "validation": held_out}


@lru_cache(maxsize=4)
def generated(knowledge: Knowledge) -> KnowledgeBase:
    """The knowledge base; the same one wherever it is asked for."""
    sizes = {kind: knowledge.sizes(kind) for kind in KINDS}
    # One stream for both parts, so that no name is in both.
    names = iter(_names(sum(sum(parts.values()) for parts in sizes.values()), knowledge))
    entities: list[Entity] = []
    for split in ("train", "validation"):
        part: dict[Kind, list[str]] = {kind: [next(names) for _ in range(sizes[kind][split])] for kind in KINDS}
        facts = _facts(part, keyed_generator(knowledge.seed, f"knowledge of {split}"))
        # From numbers of its own, so that the facts are the same whether they are shuffled or not.
        told = _told(part, facts, keyed_generator(knowledge.seed, f"order of facts of {split}") if knowledge.shuffled else None)
        entities += [Entity(name=name, kind=kind, split=split, facts=told[name]) for kind in KINDS for name in part[kind]]
    return KnowledgeBase(entities, style=knowledge.style, values=knowledge.values)


def _names(count: int, knowledge: Knowledge) -> list[str]:
    """Different names, all equally likely."""
    generator = keyed_generator(knowledge.seed, "names of the knowledge base")
    # Not a set, whose order differs from process to process.
    found: dict[str, None] = {}
    while len(found) < count:
        rows: list[list[int]] = generator.integers(len(_SYLLABLES), size=(count, knowledge.syllables)).tolist()
        for row in rows:
            name = "".join(_SYLLABLES[number] for number in row)
            found[name if knowledge.lower_case else name.capitalize()] = None
    return list(found)[:count]


def _facts(part: dict[Kind, list[str]], generator: np.random.Generator) -> dict[str, dict[str, str]]:
    """What is known of each entity of a part, by its name."""
    facts: dict[str, dict[str, str]] = {name: {} for names in part.values() for name in names}
    # Last who is boss, mayor or capital, which depends on who works and lives where.
    for relation in sorted(RELATIONS, key=lambda relation: relation.name in _LOCAL):
        fits = _candidates(relation, part, facts)
        for name in part[relation.kind]:
            choices = fits.get(name, fits[""])
            # Nobody is his own mentor; each part has at least two of each kind.
            while (value := choices[int(generator.integers(len(choices)))]) == name:
                pass
            facts[name][relation.name] = value
    return facts


def _told(
    part: dict[Kind, list[str]], facts: dict[str, dict[str, str]], generator: np.random.Generator | None
) -> dict[str, dict[str, str]]:
    """The facts of each entity in the order of its passage: that of `RELATIONS`, or for each its own."""
    told: dict[str, dict[str, str]] = {}
    for kind, names in part.items():
        words = [relation.name for relation in relations_of(kind)]
        orders = np.tile(np.arange(len(words)), (len(names), 1))
        if generator is not None:
            orders = generator.permuted(orders, axis=1)
        rows: list[list[int]] = orders.tolist()
        told |= {name: {words[at]: facts[name][words[at]] for at in row} for name, row in zip(names, rows, strict=True)}
    return told


def _candidates(relation: Relation, part: dict[Kind, list[str]], facts: dict[str, dict[str, str]]) -> dict[str, Sequence[str]]:
    """What a fact may say of each name where only some things fit, and under "" what it may say of any other."""
    if relation.to is None:
        return {"": relation.values}
    fits: dict[str, Sequence[str]] = {"": part[relation.to]}
    back = _LOCAL.get(relation.name)
    if back is not None:
        local: dict[str, list[str]] = {}
        for name in part[relation.to]:
            local.setdefault(facts[name][back], []).append(name)
        fits |= local
    return fits
