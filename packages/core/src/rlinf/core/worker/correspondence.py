"""`Correspondent`: what goes from worker to worker by group name and rank, without a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast, overload

from rlinf.core.errors import ConfigError
from rlinf.core.protocols import Messenger, Rank, Work
from rlinf.core.worker.compat import MESSAGES, refuse_arguments

Ranks: TypeAlias = int | tuple[int, ...] | Sequence[int | tuple[int, ...]]
"""A rank, a path `(rank, child)`, or several of them in a list."""

_MISSING: Final[Any] = object()
"""The item of a call that names none; None is an item."""


class Correspondent:
    """The part of a `Worker` that sends and receives.

    Items from one worker to another arrive in the order in which they were sent, for each tag; operations that are not waited
    for keep their place. Both sides may send first.
    """

    @property
    def messenger(self) -> Messenger:
        """What carries the messages."""
        raise NotImplementedError

    @overload
    def send(
        self, item: Any, group: str = ..., rank: Rank = ..., async_op: Literal[False] = ..., *, tag: str = ..., **names: Any
    ) -> None: ...

    @overload
    def send(self, item: Any, group: str, rank: Rank, async_op: Literal[True], *, tag: str = ..., **names: Any) -> Work[None]: ...

    @overload
    def send(self, item: Any, group: str = ..., rank: Rank = ..., *, async_op: bool, tag: str = ..., **names: Any) -> Any: ...

    def send(
        self, item: Any = _MISSING, group: str = "", rank: Rank = -1, async_op: bool = False, *, tag: str = "", **names: Any
    ) -> Any:
        """Sends an item to a worker; returns when it is on its way.

        Args:
            item: anything that can be pickled; arrays and tensors travel without pickling. `object=` is the same.
            group: the receiver's group; `dst_group_name=` is the same.
            rank: its rank, or the path `(rank, child)` of a child process; `dst_rank=` is the same.
            async_op: return a handle at once. The item must not be changed until it is done.
            tag: items of one tag don't wait for those of another.
            names: `object`, `dst_group_name` and `dst_rank`.

        Raises:
            UnknownName: the group has no such rank.
            DeadlineExceeded: no such group was launched in time.
        """
        item = names.pop("object", item)
        group, rank = _peer("send", "dst", group, rank, names)
        if item is _MISSING:
            raise TypeError("send() has nothing to send: name an item")
        return self.messenger.send(item, group, rank, tag=tag, async_op=async_op)

    def recv(
        self, group: str = "", rank: Rank = -1, async_op: bool = False, *, tag: str = "", timeout: float | None = None, **names: Any
    ) -> Any:
        """The next item from a worker, or with `async_op` the handle of its arrival.

        Args:
            group: the sender's group; `src_group_name=` is the same.
            rank: its rank, or the path `(rank, child)` of a child process; `src_rank=` is the same.
            async_op: return a handle at once; it has this place among all receives from that worker and tag.
            tag: which items.
            timeout: seconds; None is the cluster's `timeout_s`.
            names: `src_group_name` and `src_rank`.

        Raises:
            DeadlineExceeded: nothing came; the next `recv` gets it if it comes later.
            UnknownName: the group has no such rank.
        """
        group, rank = _peer("recv", "src", group, rank, names)
        return self.messenger.recv(group, rank, tag=tag, timeout=timeout, async_op=async_op)

    def send_tensor(
        self, tensor: Any, group: str = "", rank: Rank = -1, async_op: bool = False, *, tag: str = "", **names: Any
    ) -> Any:
        """Sends an array or a tensor to a worker that calls `recv_tensor`, or `recv`; arguments as for `send`."""
        return self.send(tensor, group, rank, async_op=async_op, tag=tag, **names)

    def recv_tensor(
        self,
        tensor: Any,
        group: str = "",
        rank: Rank = -1,
        async_op: bool = False,
        *,
        tag: str = "",
        timeout: float | None = None,
        **names: Any,
    ) -> Any:
        """Receives into an array or a tensor that is there already; further arguments as for `recv`.

        Returns:
            `tensor`, or with `async_op` the handle of its arrival.

        Raises:
            ShapeError: what came has another shape or dtype; `tensor` is unchanged.
        """
        group, rank = _peer("recv_tensor", "src", group, rank, names)
        return self.messenger.recv(group, rank, tag=tag, timeout=timeout, async_op=async_op, into=tensor)

    def broadcast(
        self,
        object: Any = None,
        groups: Sequence[tuple[str, Ranks]] = (),
        src: tuple[str, Rank] | None = None,
        async_op: bool = False,
        *,
        tag: str = "",
        **names: Any,
    ) -> Any:
        """Gives the object of one worker to all members; every member calls it with the same `groups`, `src` and `tag`.

        Args:
            object: what the source gives; the others' is not looked at.
            groups: the members: `[("actor", 0), ("rollout", [0, 1])]`.
            src: the source, one of the members; None is the one that is named first.
            async_op: return a handle at once.
            tag: broadcasts of one tag don't wait for those of another.
            names: none is known; those of other systems are refused with what to do.

        Returns:
            The object on every member, or with `async_op` the handle of it.

        Raises:
            ConfigError: nobody is named, or one twice, or the source or the caller is no member.
        """
        refuse_arguments("broadcast", names, MESSAGES)
        members = [(group, rank) for group, ranks in groups for rank in _each(ranks)]
        return self.messenger.broadcast(object, members, src, tag=tag, async_op=async_op)


def _each(ranks: Ranks) -> list[Rank]:
    if isinstance(ranks, int):
        return [ranks]
    return [cast("tuple[int, ...]", ranks)] if isinstance(ranks, tuple) else list(ranks)


def _peer(method: str, side: str, group: str, rank: Rank, names: dict[str, Any]) -> tuple[str, Rank]:
    group = names.pop(f"{side}_group_name", group)
    rank = names.pop(f"{side}_rank", rank)
    refuse_arguments(method, names, MESSAGES)
    # These are the defaults, as both may come by their long names.
    if not group or rank == -1:
        raise ConfigError(f"{method}()", "expected a group and a rank", f'Write {method}(…, "rollout", 0).')
    return group, rank
