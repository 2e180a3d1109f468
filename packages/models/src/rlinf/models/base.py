"""`BasePolicy`: the one interface of policies that act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.core.data import Decision, Rescored, Weights
from rlinf.core.errors import WeightSyncError
from rlinf.core.protocols import Mode
from rlinf.core.trajectory import Batch
from rlinf.core.tree import Tree
from rlinf.models.entry import decides, scores


class Versioned(nn.Module):
    """A module whose weights go out and come in as a whole, with the version that they are of."""

    version: int = 0
    """The optimizer steps that made the weights."""

    def weights(self) -> Weights[Tensor]:
        """All parameters and persistent buffers by sorted name: views of the module's own memory, not copies."""
        state: dict[str, Tensor] = self.state_dict()
        return Weights(tensors={name: state[name].detach() for name in sorted(state)}, version=self.version)

    @torch.no_grad()
    def load(self, weights: Weights[Tensor]) -> None:
        """Copies weights into the module, and takes over their version.

        Raises:
            WeightSyncError: a name or a shape differs; nothing was changed.
        """
        own = self.weights().tensors
        for name in sorted(own.keys() | weights.tensors.keys()):
            expected, found = _shape(own.get(name)), _shape(weights.tensors.get(name))
            if expected != found:
                raise WeightSyncError(f"load({name})", f"expected {expected}, found {found}", "Build both from one configuration.")
        for name, tensor in own.items():
            tensor.copy_(weights.tensors[name])
        self.version = weights.version


def _shape(tensor: Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"shape {tuple(tensor.shape)}"


class BasePolicy(Versioned, ABC):
    """Decides, and re-scores its decisions; both agree to 1e-5 for the same weights.

    A parameter below a module named `critic` or `value_head` belongs to the critic; a trainer may give it a learning rate of its
    own.

    Two things are the same for every policy, and done here for all: observations with infinities or not-a-numbers are refused
    with their key and row, and a batch of no rows gives empty results.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # What a subclass defines is wrapped, so that a stranger's policy still has nothing but these two methods to write.
        own = vars(cls)
        if "predict_action_batch" in own:
            cls.predict_action_batch = decides(cls.predict_action_batch)
        if "default_forward" in own:
            cls.default_forward = scores(cls.default_forward)

    @abstractmethod
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for a batch of observations, without a graph.

        Args:
            env_obs: observations by key, each leaf `[B, *]`, NumPy or torch; neither kept nor changed.
            mode: "train" samples; "eval" takes the most likely action.
            generator: the source of all randomness; torch's global one if None.
        """

    @abstractmethod
    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """What the current weights say of the decisions of a batch, differentiable, each field `[B, T, …]`."""
