"""What a sampler draws: transitions over one or several decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from rlinf.core.data.arrays import A
from rlinf.core.data.tree import Tree, tree_concatenate, tree_map


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions(Generic[A]):
    """B transitions (s, a, r, s′) over k decisions each, k at most the n of the buffer.

    r = Σ_{j<k} γʲ r_{t+j},   s′ = s_{t+k},   and what follows counts γᵏ.
    """

    observation: Tree[A]
    """`[B, *]` by key, s: what was seen before the decision."""
    action: A
    """`[B, K, A]` in the units of the environment, or `[B, K]` where an action is one number."""
    reward: A
    """`[B]` float32."""
    observation_next: Tree[A]
    """`[B, *]` by key, s′: after the last of the k decisions; where an episode ended, its final observation."""
    terminated: A
    """`[B]` bool, the task itself ended in s′, after which nothing is worth anything."""
    discount: A
    """`[B]` float32, γᵏ."""
    weight: A | None = None
    """`[B]` float32, what each counts in the loss of the critics: importance weights of a buffer that prefers some. None: each
    counts 1, as those that were drawn uniformly do."""

    def __len__(self) -> int:
        return self.reward.shape[0]

    def map(self, function: Callable[[Any], Any]) -> Transitions[Any]:
        """The same with `function` applied to every array."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Transitions(**{name: None if field is None else tree_map(function, field) for name, field in fields.items()})

    def rows(self, key: Any) -> Transitions[A]:
        """The rows that `key` (a slice or an index array) picks."""

        def pick(leaf: Any) -> Any:
            return leaf[key]

        return self.map(pick)

    @staticmethod
    def concat(parts: Sequence[Transitions[Any]]) -> Transitions[Any]:
        """The rows of all parts, in their order; observations have the same keys. Beside weights, rows without any weigh 1."""
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in dataclasses.fields(Transitions)}
        if any(weight is not None for weight in columns["weight"]):
            # By arithmetic, so that the ones are NumPy or torch, and on the device, as the rows are.
            columns["weight"] = [part.discount * 0 + 1 if part.weight is None else part.weight for part in parts]
        return Transitions(**{name: None if each[0] is None else tree_concatenate(each) for name, each in columns.items()})
