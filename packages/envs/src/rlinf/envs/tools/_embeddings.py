"""Retrieval by meaning: vectors of a transformers model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlinf.core.errors import CheckpointError
from rlinf.envs.tools.embedding import Embedding

_hf: Any = import_module("transformers")


class VectorIndex:
    """Which passages point in the direction of a query: cosine similarity, compared with all of them.

    Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering" (2020), §3.1, arXiv:2004.04906, who use inner
    products; E5 and BGE are trained for the cosine.

    Args:
        texts: at least one.
        config: the model, and how texts go through it.

    Raises:
        CheckpointError: the folder holds no model, or no tokenizer.
    """

    def __init__(self, texts: Sequence[str], config: Embedding) -> None:
        self._config = config
        folder = str(Path(config.model_path).expanduser())
        try:
            self._tokenizer: Any = _hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = _hf.AutoModel.from_pretrained(folder, local_files_only=True).to(config.device).eval()
        except (OSError, ValueError, KeyError) as error:
            found = f"no model in '{config.model_path}' ({str(error).splitlines()[0]})"
            raise CheckpointError("embedding.model_path", found, "Point to a folder of transformers.") from error
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # Calls come from threads; a model on one device gains nothing from several at a time.
        self._lock = threading.Lock()
        # Of similar length together, or the padding would take most of the time.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        parts = [order[start : start + config.batch_size] for start in range(0, len(order), config.batch_size)]
        vectors = torch.cat([self.vectors([config.passage_prefix + texts[number] for number in part]) for part in parts])
        self._vectors = vectors[torch.argsort(torch.tensor(order, device=vectors.device))]

    def best(self, query: str, count: int) -> list[int]:
        """The numbers of the best texts, the best one first; every text fits somewhat."""
        (vector,) = self.vectors([self._config.query_prefix + query])
        # Stable, so that of equals the one comes first that comes first in the corpus.
        order: Any = torch.argsort(self._vectors @ vector, descending=True, stable=True)
        return [int(number) for number in order[:count]]

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """`[N, D]` float32, of length 1."""
        with self._lock, torch.inference_mode():
            length = self._config.max_length
            given: Any = self._tokenizer(list(texts), padding=True, truncation=True, max_length=length, return_tensors="pt")
            given = given.to(self._config.device)
            hidden: Tensor = self._model(**given).last_hidden_state
            return torch.nn.functional.normalize(self._pooled(hidden, given["attention_mask"]).float(), dim=-1)

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        rows = torch.arange(len(hidden), device=hidden.device)
        if self._config.pooling == "mean":
            weight = mask[..., None].to(hidden.dtype)
            return (hidden * weight).sum(1) / weight.sum(1)
        # Where texts are filled up on the left, the first real column is not 0.
        if self._config.pooling == "cls":
            return hidden[rows, mask.argmax(1)]
        return hidden[rows, (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(1)]
