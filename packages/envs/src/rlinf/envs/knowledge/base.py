"""Entities with facts, and the passages that tell of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Split
from rlinf.envs.knowledge.facts import Kind, relations_of

Style = Literal["sentences", "brief"]
"""How passages tell a fact: `Bodaru works for Velmi.`, or `employer Velmi`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A short document."""

    id: str
    """Unique in its corpus."""
    title: str
    """What it is about."""
    text: str
    """What it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """Something that has a name."""

    name: str
    """Unique among all entities."""
    kind: Kind
    """What it is."""
    split: Split
    """Whether it is known to training, or held out; all its facts are about entities of the same split."""
    facts: Mapping[str, str]
    """By the names of relations: the name of another entity, or a value. Its passage tells them in this order."""


class KnowledgeBase:
    """Entities, which know each other by name.

    Args:
        entities: with different names.
        style: of passages.
        values: whether passages tell what is no entity, such as years.

    Raises:
        ConfigError: two have one name.
    """

    def __init__(self, entities: Sequence[Entity], *, style: Style = "sentences", values: bool = True) -> None:
        self.entities = tuple(entities)
        self._style, self._values = style, values
        self._by_name = {entity.name: entity for entity in self.entities}
        if len(self._by_name) < len(self.entities):
            raise ConfigError("knowledge", f"{len(self.entities)} entities have {len(self._by_name)} names", "Name them apart.")

    def __getitem__(self, name: str) -> Entity:
        return self._by_name[name]

    def of_kind(self, kind: Kind, split: Split | None = None) -> tuple[Entity, ...]:
        """All entities of a kind, in order; those of one split, or of both."""
        return tuple(entity for entity in self.entities if entity.kind == kind and split in (None, entity.split))

    def passage(self, entity: Entity) -> Passage:
        """The one that tells all facts of an entity, and of no other."""
        relations = {relation.name: relation for relation in relations_of(entity.kind, values=self._values)}
        known = [relations[name] for name in entity.facts if name in relations]
        if self._style == "brief":
            told = ", ".join(f"{relation.name} {entity.facts[relation.name]}" for relation in known)
            text = f"{entity.name}: {told}"
        else:
            sentences = [relation.sentence.format(name=entity.name, value=entity.facts[relation.name]) for relation in known]
            text = " ".join([f"{entity.name} is a {entity.kind}.", *sentences])
        return Passage(id=f"{entity.kind}/{entity.name}", title=entity.name, text=text)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """One for each entity, in order: the corpus."""
        return tuple(map(self.passage, self.entities))
