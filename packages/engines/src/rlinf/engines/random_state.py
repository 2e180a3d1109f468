"""The state of torch's generators."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def random_file(rank: int) -> str:
    """The name of a rank's file below a checkpoint."""
    return f"random_{rank}.safetensors"


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators."""
    state = {"cpu": torch.get_rng_state()}
    # Asked for its state, a GPU that nobody uses would be initialised.
    return {**state, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Goes back to a state of torch's generators."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
