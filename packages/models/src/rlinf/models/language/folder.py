"""Language models on disk, in the layout of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import safetensors.torch
from torch import nn

from rlinf.core.errors import CheckpointError

if TYPE_CHECKING:
    from rlinf.models.language.model import LanguageModel

VALUE_HEAD: Final = Path("value_head/model.safetensors")
"""In a folder of its own: engines read every `*.safetensors` beside `config.json`."""
_safetensors: Any = safetensors.torch


def save_language_model(model: LanguageModel, folder: Path, *, tokenizer: Any = None, shard_size: str = "5GB") -> None:
    """Writes a folder that `AutoModelForCausalLM.from_pretrained`, vLLM and SGLang read; adapters are merged into it.

    Args:
        model: what `build` made.
        folder: made if it is not there. The value head goes to a file of its own, which only we read.
        tokenizer: anything of transformers with `save_pretrained`; written beside the model.
        shard_size: the largest file; more than that is split, with an index.
    """
    from rlinf.models.language._folder import save_network

    save_network(model.network, folder, shard_size=shard_size)
    if model.value_head is not None:
        (folder / VALUE_HEAD).parent.mkdir(exist_ok=True)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.value_head.state_dict().items()}
        _safetensors.save_file(state, folder / VALUE_HEAD)
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def load_value_head(head: nn.Module, folder: Path) -> None:
    """Reads a value head if the folder has one; otherwise it stays as it is.

    Raises:
        CheckpointError: it is of another shape.
    """
    if not (folder / VALUE_HEAD).is_file():
        return
    try:
        head.load_state_dict(_safetensors.load_file(folder / VALUE_HEAD))
    except RuntimeError as error:
        raise CheckpointError(str(folder / VALUE_HEAD), str(error), "Build the head that was saved.") from error
