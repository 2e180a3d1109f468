"""What a run must know of robots and of the people beside them: each a protocol of its own, asked for with `isinstance`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class HasController(Protocol):
    """Hardware that a controller drives."""

    @property
    def controller(self) -> str | None:
        """`host:port`; None where it has none."""
        ...


@runtime_checkable
class StandsAtHardware(Protocol):
    """The configuration of an environment whose robots are those of the worker that makes it."""

    def on_hardware(self, pieces: Sequence[HasController]) -> Any:
        """The same configuration, with the controllers of these pieces where it names none itself."""
        ...


@runtime_checkable
class HasCounts(Protocol):
    """A vector environment, or a wrapper of one, that counts what happens in it beside rewards."""

    def take_counts(self) -> Mapping[str, float]:
        """By name, such as `robot/watchdog`, what was counted since the last call."""
        ...


@runtime_checkable
class LetsHumansAct(Protocol):
    """The configuration of a wrapper in which a person may act in place of the policy.

    The infos of a step then say `intervene_flag` `[N]` bool, and `intervene_action` `[N, *]`, not a number where nobody acted.
    """

    intervenes: bool
    """True."""


def take_counts(env: Any) -> dict[str, float]:
    """What a vector environment and its wrappers have counted since the last call.

    Args:
        env: a `gymnasium.vector.VectorEnv`, in wrappers or not.
    """
    # By their classes: a wrapper passes on what it is asked for and does not know.
    own: Mapping[str, float] = env.take_counts() if issubclass(type(env), HasCounts) else {}
    return dict(own) if env.unwrapped is env else {**take_counts(env.env), **own}


def add_counts(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums over several environments, by name."""
    total: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0.0) + count
    return total


def at_hardware(config: Any, hardware: Sequence[Any]) -> Any:
    """The configuration of an environment for a worker that was placed on some hardware.

    Args:
        config: of the environment.
        hardware: the worker's `hardware_infos`.
    """
    pieces = [piece for piece in (item.config for item in hardware) if isinstance(piece, HasController)]
    return config.on_hardware(pieces) if pieces and isinstance(config, StandsAtHardware) else config
