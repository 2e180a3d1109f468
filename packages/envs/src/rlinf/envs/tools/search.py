"""Local retrieval: the passages of a corpus that fit a query best, by words or by a model of embeddings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from rlinf.core.agents import Tool
from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.envs.knowledge.base import Passage
from rlinf.envs.knowledge.corpus import check_passages, read_passages, written
from rlinf.envs.knowledge.generation import Knowledge, generated
from rlinf.envs.tasks.rows import check_rows_file
from rlinf.envs.tools.embedding import Embedding

_SMALL: Final = 50_000
"""Passages up to which a search by words takes less time than a thread for it."""
_LOCK = threading.Lock()


class Index(Protocol):
    """Finds texts."""

    def best(self, query: str, count: int) -> list[int]:
        """The numbers of the best texts, the best one first, at most `count`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search by name: `agent.tools: [{type: search, corpus: wiki.jsonl}]`."""

    corpus: str | None = None
    """Passages: `.jsonl` or `.parquet` with `id`, `title` and `text`; null for those of `knowledge`."""
    knowledge: Knowledge = field(default_factory=Knowledge)
    """The generated knowledge base that is searched without a `corpus`; as the task has it."""
    results: int = 3
    """Passages that are found, at most."""
    titles: bool = True
    """Whether each begins with its number and its title, as in Search-R1."""
    embedding: Embedding | None = None
    """Searches by the meaning of texts, with this model; null for words (BM25)."""
    k1: float = 1.2
    """BM25: how much a word counts that is repeated."""
    b: float = 0.75
    """BM25: how much long passages are held back, in [0, 1]."""
    name: str = "search"
    """The name under which the model calls it."""

    def __post_init__(self) -> None:
        expect_range("results", self.results, 1, 1000)
        expect_range("k1", self.k1, 0.0, 100.0)
        expect_range("b", self.b, 0.0, 1.0)

    def check(self, place: str) -> None:
        """Refuses what is not there.

        Raises:
            ConfigError: no such file, or no such folder.
            MissingExtra: bm25s, or transformers, is not installed.
        """
        if self.corpus is not None:
            check_rows_file(Path(self.corpus).expanduser(), f"{place}.corpus")
        if self.embedding is None:
            require_modules("bm25s", place=place, extra="rlinf-envs[search]")
            return
        folder = self.embedding.model_path
        if not (Path(folder).expanduser() / "config.json").is_file():
            remedy = "Name the folder of a model of transformers; nothing is downloaded."
            raise ConfigError(f"{place}.embedding.model_path", f"no model in '{folder}'", remedy)
        require_modules("torch", "transformers", place=f"{place}.embedding", extra="rlinf-envs[embedding]")

    def build(self) -> Tool:
        """The tool. What it searches is read and indexed at the first call."""

        def search(query: str) -> str:
            """Searches the library for passages.

            Args:
                query: what is looked for.
            """
            found = self.find(query)
            return written(found, titles=self.titles) if found else "nothing found"

        # Only reading a file tells how large its corpus is.
        small = self.corpus is None and self.embedding is None and len(generated(self.knowledge).entities) <= _SMALL
        return Tool.of(search, name=self.name, inline=small)

    def find(self, query: str) -> list[Passage]:
        """The best passages, the best one first; none if no passage fits at all."""
        passages, index = self._indexed()
        return [passages[number] for number in index.best(query, self.results)]

    def _indexed(self) -> tuple[Sequence[Passage], Index]:
        # Otherwise the first calls, which come at one time, would each make an index.
        with _LOCK:
            return _indexed(self.corpus, self.knowledge, self.embedding, self.k1, self.b)


@lru_cache(maxsize=4)
def _indexed(
    corpus: str | None, knowledge: Knowledge, embedding: Embedding | None, k1: float, b: float
) -> tuple[Sequence[Passage], Index]:
    if corpus is None:
        passages: Sequence[Passage] = generated(knowledge).passages
    else:
        passages = tuple(read_passages(Path(corpus).expanduser(), "corpus"))
        check_passages(passages, "corpus")
    texts = [f"{passage.title}\n{passage.text}" for passage in passages]
    if embedding is None:
        from rlinf.envs.tools._bm25 import WordIndex

        return passages, WordIndex(texts, k1=k1, b=b)
    from rlinf.envs.tools._embeddings import VectorIndex

    return passages, VectorIndex(texts, embedding)
