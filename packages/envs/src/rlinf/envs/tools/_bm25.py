"""Retrieval by words: BM25, by the library bm25s."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_bm25s: Any = importlib.import_module("bm25s")


class WordIndex:
    """Which passages share rare words with a query.

    Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), §3.4, in the variant of Lucene, which
    bm25s computes beforehand: Lù, "BM25S: Orders of Magnitude Faster Lexical Search via Eager Sparse Scoring" (2024),
    arXiv:2407.03618.

    Args:
        texts: at least one.
        k1: how much a word counts that is repeated.
        b: how much long texts are held back, in [0, 1].
    """

    def __init__(self, texts: Sequence[str], *, k1: float, b: float) -> None:
        self._index: Any = _bm25s.BM25(k1=k1, b=b)
        self._index.index(_words(texts), show_progress=False)
        self._known = frozenset(self._index.vocab_dict)

    def best(self, query: str, count: int) -> list[int]:
        """The numbers of the best texts, the best one first, at most `count`; of equals the one that comes first.

        Texts that share no word with the query are left out.
        """
        words = [word for word in _words([query])[0] if word in self._known]
        if not words:
            return []
        scores: np.ndarray[Any, Any] = np.asarray(self._index.get_scores(words))
        found = np.flatnonzero(scores)
        if len(found) > count:
            # Not a sort of all: a word that is everywhere finds millions of texts in a large corpus.
            found = found[scores[found] >= np.partition(scores[found], -count)[-count]]
        return found[np.argsort(-scores[found], kind="stable")][:count].tolist()


def _words(texts: Sequence[str]) -> list[list[str]]:
    # No list of stop words: words that are everywhere weigh next to nothing, and a generated name may be one of them.
    return _bm25s.tokenize(list(texts), stopwords=[], return_ids=False, show_progress=False)
