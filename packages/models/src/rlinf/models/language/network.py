"""What is used of the language models of transformers, whose own classes have too few types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn


class Network(Protocol):
    """A causal language model, or one that also sees."""

    config: Any
    """Its sizes, ids and names; a class of its own for each architecture."""
    base_model: Any
    """The part before the output embedding, called with `input_ids` and `position_ids`."""
    dtype: torch.dtype

    def __call__(self, **inputs: Any) -> Any:
        """An output with `logits`."""
        ...

    def get_output_embeddings(self) -> Any:
        """What makes logits of hidden states; None in the parts of a model that make none."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All of them, as of a module."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor], *, assign: bool) -> Any:
        """As of a module."""
        ...

    def tie_weights(self) -> None:
        """Makes the output embedding that of the input again, where the architecture wants that."""
        ...

    def save_pretrained(self, folder: str, *, max_shard_size: str) -> None:
        """Writes the folder of Hugging Face."""
        ...


def as_network(module: nn.Module) -> Network:
    """The module with the types of a language model."""
    return cast("Network", module)
