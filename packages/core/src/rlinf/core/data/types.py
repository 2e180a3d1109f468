"""The data that parts exchange: frozen, batch-major and complete.

Shape letters: **B** samples, **T** decisions along a sample, **K** control steps in one decision, **A** action dimensions, `*` any
further dimensions. Arrays are NumPy or torch (`A` below stands for one of the two); trees are arrays or mappings of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, cast

from rlinf.core.data.arrays import A, Array
from rlinf.core.data.tree import Tree, tree_index
from rlinf.core.metrics import Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Shape, type and bounds of an array of one sample (no batch axis)."""

    shape: tuple[int, ...]
    dtype: str
    low: Array | None = None
    """The lower bounds, `shape`; None for observations whose bounds nobody knows."""
    high: Array | None = None
    """The upper bounds, `shape`; None for observations whose bounds nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What a policy must know of an environment to be built for it."""

    observation: Mapping[str, ArraySpec]
    """By observation key (`states`, `main_images`, …)."""
    action: ArraySpec
    """One control step: a vector `[A]`; integers are numbered actions, `[]` for one (`Discrete`) or `[A]` (`MultiDiscrete`)."""
    max_episode_steps: int
    """Control steps until an episode is truncated."""
    knows_success: bool = True
    """Whether the task says if it is solved; where it doesn't, only its return measures a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[A]):
    """What a policy decided for a batch, and what is needed to re-score it later."""

    action: A
    """`[B, K, A]`, or `[B, K]` where one control step is a single number."""
    logprob: A
    """`[B]`, `[B, K]` or `[B, K, A]`, at the policy's declared granularity."""
    value: A | None = None
    """`[B]`; None if the policy has no critic."""
    context: Tree[A]
    """What `default_forward` needs to re-score the decision, each leaf `[B, *]`."""
    version: int
    """The version of the weights that decided."""

    def rows(self, key: Any) -> Decision[A]:
        """The decisions of some rows, chosen as one would index an array."""

        def chosen(array: A) -> A:
            return array[key]

        return Decision(
            action=chosen(self.action),
            logprob=chosen(self.logprob),
            value=None if self.value is None else chosen(self.value),
            context=tree_index(self.context, key),
            version=self.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Generic[A]):
    """One generated sequence of tokens."""

    tokens: A
    """`[L]` token ids."""
    logprob: A
    """`[L]` log-probabilities under the weights that sampled them."""
    version: A
    """`[L]` int, the weights that wrote each token."""
    finish: Literal["stop", "length", "abort", "error"]
    """"stop": its last token is a stop token; "length": it is as long as allowed; "abort": a caller cut it; "error": a fault."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that wrote a token; None if there is no token."""
        return min((int(v) for v in cast("Iterable[Any]", self.version)), default=None)

    @property
    def newest(self) -> int | None:
        """The newest weight version that wrote a token; None if there is no token."""
        return max((int(v) for v in cast("Iterable[Any]", self.version)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored(Generic[A]):
    """What the current policy says of past decisions."""

    logprob: A
    """The shape of `Decision.logprob` with the batch axes of what was evaluated."""
    entropy: A | None = None
    """Per decision; None if the policy has no closed form."""
    value: A | None = None
    """Per decision; None if the policy has no critic."""
    sum_pi_squared: A | None = None
    """`[B, T]`, Σₐ π(a)² over all that each decision could have been, 0 where nothing was decided; None if nobody adds it up, as
    where a gradient is recorded."""
    version: int | None = None
    """The version of the weights that evaluated; None if nobody counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(Generic[A]):
    """What two sides say of the same decisions."""

    rollout: A
    """`[B, T]` log-probabilities when they were drawn."""
    trainer: A
    """`[B, T]` log-probabilities of the trainer's weights, before any update."""
    mask: A
    """`[B, T]` bool, what counts."""
    version: A | None = None
    """`[B, T]` int, the weights that drew each; None if nobody counted."""
    trainer_version: int | None = None
    """Those of the trainer; None if nobody counted."""
    checksums: tuple[Mapping[str, str], Mapping[str, str]] | None = None
    """Of the rollout's and of the trainer's weights, by name; None if nobody asked."""
    rescore: Callable[[float], A] | None = None
    """`[B, T]`, the trainer's log-probabilities with its temperature multiplied by a factor; None if it can't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput(Generic[A]):
    """What a loss says of one micro-batch: sums, so that splitting a batch never changes a gradient."""

    total: A
    """`[]`, the sum of weighted per-decision losses; differentiable."""
    weight: A
    """`[]`, the sum of weights; the engine divides by its total over micro-batches and ranks."""
    metrics: Mapping[str, Statistic] = field(default_factory=dict[str, Statistic])
    """What to log, by name."""
    td_error: A | None = None
    """`[B]`, |δ| of each transition, by which prioritised replay draws; no gradient. None of a loss that compares no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Generic[A]):
    """Named parameters and buffers at one version."""

    tensors: Mapping[str, A]
    version: int
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a policy needs beside its weights, such as normalisation statistics; plain JSON values."""
