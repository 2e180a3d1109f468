"""Which kinds of things there are, and what is known of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["person", "company", "city", "country"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that is known of every entity of a kind: another entity, or a value."""

    kind: Kind
    """Of what it is known."""
    name: str
    """One word, such as `employer`; different kinds have different words."""
    to: Kind | None
    """The kind of the other entity; None for a value."""
    sentence: str
    """What a passage says, with `{name}` and `{value}`."""
    values: tuple[str, ...] = ()
    """What it may be, where it is a value."""


def _years(first: int, last: int) -> tuple[str, ...]:
    return tuple(map(str, range(first, last)))


_JOBS: Final = ("actor", "baker", "doctor", "farmer", "judge", "pilot", "sailor", "teacher")
_TRADES: Final = ("glass", "paper", "ships", "shoes", "steel", "toys", "wine", "wool")
_RIVERS: Final = ("Arn", "Bel", "Dov", "Esk", "Inn", "Lune", "Oder", "Tay")
_MONEY: Final = ("crown", "dinar", "florin", "mark", "peso", "pound", "shilling", "thaler")

RELATIONS: Final[tuple[Relation, ...]] = (
    Relation("person", "employer", "company", "{name} works for {value}."),
    Relation("person", "home", "city", "{name} lives in {value}."),
    Relation("person", "mentor", "person", "The mentor of {name} was {value}."),
    Relation("person", "born", None, "{name} was born in {value}.", _years(1930, 2000)),
    Relation("person", "job", None, "The job of {name} is that of a {value}.", _JOBS),
    Relation("company", "seat", "city", "{name} has its seat in {value}."),
    Relation("company", "boss", "person", "The boss of {name} is {value}."),
    Relation("company", "founded", None, "{name} was founded in {value}.", _years(1850, 2020)),
    Relation("company", "trade", None, "The trade of {name} is in {value}.", _TRADES),
    Relation("city", "country", "country", "{name} is in the country {value}."),
    Relation("city", "mayor", "person", "The mayor of {name} is {value}."),
    Relation("city", "river", None, "The river of {name} is the {value}.", _RIVERS),
    Relation("country", "capital", "city", "The capital of {name} is {value}."),
    Relation("country", "ruler", "person", "The ruler of {name} is {value}."),
    Relation("country", "money", None, "The money of {name} is the {value}.", _MONEY),
)
"""All that is known."""


def relations_of(kind: Kind, *, values: bool = True) -> tuple[Relation, ...]:
    """What is known of a kind, with or without what is no entity."""
    return tuple(relation for relation in RELATIONS if relation.kind == kind and (values or relation.to is not None))
