"""A corpus of one's own: passages in a file; and how a model reads those that were found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlinf.core.errors import ConfigError
from rlinf.envs.knowledge.base import Passage
from rlinf.envs.tasks.rows import Row, read_rows, text_field


def read_passages(path: Path, place: str) -> Iterator[Passage]:
    """The passages of a file, in order: `.jsonl` or `.parquet`, rows with `id`, `title` and `text`.

    `id` may be missing, and so may `title`. In place of both title and text a row may have `contents`, of which the first line is
    the title, in quotation marks or not: the corpora of Search-R1 are such files.

    Args:
        path: of the file.
        place: the key that names it.

    Raises:
        ConfigError: a row has neither `text` nor `contents`, or something else than text there; the message names its line.
    """
    for number, (where, row) in enumerate(read_rows(path, place=place)):
        yield _passage(row, where, number)


def _passage(row: Row, where: str, number: int) -> Passage:
    name = text_field(row, "id", where) if "id" in row else str(number)
    if "contents" in row:
        title, line, text = text_field(row, "contents", where).partition("\n")
        return Passage(id=name, title=title.strip().strip('"') if line else "", text=text if line else title)
    title = text_field(row, "title", where) if row.get("title") is not None else ""
    return Passage(id=name, title=title, text=text_field(row, "text", where))


def written(passages: Sequence[Passage], *, titles: bool) -> str:
    """What a model reads of the passages that were found, the best one first.

    With titles they are numbered, as in Jin et al., "Search-R1: Training LLMs to Reason and Leverage Search Engines with
    Reinforcement Learning" (2025), arXiv:2503.09516.

    Args:
        passages: what was found.
        titles: whether each one begins with its number and its title.
    """
    if not titles:
        return "\n".join(passage.text for passage in passages)
    return "\n".join(f"Doc {number}(Title: {passage.title}) {passage.text}" for number, passage in enumerate(passages, start=1))


def check_passages(passages: Sequence[Passage], place: str) -> None:
    """Refuses a corpus in which nothing can be found.

    Raises:
        ConfigError: there is no passage, or two have one id.
    """
    if not passages:
        raise ConfigError(place, "expected at least one passage, found none", "Name another file.")
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise ConfigError(place, f"two passages have the id '{passage.id}'", "Give one of them another id.")
        seen.add(passage.id)
