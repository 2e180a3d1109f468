"""Names that RLinf's workers have, and how a class or a module answers such names: by what it has, or by an error that says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from rlinf.core.errors import UnknownName
from rlinf.core.worker.context import WorkerAddress

C = TypeVar("C", bound=type[Any])
_ABSENT: Final = "there is no such name here"
_DEVICE: Final = "torch.get_device_module() is torch.cuda or its like; self.has_device says whether this worker has such a device."
_DEVICE_TYPE: Final = (
    "torch.accelerator.current_accelerator() is the process's device; self.has_device says whether this worker has one."
)
_ROUTED: Final = (
    "Put each part into a channel, and take it out, under a key that both sides know: channel.put(part, key=rank), "
    "channel.get(key=self.rank); messages go from worker to worker by self.send and self.recv."
)
_TRACE: Final = "Set cluster.tracer: {enabled: true}, which records who waited for whom; no profiler starts."
_OPTIONS: Final = "Leave it out: cluster.route says how large tensors travel."
_TOGETHER: Final = "Send both as one item: (item, payload)."
_CHILD: Final = "Leave it out: what self.start_child(function) runs is a worker's child, with an address below that of its worker."

WORKER: Final[Mapping[str, str]] = {
    "hardware_type": "self.accelerator_type is NV_GPU, …; the pieces of self.hardware_infos say of what kind each is.",
    "recv_from": _ROUTED,
    "send_to": _ROUTED,
    "start_profile": _TRACE,
    "stop_profile": _TRACE,
    "torch_device_type": _DEVICE_TYPE,
    "torch_platform": _DEVICE,
}
"""What to say of an attribute that a `Worker` lacks."""

RENAMED: Final[Mapping[str, str]] = {"_rank": "rank", "_world_size": "world_size"}
"""Attributes by their other names."""

PARENT: Final[Mapping[str, str]] = dict.fromkeys(("parent_address", "world_size", "rank"), _CHILD)
"""What to say of an argument that the constructor lacks."""

MESSAGES: Final[Mapping[str, str]] = {"options": _OPTIONS, "piggyback_payload": _TOGETHER}
"""What to say of an argument that messages lack."""


class AbsentAttribute(UnknownName, AttributeError):
    """A class of another system has this attribute; the message says what stands for it."""


class AbsentImport(UnknownName, ImportError):
    """A module of another system has this name; the message says what stands for it."""


class AbsentArgument(UnknownName, TypeError):
    """A function of another system has this argument; the message says what stands for it."""


class _Absent:
    def __init__(self, remedy: str) -> None:
        self._remedy = remedy

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> NoReturn:
        raise AbsentAttribute(f"{owner.__name__}.{self._name}", _ABSENT, self._remedy)


class _Renamed:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        return getattr(owner if instance is None else instance, self._name)


def answers(remedies: Mapping[str, str], renamed: Mapping[str, str] | None = None) -> Callable[[C], C]:
    """The decorator of a class that other systems have, too; subclasses may define the names for themselves.

    Args:
        remedies: what to do, by the name of an attribute that the class lacks.
        renamed: its own attribute, by the other name of it.
    """

    def decorate(cls: C) -> C:
        # Neither of the two is a data descriptor: an object's own attribute of that name comes first.
        for name, remedy in remedies.items():
            absent = _Absent(remedy)
            absent.__set_name__(cls, name)
            setattr(cls, name, absent)
        for name, own in (renamed or {}).items():
            setattr(cls, name, _Renamed(own))
        return cls

    return decorate


def absent_from(module: str, remedies: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module that other systems have, too.

    Args:
        module: its name.
        remedies: what to do, by the name that it lacks.
    """

    def look_up(name: str) -> NoReturn:
        if name not in remedies:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # `from … import` would replace an AttributeError by words of its own.
        raise AbsentImport(f"{module}.{name}", _ABSENT, remedies[name])

    return look_up


def refuse_arguments(function: str, given: Mapping[str, Any], remedies: Mapping[str, str]) -> None:
    """Refuses arguments that a function does not know.

    Args:
        function: its name.
        given: the arguments.
        remedies: what to do, by the name of an argument that other systems have.

    Raises:
        TypeError: there is one; for those of `remedies` an `AbsentArgument`.
    """
    for name in given:
        if name in remedies:
            raise AbsentArgument(f"{function}({name}=…)", "there is no such argument here", remedies[name])
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def refuse_parent(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses what makes a child worker in RLinf.

    Raises:
        AbsentArgument: the arguments have the address of a parent.
    """
    if "parent_address" in kwargs or isinstance(next(iter(args), None), WorkerAddress):
        refuse_arguments("Worker.__init__", dict.fromkeys(PARENT), PARENT)
