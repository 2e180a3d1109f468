"""Building blocks of an action's way from a model to a simulator, each a format of its own, and the registry of all formats.

A format is a pure function of actions `[..., A]`: it changes no input and remembers nothing. Those that lose nothing
have an `inverse`, which turns a simulator's actions (demonstrations, for instance) into the model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import Registry
from rlinf.envs.actions.arrays import Doubles, Floats, column, doubles, like
from rlinf.envs.actions.grippers import GripperSign, binarise, convert_gripper, gripper_ends
from rlinf.envs.actions.rotations import RotationForm, convert_rotation, rotation_size
from rlinf.envs.actions.scaling import from_unit, to_unit


class ActionFormat(Protocol):
    """From a model's actions to a simulator's."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action `[..., A]` as the simulator wants it, `[..., A']`."""
        ...


Bounds = tuple[Doubles, Doubles]
"""The least and the greatest value of each number of an action, `[A]` each."""


@runtime_checkable
class BoundedFormat(ActionFormat, Protocol):
    """A format that says what it takes."""

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """The bounds of the model's actions, given those `[A']` of the simulator's.

        Raises:
            ConfigError: a simulator with such actions can't use this format.
        """
        ...


def accepted(action_format: ActionFormat, low: Doubles, high: Doubles, place: str) -> Bounds:
    """The bounds of the model's actions; those of the simulator for a format that does not say.

    Raises:
        ConfigError: a simulator with such actions can't use this format; the message has `place`.
    """
    if not isinstance(action_format, BoundedFormat):
        return low, high
    try:
        return action_format.accepts(low, high)
    except ShapeError as error:
        problem = f"made for other actions than the {len(low)} numbers of the environment: {error.problem}"
        raise ConfigError(place, problem, "Choose the format of this simulator.") from error


def expect_size(action_format: ActionFormat, action: Floats, simulator: int, place: str) -> None:
    """Refuses a format that makes of an action `[1, A]` other numbers than the simulator takes.

    Raises:
        ConfigError: the message has `place`.
    """
    given = action_format(action).shape[-1]
    if given != simulator:
        problem = f"it gives {given} numbers, the environment takes {simulator}"
        raise ConfigError(place, problem, "Choose the format of this simulator.")


@runtime_checkable
class InvertibleFormat(ActionFormat, Protocol):
    """A format that loses nothing."""

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action `[..., A']` of a simulator as the model would give it, `[..., A]`."""
        ...


ACTION_FORMATS: Registry[Any] = Registry("action format", "rlinf.action_formats")
register_action_format = ACTION_FORMATS.register


@register_action_format("identity")
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Nothing changes."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action itself, as a new array."""
        return like(doubles(action, "action"), action)

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action itself, as a new array."""
        return self(action)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """The same."""
        return low, high


@register_action_format("gripper")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gripper:
    """One column under another gripper convention."""

    source: GripperSign
    target: GripperSign
    index: int = -1
    """The column; negative ones count from the end."""
    threshold: float | None = None
    """In units of `source`: only open and closed come out, and the threshold itself counts as closed. None: graded."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action with its gripper converted."""
        given = doubles(action, "action")
        at = column(given.shape[-1], self.index, "action")
        given[..., at] = self._convert(given[..., at])
        return like(given, action)

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action with its gripper as the model has it; what a threshold took away does not come back."""
        given = doubles(action, "action")
        at = column(given.shape[-1], self.index, "action")
        given[..., at] = convert_gripper(given[..., at], self.target, self.source)
        return like(given, action)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """The ends of `source` in that column, the rest as it is."""
        at = column(len(low), self.index, "action")
        ends = gripper_ends(self.source)
        return _replaced(low, at, min(ends)), _replaced(high, at, max(ends))

    def _convert(self, command: Floats) -> Floats:
        if self.threshold is None:
            return convert_gripper(command, self.source, self.target)
        closed, opened = gripper_ends(self.source)
        to_closed, to_open = gripper_ends(self.target)
        # Negated where open is the smaller number: a value at the threshold counts as closed in every convention.
        sign = 1.0 if opened > closed else -1.0
        return binarise(sign * command, threshold=sign * self.threshold, above=to_open, below=to_closed)


@register_action_format("rotation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Some columns, as another form of rotation."""

    source: RotationForm
    target: RotationForm
    start: int = 3
    """The first column of the rotation; what follows it moves if the sizes differ."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action with its rotation converted."""
        return _convert_columns(action, self.start, self.source, self.target)

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action with its rotation in the form `source`."""
        return _convert_columns(action, self.start, self.target, self.source)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """±π for angles and ±1 for everything else in the columns of the rotation."""
        first = column(len(low), self.start, "action")
        stop = first + rotation_size(self.target)
        column(len(low), stop - 1, "action")
        reach = np.full(rotation_size(self.source), np.pi if self.source in ("axis_angle", "euler_xyz") else 1.0)
        return np.concatenate([low[:first], -reach, low[stop:]]), np.concatenate([high[:first], reach, high[stop:]])


@register_action_format("unscale")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unscale:
    """From [−1, 1] to the range between two vectors: bounds, or the quantiles of a dataset (see `from_unit`)."""

    low: tuple[float, ...]
    """`[A]`: the lower bound, or q01."""
    high: tuple[float, ...]
    """`[A]`: the upper bound, or q99."""
    mask: tuple[bool, ...] | None = None
    """`[A]`: what is scaled; None scales all."""
    clip: bool = False
    """Limit to [−1, 1], before scaling and after the inverse."""
    epsilon: float = 0.0
    """1e-8 for OpenVLA's statistics."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action in the simulator's units."""
        return from_unit(action, self.low, self.high, mask=self._mask(), clip=self.clip, epsilon=self.epsilon)

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action in [−1, 1]."""
        return to_unit(action, self.low, self.high, mask=self._mask(), clip=self.clip, epsilon=self.epsilon)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """±1 where it scales."""
        # Refuses vectors of another length.
        self(low)
        scaled = np.ones(len(low), np.bool_) if self.mask is None else np.asarray(self.mask, np.bool_)
        return np.where(scaled, -1.0, low), np.where(scaled, 1.0, high)

    def _mask(self) -> Any:
        return None if self.mask is None else np.asarray(self.mask, np.bool_)


@register_action_format("pick")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Some columns, in the given order."""

    columns: tuple[int, ...]
    size: int | None = None
    """How many numbers the model writes; None: up to the last that is chosen."""

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The chosen columns."""
        given = doubles(action, "action", self.size)
        chosen = [column(given.shape[-1], index, "action") for index in self.columns]
        return like(given[..., chosen], action)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """The simulator's bounds in the chosen columns, ±1 in the others."""
        if len(self.columns) != len(low):
            raise ShapeError("action", f"it gives {len(self.columns)} numbers")
        if self.size is None and min(self.columns, default=0) < 0:
            raise ShapeError("action", f"columns {list(self.columns)} count from its end, and no size says where that is")
        size = self.size or max(self.columns) + 1
        least, most = -np.ones(size), np.ones(size)
        least[list(self.columns)], most[list(self.columns)] = low, high
        return least, most


@dataclass(frozen=True, slots=True)
class Chain:
    """Several formats, one after the other."""

    formats: tuple[ActionFormat, ...]

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action after the last format."""
        # A new array, also from a chain without formats.
        result = Identity()(action)
        for part in self.formats:
            result = part(result)
        return result

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """What the first format takes, if each gives what the next one takes."""
        for part in reversed(self.formats):
            low, high = part.accepts(low, high) if isinstance(part, BoundedFormat) else (low, high)
        return low, high

    def inverse(self, action: ArrayLike, /) -> Floats:
        """The action before the first format.

        Raises:
            ConfigError: a format of the chain has no inverse.
        """
        result = Identity()(action)
        for part in reversed(self.formats):
            if not isinstance(part, InvertibleFormat):
                name = getattr(part, "__name__", type(part).__name__)
                raise ConfigError("action format", f"{name} has no inverse, because it loses numbers", "Leave it out.")
            result = part.inverse(result)
        return result


def _replaced(values: Doubles, at: int, value: float) -> Doubles:
    changed = values.copy()
    changed[at] = value
    return changed


def _convert_columns(action: ArrayLike, start: int, source: RotationForm, target: RotationForm) -> Floats:
    given = doubles(action, "action")
    first = column(given.shape[-1], start, "action")
    stop = first + rotation_size(source)
    # Refuses an action that ends within the rotation.
    column(given.shape[-1], stop - 1, "action")
    turned = convert_rotation(given[..., first:stop], source, target)
    return like(np.concatenate([given[..., :first], turned, given[..., stop:]], axis=-1), action)
