"""Trajectories and the batches made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from rlinf.core.data.arrays import A, Array, as_like, as_numpy, concatenate, full_like, stack, zeros_like
from rlinf.core.data.tree import Tree, tree_combine, tree_concatenate, tree_leaves, tree_map
from rlinf.core.data.types import Decision
from rlinf.core.errors import ShapeError

S = TypeVar("S", bound="Trajectory[Any] | Credit[Any]")
N = TypeVar("N", bound=Array)
"""The kind of arrays of a new trajectory: a static method can't take that of its class."""
Leafwise = Callable[[Any], Any]


def _fields(item: Trajectory[Any] | Credit[Any]) -> dict[str, Any]:
    # Not `dataclasses.asdict`, which copies every array.
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _map_fields(item: S, function: Leafwise) -> S:
    """The same dataclass with `function` applied to every array."""
    make: Callable[..., S] = type(item)
    return make(**{name: None if value is None else tree_map(function, value) for name, value in _fields(item).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(Generic[A]):
    """B pieces of episodes, each at most T decisions long.

    A row never runs across a reset: it begins anywhere in an episode and ends with it at the latest; what follows the end is
    padding, `mask` False. `value[b, t + 1]` is always the value of the observation that followed decision `t` of row `b`, so the
    last valid column of a row bootstraps it, and a truncated row bootstraps from its true final observation.
    """

    context: Tree[A]
    """`[B, T, *]`, what is needed to re-score each decision."""
    action: A
    """`[B, T, K, A]`."""
    logprob: A
    """`[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the weights that decided."""
    reward: A
    """`[B, T]` float."""
    terminated: A
    """`[B, T]` bool, the task itself ended here."""
    truncated: A
    """`[B, T]` bool, a limit cut the episode here."""
    mask: A
    """`[B, T]` bool, False where the row is padding."""
    version: A
    """`[B, T]` int, the weights that decided."""
    group: A
    """`[B]` int, rows of one group are of episodes that started from the same state (a question, an initial state); never parted by
    `split`. A row that continues an episode of an earlier iteration has the group of that episode."""
    task: A
    """`[B]` int, the task of each row."""
    value: A | None = None
    """`[B, T + 1]`, the last column is the bootstrap; None without a critic."""
    reference: A | None = None
    """`[B, T]` of whole decisions, or the shape of `logprob`: under a reference policy or a teacher; None where there is none."""
    proximal: A | None = None
    """The shape of `logprob`, under the trainer's own weights before the update; None where nobody computed it."""
    sum_pi_squared: A | None = None
    """`[B, T]`, Σₐ π(a)² over all that each decision could have been, under the weights of `proximal`; None where nobody computed
    it."""
    episode: A | None = None
    """`[B]` int, rows of one episode (its turns, its agents); None where every row is an episode of its own."""
    baseline: A | None = None
    """`[B]` float, the score of another answer to each row's question, such as the likeliest one; None where there is none."""
    intervened: A | None = None
    """`[B, T]` bool, somebody else acted in place of the policy, whose `logprob` is of what it would have done; None where nobody
    could."""
    observation: Tree[A] | None = None
    """`[B, T + 1, *]`, what was seen before each decision, and in the column behind the last one what followed it, which is the
    final observation where the episode ended; None where a run does not keep what was seen."""

    def __post_init__(self) -> None:
        _check_trajectory(self)

    def __len__(self) -> int:
        return self.reward.shape[0]

    @property
    def horizon(self) -> int:
        """T, the number of decision columns."""
        return self.reward.shape[1]

    @staticmethod
    def of(
        *,
        context: Tree[Any],
        action: N,
        logprob: N,
        reward: N | None = None,
        terminated: N | None = None,
        truncated: N | None = None,
        mask: N | None = None,
        version: N | None = None,
        group: N | None = None,
        task: N | None = None,
        value: N | None = None,
        reference: N | None = None,
        proximal: N | None = None,
        sum_pi_squared: N | None = None,
        episode: N | None = None,
        baseline: N | None = None,
        intervened: N | None = None,
        observation: Tree[Any] | None = None,
    ) -> Trajectory[N]:
        """A trajectory of columns, of which only what a policy decides must be known.

        What isn't given is as if nothing had come of the decisions: no reward, no end, no padding, version 0, each row a group of
        its own, task 0. It has the kind (NumPy or torch) and the device of `action`.
        """
        shape = tuple(action.shape[:2])

        def default(given: N | None, axes: int, value: float, dtype: str) -> Any:
            return full_like(action, shape[:axes], value, dtype) if given is None else given

        return Trajectory(
            context=context,
            action=action,
            logprob=logprob,
            reward=default(reward, 2, 0.0, "float32"),
            terminated=default(terminated, 2, False, "bool"),
            truncated=default(truncated, 2, False, "bool"),
            mask=default(mask, 2, True, "bool"),
            version=default(version, 2, 0, "int64"),
            group=as_like(action, np.arange(shape[0])) if group is None else group,
            task=default(task, 1, 0, "int64"),
            value=value,
            reference=reference,
            proximal=proximal,
            sum_pi_squared=sum_pi_squared,
            episode=episode,
            baseline=baseline,
            intervened=intervened,
            observation=observation,
        )

    @staticmethod
    def of_decisions(decisions: Sequence[Decision[N]]) -> Trajectory[N]:
        """The decisions of consecutive steps for the same B samples as columns, of which nothing has come; without values."""

        def columns(leaves: Sequence[Any]) -> Any:
            return stack(leaves, axis=1)

        action, logprob = columns([d.action for d in decisions]), columns([d.logprob for d in decisions])
        version = stack([full_like(action, d.action.shape[:1], d.version, "int64") for d in decisions], axis=1)
        context = tree_combine(columns, [d.context for d in decisions])
        return Trajectory.of(context=context, action=action, logprob=logprob, version=version)

    def columns(self, count: int) -> Trajectory[A]:
        """The first `count` decisions of each row."""
        wide = {k: v for k, v in _fields(self).items() if v is not None and k not in _BY_ROW}
        # These have one column more, for what follows the last decision.
        cut = {k: tree_map(lambda leaf, k=k: leaf[:, : count + (k in _BEFORE_AND_AFTER)], v) for k, v in wide.items()}
        return dataclasses.replace(self, **cut)

    def rows(self, key: Any) -> Trajectory[A]:
        """The rows that `key` (a slice or an index array) picks."""

        def pick(leaf: Any) -> Any:
            return leaf[key]

        return _map_fields(self, pick)

    def map(self, function: Leafwise) -> Trajectory[Any]:
        """The trajectory with `function` applied to every array."""
        return _map_fields(self, function)

    def split(self, parts: int) -> list[Trajectory[A]]:
        """`parts` trajectories of nearly equal size that never part a group; some are empty when groups are few."""
        group = as_numpy(self.group)
        names, first = np.unique(group, return_index=True)
        # `np.unique` sorts by number; groups are to stay in the order of their first rows.
        ordered = names[np.argsort(first)]
        return [self.rows(np.flatnonzero(np.isin(group, chunk))) for chunk in np.array_split(ordered, parts)]

    @staticmethod
    def concat(parts: Sequence[Trajectory[Any]]) -> Trajectory[Any]:
        """Joins rows; a shorter horizon is padded with masked columns."""
        if not parts:
            raise ShapeError("Trajectory.concat(parts)", "expected at least one trajectory, found none")
        horizon = max(part.horizon for part in parts)
        padded = [_pad(part, horizon) for part in parts]
        fields = (f.name for f in dataclasses.fields(Trajectory))
        columns = {name: [getattr(part, name) for part in padded] for name in fields}
        return Trajectory(**{k: None if v[0] is None else tree_concatenate(v) for k, v in columns.items()})


_BY_ROW: Final = frozenset({"group", "task", "episode", "baseline"})
"""Fields without a time axis."""
_BEFORE_AND_AFTER: Final = frozenset({"value", "observation"})
"""Fields with T + 1 columns."""


def _check_trajectory(trajectory: Trajectory[Any]) -> None:
    rows, horizon = trajectory.reward.shape
    expected = {"terminated": 2, "truncated": 2, "mask": 2, "version": 2, "action": 2, "logprob": 2, "group": 1, "task": 1}
    for name, axes in expected.items():
        found = tuple(getattr(trajectory, name).shape)
        if found[:axes] != (rows, horizon)[:axes]:
            place = f"Trajectory.{name}"
            raise ShapeError(place, f"expected {(rows, horizon)[:axes]} leading sizes as in reward, found {found}")
    fine = tuple(trajectory.logprob.shape)
    optional = {
        "reference": ((rows, horizon), fine),
        "proximal": (fine,),
        "sum_pi_squared": ((rows, horizon),),
        "episode": ((rows,),),
        "baseline": ((rows,),),
        "intervened": ((rows, horizon),),
    }
    for name, shapes in optional.items():
        field = getattr(trajectory, name)
        if field is not None and tuple(field.shape) not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ShapeError(f"Trajectory.{name}", f"expected {expected}, found {tuple(field.shape)}")
    if trajectory.value is not None and tuple(trajectory.value.shape) != (rows, horizon + 1):
        found = tuple(trajectory.value.shape)
        raise ShapeError("Trajectory.value", f"expected [B, T + 1] = {(rows, horizon + 1)}, found {found}")
    for path, leaf in tree_leaves(trajectory.context):
        if tuple(leaf.shape[:2]) != (rows, horizon):
            raise ShapeError(f"Trajectory.context.{path}", f"expected [B, T, *] = {(rows, horizon)}, found {leaf.shape}")
    for path, leaf in tree_leaves({} if trajectory.observation is None else trajectory.observation):
        if tuple(leaf.shape[:2]) != (rows, horizon + 1):
            place, found = f"Trajectory.observation.{path}", tuple(leaf.shape)
            raise ShapeError(place, f"expected [B, T + 1, *] = {(rows, horizon + 1)}, found {found}")


def _pad(trajectory: Trajectory[A], horizon: int) -> Trajectory[A]:
    """The trajectory with masked columns appended until it has `horizon` of them."""
    missing = horizon - trajectory.horizon
    if missing == 0:
        return trajectory

    def widen(leaf: Any) -> Any:
        # `concatenate` joins along axis 0, so that time takes its place meanwhile.
        swapped = leaf.swapaxes(0, 1)
        tail = concatenate([swapped[-1:]] * missing)
        return concatenate([swapped, zeros_like(tail)]).swapaxes(0, 1)

    wide = {k: v if v is None or k in _BY_ROW else tree_map(widen, v) for k, v in _fields(trajectory).items()}
    return Trajectory(**wide)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit(Generic[A]):
    """Each decision's share of the outcome."""

    advantage: A
    """`[B, T]`."""
    target: A | None = None
    """`[B, T]`, what the critic should say; None without a critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[A]):
    """What a loss needs: decisions and their credit."""

    trajectory: Trajectory[A]
    credit: Credit[A]

    def __len__(self) -> int:
        return len(self.trajectory)

    @staticmethod
    def of(trajectory: Trajectory[N], advantage: N | None = None, target: N | None = None) -> Batch[N]:
        """A batch; without an advantage, of decisions that are only to be scored."""
        nothing: Any = full_like(trajectory.reward, tuple(trajectory.reward.shape), 0.0, "float32")
        return Batch(trajectory=trajectory, credit=Credit(advantage=nothing if advantage is None else advantage, target=target))

    def columns(self, count: int) -> Batch[A]:
        """The first `count` decisions of each row."""

        def cut(leaf: Any) -> Any:
            return leaf[:, :count]

        return Batch(trajectory=self.trajectory.columns(count), credit=_map_fields(self.credit, cut))

    def rows(self, key: Any) -> Batch[A]:
        """The rows that `key` picks."""

        def pick(leaf: Any) -> Any:
            return leaf[key]

        return Batch(trajectory=self.trajectory.rows(key), credit=_map_fields(self.credit, pick))

    def micro_batches(self, size: int) -> Iterator[Batch[A]]:
        """Consecutive batches of at most `size` rows; the batch itself where it has no more."""
        if 0 < len(self) <= size:
            yield self
            return
        for start in range(0, len(self), size):
            yield self.rows(slice(start, start + size))

    def decisions(self) -> Batch[A]:
        """Every unmasked decision as a row of its own, `[n, 1, …]`, in row-major order.

        `value` and `observation`, which have a column more, become `[n, 2, *]`: before and after the decision.
        """
        t = self.trajectory
        b, c = np.nonzero(as_numpy(t.mask))

        def take(leaf: Any) -> Any:
            return leaf[b, c][:, None]

        special = {name: None if (field := getattr(t, name)) is None else field[b] for name in _BY_ROW}

        def around(leaf: Any) -> Any:
            return stack([leaf[b, c], leaf[b, c + 1]], axis=1)

        for name in _BEFORE_AND_AFTER:
            field = getattr(t, name)
            special[name] = None if field is None else tree_map(around, field)
        flat = {k: special[k] if k in special else None if v is None else tree_map(take, v) for k, v in _fields(t).items()}
        return Batch(trajectory=Trajectory(**flat), credit=_map_fields(self.credit, take))
