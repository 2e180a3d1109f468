"""`BasePolicy`: the one interface of policies that act."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf.core.data import Batch, Credit, Decision, Rescored, Weights
from rlinf.core.data.tree import Tree, tree_index, tree_map
from rlinf.core.errors import ConfigError, WeightSyncError, did_you_mean
from rlinf.core.protocols import Mode
from rlinf.models.observations.reading import refuse_not_finite

_NONE: Final = slice(0, 0)
_MODES: Final[tuple[Mode, ...]] = get_args(Mode)


def decides(decide: Callable[..., Decision[Tensor]]) -> Callable[..., Decision[Tensor]]:
    """`predict_action_batch` that refuses a misspelt mode and observations that are not finite, and takes no rows, too.

    Many networks can't be asked about no rows: they are asked about a row of zeros, of which nothing is kept.
    """

    @functools.wraps(decide)
    def checked(
        self: Any, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        if mode not in _MODES:
            raise ConfigError("predict_action_batch(mode)", f"no mode {mode!r}", did_you_mean(str(mode), _MODES, label="Modes"))
        refuse_not_finite(env_obs)
        if not _empty(env_obs):
            return decide(self, env_obs, mode, generator=generator)
        decision = decide(self, tree_map(_blank_leaf, env_obs), mode, generator=generator)
        return replace(
            decision,
            action=decision.action[_NONE],
            logprob=decision.logprob[_NONE],
            value=None if decision.value is None else decision.value[_NONE],
            context=tree_index(decision.context, _NONE),
        )

    return checked


def scores(score: Callable[..., Rescored[Tensor]]) -> Callable[..., Rescored[Tensor]]:
    """`default_forward` that takes no rows, too; a graph remains, since a sharded network must run on every rank."""

    @functools.wraps(score)
    def checked(self: Any, batch: Batch[Tensor]) -> Rescored[Tensor]:
        if len(batch):
            return score(self, batch)
        found = score(self, _blank_batch(batch))
        return replace(
            found,
            logprob=found.logprob[_NONE],
            entropy=None if found.entropy is None else found.entropy[_NONE],
            value=None if found.value is None else found.value[_NONE],
        )

    return checked


def _empty(env_obs: Tree[Any]) -> bool:
    """Whether observations have no rows; judged by the first leaf, for this is asked at every decision."""
    leaf: Any = env_obs
    while isinstance(leaf, Mapping):
        leaf = next(iter(cast("Mapping[str, Any]", leaf).values()), (None,))
    return len(leaf) == 0


def _blank_leaf(leaf: Any) -> Any:
    """A leaf with one row of zeros, or of no text."""
    if isinstance(leaf, Tensor):
        return leaf.new_zeros(1, *leaf.shape[1:])
    if isinstance(leaf, np.ndarray):
        array = cast("NDArray[Any]", leaf)
        return np.zeros((1, *array.shape[1:]), array.dtype)
    return [""]  # what comes as a list is text


def _blank_batch(batch: Batch[Tensor]) -> Batch[Tensor]:
    """A batch with one row, which only pads: its mask is False, its numbers are 0.

    What its context says there is (`token_mask`, `image_masks`) is there: attention to nothing is not a number, and so would be
    the gradient of nothing.
    """

    def blank(leaf: Tensor) -> Tensor:
        return leaf.new_zeros(1, *leaf.shape[1:])

    def context(leaf: Tensor) -> Tensor:
        return leaf.new_ones(1, *leaf.shape[1:]) if leaf.dtype == torch.bool else blank(leaf)

    t, credit = batch.trajectory, batch.credit
    target = None if credit.target is None else blank(credit.target)
    return Batch(
        trajectory=replace(t.map(blank), context=tree_map(context, t.context)),
        credit=Credit(advantage=blank(credit.advantage), target=target),
    )


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
        remedy = "Build both from one configuration."
        copy_tensors(own, weights.tensors, lambda name, problem: WeightSyncError(f"load({name})", problem, remedy))
        self.version = weights.version


def copy_tensors(own: Mapping[str, Tensor], given: Mapping[str, Tensor], refused: Callable[[str, str], Exception]) -> None:
    """Copies tensors into those of the same names, once all were compared: a misfit changes nothing.

    Args:
        own: what is written to.
        given: what is copied.
        refused: the error that is raised, of the first name that differs and of what does.
    """
    for name in sorted(own.keys() | given.keys()):
        expected, found = (
            "no such tensor" if tensor is None else f"shape {tuple(tensor.shape)}" for tensor in (own.get(name), given.get(name))
        )
        if expected != found:
            raise refused(name, f"expected {expected}, found {found}")
    for name, tensor in own.items():
        tensor.copy_(given[name])


def flat_context(batch: Batch[Tensor], device: torch.device) -> dict[str, Tensor]:
    """The context of decisions `[B, T, *]` as rows `[B · T, *]`, where the weights are."""
    leaves = cast("Mapping[str, Tensor]", batch.trajectory.context)
    return {key: leaf.flatten(0, 1).to(device) for key, leaf in leaves.items()}


class BasePolicy(Versioned, ABC):
    """Decides, and re-scores its decisions; both agree to 1e-5 for the same weights.

    A parameter below a module named `critic` or `value_head` belongs to the critic; a trainer may give it a learning rate of its
    own.

    Two things are the same for every policy, and done here for all: observations with infinities or not-a-numbers are refused
    with their key and row, and a batch of no rows gives empty results.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # What a subclass defines is wrapped, so that a policy of yours still has nothing but these two methods to write.
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
