"""What every weight sync does: both sides agree, the weights travel, all receivers hand them over or none does.

    send                                    recv
    chosen         which tensors            Subscription.open   what is held fits what is announced
    Publication.open   all receivers agree  _read               one tensor after the other, beside the old ones
    _post          the tensors              Subscription.close  checksums; every receiver has all
    Publication.close

A kind of sync says only how tensors become the parts of a message (`_post`), and are read from them (`_read`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from rlinf.core.config import expect_seconds
from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.lazy import torch
from rlinf.engines.weight_sync.exchange import Publication, Subscription
from rlinf.engines.weight_sync.messages import Announcement, Consent
from rlinf.engines.weights.checksum import checksum
from rlinf.engines.weights.lazy_tensors import LazyTensors, TensorPass
from rlinf.engines.weights.manifest import Manifest
from rlinf.engines.weights.tensor_bytes import dtype_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """Weights on their way to receivers that have agreed to them."""

    publication: Publication
    version: int
    device: torch.device
    """Where the tensors are."""
    lazy: bool
    """Whether each is put together when it is asked for, maybe in the memory of the one before: let go of one before the next."""
    manifest: Manifest
    """What travels, in the types in which it does."""
    tensors: Iterator[tuple[str, Tensor]]
    """All of them, in the order of `manifest`; a kind of sync reads them to the end."""
    consents: Sequence[Consent]
    receivers: tuple[Messenger, str]
    """The sender's messenger, and the receivers' group."""
    exits: ExitStack
    """Left when all receivers have the weights, or with the error because of which none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedWeightSync(ABC):
    """What all kinds have in common. If a sync is interrupted, all receivers keep the weights that they have."""

    cast: bool = False
    """Whether floating weights may have another type at the receivers, the same at all of them, to which they are cast first."""
    only: tuple[str, ...] = ()
    """Patterns of the names that are sent, such as `*.lora_A.*`; the receiver keeps the rest. All if there are none."""
    verify: bool = False
    """Whether each receiver compares checksums of all that it holds with the sender's, before it hands the weights over."""
    timeout_s: float = 300.0
    """Seconds that one side waits for each step of the other; writing and reading files are one step each."""

    def __post_init__(self) -> None:
        expect_seconds("timeout_s", self.timeout_s)

    def send(self, comm: Messenger, weights: Weights[Tensor], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers of a group, once all of them hold the same names, shapes and types.

        Args:
            comm: the sender's messenger.
            weights: what to publish; not changed. If ranks put its tensors together (`LazyTensors`), each of them calls this.
            group: the receivers' group.
            ranks: their ranks; none for a rank that only helps to put weights together.

        Raises:
            WeightSyncError: a receiver holds something else; names the first tensor that differs. Nothing was sent. Or a
                receiver could not take the weights; then no receiver hands them over.
            DeadlineExceeded: a receiver did not answer in time. The others are told.
        """
        part = chosen(weights, self.only)
        names = names_of_pass(weights, part, verify=self.verify)
        if not ranks:
            gather_only(weights, names)
            return
        sums: dict[str, str] = {}
        device = device_of(weights)
        with (
            # Left in reverse: receivers hear of a failure before the walk is made to its end, which may take long.
            ExitStack() as exits,
            TensorPass(weights.tensors, names) as walk,
            # A broadcast goes through the memory of the host; what is on a GPU goes to each receiver by itself.
            Publication(comm, group, ranks, way=repr(self), timeout_s=self.timeout_s, at_once=device.type == "cpu") as publication,
        ):
            consents = publication.open(weights, part, lambda place, consent: self._check(place, consent.manifest, part))
            travels = self._travelling(common_manifest(group, consents) if self.cast else part)
            outgoing = Outgoing(
                publication=publication,
                version=weights.version,
                device=device,
                lazy=isinstance(weights.tensors, LazyTensors),
                manifest=travels,
                tensors=self._cast(walk, travels, sums),
                consents=consents,
                receivers=(comm, group),
                exits=exits,
            )
            publication.close(self._post(outgoing), sums if self.verify else None)

    def recv(self, comm: Messenger, current: Weights[Tensor], group: str, rank: int) -> Weights[Tensor]:
        """The weights that a worker publishes.

        Args:
            comm: the receiver's messenger.
            current: what the receiver holds; not changed.
            group: the sender's group.
            rank: the sender's rank.

        Returns:
            Tensors where those of `current` are, and the sender's version. They have memory of their own; what `only` leaves out,
            or a patch does not change, is that of `current`.

        Raises:
            WeightSyncError: the two sides differ, the weights are older than `current`, something was lost on the way, or the
                sender gave up; the message says in what, or why.
            DeadlineExceeded: the sender did not answer in time.
        """
        mine = Manifest.of(current.tensors).only(self.only)
        with Subscription(comm, group, rank, way=repr(self), timeout_s=self.timeout_s) as subscription:

            def held(announcement: Announcement) -> Manifest:
                compare(subscription.place, mine, announcement.manifest, cast=self._may_differ)
                return mine

            announcement = subscription.open(current, held, lambda: self._base(current.tensors, mine))
            parts = subscription.parts()
            received = self._read(parts, current.tensors, self._travelling(mine), subscription.place)
            tensors = {name: received.get(name, current.tensors[name]) for name in sorted(current.tensors)}
            subscription.close(tensors)
        # After the checksums, which are those of what travelled.
        tensors = {name: tensor.to(current.tensors[name].dtype) for name, tensor in tensors.items()}
        return Weights(tensors=tensors, version=announcement.version, extra=announcement.extra)

    def casting(self) -> Self:
        """The same sync, which casts (`rlinf.core.capabilities.HasCasting`); itself if both sides may differ already."""
        return self if self._may_differ else replace(self, cast=True)

    @abstractmethod
    def _post(self, outgoing: Outgoing) -> Any:
        """Posts all parts but the last, which is returned; None if there is none left."""

    @abstractmethod
    def _read(self, parts: Iterator[Any], current: Mapping[str, Tensor], manifest: Manifest, place: str) -> Mapping[str, Tensor]:
        """The tensors that the parts bring, in memory of their own and of the types in `manifest`, on the devices of `current`.

        Raises:
            WeightSyncError: something is missing, or does not fit; the message begins with `place`.
        """

    def _base(self, current: Mapping[str, Tensor], held: Manifest) -> Mapping[str, str]:
        """The checksums of what a receiver holds, where the sender must know them."""
        del current, held
        return {}

    @property
    def _may_differ(self) -> bool:
        """Whether both sides may hold different types."""
        return self.cast

    def _travelling(self, manifest: Manifest) -> Manifest:
        """The types in which tensors travel."""
        return manifest

    def _check(self, place: str, held: Manifest, part: Manifest) -> None:
        """Refuses a receiver that can't hold what travels."""
        compare(place, held, part, cast=self._may_differ)

    def _cast(self, walk: TensorPass, travels: Manifest, sums: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
        """What is sent, as it travels; of what is not, only the checksum is taken."""
        types = {entry.name: dtype_of(entry.dtype) for entry in travels.entries}
        for name, tensor in walk:
            data = tensor.detach().to(types.get(name, tensor.dtype))
            del tensor  # before the next one is put together
            if self.verify:
                sums[name] = checksum(data)
            if name in types:
                yield name, data
            del data


def chosen(weights: Weights[Tensor], only: Sequence[str]) -> Manifest:
    """What is sent of some weights.

    Raises:
        ConfigError: that would be nothing.
    """
    manifest = Manifest.of(weights.tensors)
    part = manifest.only(only)
    if manifest.entries and not part.entries:
        problem = f"{list(only)} matches none of {len(manifest.entries)} tensors, such as {manifest.names[0]}"
        raise ConfigError("weight_syncer.only", problem, "Write patterns like '*.lora_A.*'.")
    return part


def compare(place: str, held: Manifest, published: Manifest, *, cast: bool = False) -> None:
    """Refuses weights that do not fit what a receiver holds.

    Raises:
        WeightSyncError: names the first tensor that differs.
    """
    difference = None if held.digest == published.digest else held.difference(published, cast=cast)
    if difference:
        problem = f"the receiver's model differs at {difference}"
        raise WeightSyncError(place, problem, "Build both models from the same configuration.")


def common_manifest(group: str, consents: Sequence[Consent]) -> Manifest:
    """What all receivers hold.

    Raises:
        WeightSyncError: they hold different types.
    """
    first = consents[0].manifest
    for consent in consents[1:]:
        compare(f"weights to {group}, receivers among themselves", first, consent.manifest)
    return first


def names_of_pass(weights: Weights[Tensor], part: Manifest, *, verify: bool) -> list[str]:
    """The order in which all ranks of a trainer put weights together: what is sent, then, to verify, the rest."""
    sent = part.names
    if not verify:
        return sent
    known = set(sent)
    return [*sent, *(name for name in Manifest.of(weights.tensors).names if name not in known)]


def gather_only(weights: Weights[Tensor], names: Sequence[str]) -> None:
    """What a rank does that shares the weights of a trainer and sends nothing."""
    with TensorPass(weights.tensors, names if isinstance(weights.tensors, LazyTensors) else ()) as walk:
        for _ in walk:
            pass


def device_of(weights: Weights[Tensor]) -> torch.device:
    """Where the tensors are."""
    if isinstance(weights.tensors, LazyTensors):
        return weights.tensors.device
    return next((tensor.device for tensor in weights.tensors.values()), torch.device("cpu"))
