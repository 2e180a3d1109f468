"""Keys and values of many sequences of different lengths, each in a row of its own."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_STEP: Final = 128
"""Columns that are allocated first; doubled as sequences grow."""


class Target:
    """Where the next forward pass writes, and what it sees; shared by all layers.

    A pass reads (whole sequences, from their beginning, into consecutive rows) or writes (one token for each of the first rows).
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows: Final = rows
        self.columns = 0
        self.device: Final = device
        self.reading = True
        self.first = 0
        self.seen = 0
        self.places = torch.empty(0, dtype=torch.long, device=device)

    def read(self, first: int) -> None:
        """Sequences come, from row `first` on."""
        self.reading, self.first = True, first

    def write(self, places: Tensor, seen: int) -> None:
        """One token comes for each row.

        Args:
            places: `[n]`, row · columns + column.
            seen: how many columns attention is given.
        """
        self.reading, self.places, self.seen = False, places, seen


class SlotLayer(CacheLayerMixin):
    """The rows of one layer: `[rows, columns, heads, width]`."""

    is_sliding = False

    def __init__(self, target: Target) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._target = target

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates; zeros, because what is masked is multiplied by 0 and must be finite."""
        self.keys, self.values = (self._zeros(states) for states in (key_states, value_states))
        self.is_initialized = True

    def _zeros(self, states: Tensor) -> Tensor:
        # Rows and columns first, so that `places` can count both as one.
        shape = (self._target.rows, self._target.columns, states.shape[1], states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores `[n, heads, length, width]`, and gives what attention shall see, `[n, heads, seen, width]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        target, keys, values = self._target, cast("Tensor", self.keys), cast("Tensor", self.values)
        n = key_states.shape[0]
        if target.reading:
            block = (slice(target.first, target.first + n), slice(0, key_states.shape[2]))
            keys[block] = key_states.transpose(1, 2)
            values[block] = value_states.transpose(1, 2)
            # Sequences are read from their beginning: there is nothing else to see.
            return key_states, value_states
        # Flattening the first axes makes a view, so that this writes into the cache.
        keys.flatten(0, 1).index_copy_(0, target.places, key_states.squeeze(2))
        values.flatten(0, 1).index_copy_(0, target.places, value_states.squeeze(2))
        return keys[:n, : target.seen].transpose(1, 2), values[:n, : target.seen].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A pass that reads sees itself; one that writes brings its own mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Positions are always given, so that nothing is counted here."""
        return 0

    def get_max_length(self) -> int:
        """Columns."""
        return self._target.columns

    def copy_row(self, source: int, rows: slice, length: int) -> None:
        """Copies the first columns of a row into others."""
        for rows_of in (self.keys, self.values):
            if rows_of is not None:
                rows_of[rows, :length] = rows_of[source : source + 1, :length]

    def widen(self) -> None:
        """Takes over the target's number of columns."""
        for name in ("keys", "values"):
            old = cast("Tensor | None", getattr(self, name))
            if old is not None:
                new = old.new_zeros(old.shape[0], self._target.columns, *old.shape[2:])
                new[:, : old.shape[1]] = old
                setattr(self, name, new)


class SlotCache(Cache):
    """The cache that a network of transformers is given."""

    def __init__(self, layers: int, rows: int, device: torch.device) -> None:
        self.target: Final = Target(rows, device)
        self._slots: Final = [SlotLayer(self.target) for _ in range(layers)]
        super().__init__(layers=list(self._slots))

    @property
    def columns(self) -> int:
        """How long a row may be at present."""
        return self.target.columns

    def reserve(self, columns: int, limit: int) -> None:
        """Makes rows at least so long, in doublings, up to the limit."""
        if columns <= self.columns:
            return
        wide = max(self.columns, _STEP)
        while wide < columns:
            wide *= 2
        # Above the limit only for the probe at the start, whose four tokens may be more.
        self.target.columns = max(min(wide, limit), columns)
        for layer in self._slots:
            layer.widen()

    def copy_row(self, source: int, rows: slice, length: int) -> None:
        """Copies the first columns of a row into others."""
        for layer in self._slots:
            layer.copy_row(source, rows, length)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(held.nbytes for layer in self._slots for held in (layer.keys, layer.values) if held is not None)

    def release(self) -> None:
        """Gives all memory back."""
        self.target.columns = 0
        for layer in self._slots:
            layer.keys = layer.values = None
            layer.is_initialized = False
