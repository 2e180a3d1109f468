"""`ReplayBuffer`: the last transitions of several producers, drawn uniformly or by priority, over n decisions.

producer 0   s₀ a r │ s₁ a r │ s₂ a r │ s₃ final │ s₀ a r │ s₁ …     a ring for each, in the order of time
producer 1   s₀ a r │ s₁ a r │ s₂ newest │                             an observation is kept once: s′ of a slot is s of the next

A slot whose observation nothing was decided on (the final one of an episode, the newest of an episode under way) is no transition,
and is never drawn. What an episode under way does next is written over its newest observation, so that nothing is between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import Tree, tree_map
from rlinf.core.errors import CheckpointError, ConfigError, RLinfError, ShapeError
from rlinf.core.random import keyed_generator
from rlinf.core.replay.arriving import OBSERVATION, Arriving, Column
from rlinf.core.replay.rings import Rings, Writers
from rlinf.core.replay.sampling import Priorities, Sampling
from rlinf.core.replay.saved import SavedBuffer, write_saved
from rlinf.core.replay.storage import Storage
from rlinf.core.replay.transitions import Transitions

Ints = NDArray[np.int64]
_PRIORITY: Final = "priority"
_OWN: Final = 4
"""Columns that every buffer has: rewards and flags."""


class ReplayBuffer:
    """A ring of slots for each producer; see above.

    Memory is taken when the first rows arrive, as their observations and actions say how much that is.

    Args:
        capacity: slots over all producers; each has the same share, and the oldest of its share is overwritten. A final observation
            takes the slot of a transition.
        producers: how many environments (or other sources) write. Each has at least two slots.
        n_step: n, over how many decisions a transition goes at most. It ends earlier where the episode ends, and at the newest
            observation.
        gamma: γ in [0, 1], discount of one decision.
        sampling: which transitions are drawn; None: all alike.
        seed: of what is drawn.
        folder: on whose disk observations are kept, in files without a name that are gone with the process; None: in memory.

    Raises:
        ConfigError: a number is out of range, or there are fewer than two slots for each producer.
    """

    def __init__(
        self,
        *,
        capacity: int,
        producers: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        sampling: Sampling | None = None,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("producers", producers), ("n_step", n_step)):
            expect_at_least(f"ReplayBuffer({name})", value, 1)
        expect_range("ReplayBuffer(gamma)", gamma, 0.0, 1.0)
        self._slots = capacity // producers
        if self._slots < 2:
            problem = f"{capacity} transitions can't be parted over {producers} producers with two slots each"
            raise ConfigError("ReplayBuffer(capacity)", problem, f"Use at least {2 * producers}.")
        self.n_step, self.gamma = n_step, gamma
        self._powers = np.power(gamma, np.arange(n_step + 1))
        self._columns: dict[str, Any] = {}
        self._storage = Storage(folder, OBSERVATION)
        chosen = sampling or Sampling()
        self._priorities = Priorities(producers, self._slots, chosen) if chosen.type == "prioritized" else None
        self._rings = Rings(producers, self._slots)
        self._added = self._held = 0
        self._random = keyed_generator(seed, "replay")
        self._flat_observation = False
        # What was found to fit the columns: the same rows come again and again.
        self._kept: Mapping[str, Column] = {}

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        return self._held

    @property
    def added(self) -> int:
        """How many transitions were ever added."""
        return self._added

    @property
    def nbytes(self) -> int:
        """Bytes that the slots take, and their priorities."""
        own = 0 if self._priorities is None else self._priorities.nbytes
        return own + sum(column.nbytes for column in self._columns.values())

    def add(self, rows: Trajectory[Any], producer: Any) -> int:
        """Appends rows, each to the ring of its producer; returns how many transitions these are.

        A row goes on where the last one of its producer stopped if it is of the same `episode`, which did not end.

        Args:
            rows: in the order of time of each producer, with `observation` and `episode`.
            producer: `[B]` int, who made each row; any number stands for one.

        Raises:
            ShapeError: they have no observations or episodes, or other shapes than the rows before.
            RLinfError: there are more producers than the buffer was made for.
        """
        if rows.observation is None or rows.episode is None:
            problem = "expected rows with observations and episodes, found none"
            raise ShapeError("ReplayBuffer.add(rows)", problem, "Collect them with keep_observations.")
        arriving = Arriving.of(rows)
        self._allocate(arriving.columns())
        self._flat_observation = not isinstance(rows.observation, Mapping)
        mask = as_numpy(rows.mask)
        writers, added = self._rings.writers(producer), int(np.count_nonzero(mask))
        # Only the end of a row is ever masked, so that the number of its decisions says which they are.
        if added == mask.size and added and writers.distinct:
            self._append_whole(arriving, mask.shape[1], writers)
        else:
            self._append_parts(arriving, np.count_nonzero(mask, axis=1).tolist(), writers.ring.tolist())
        self._added += added
        return added

    def sample(self, size: int) -> Transitions[NDArray[Any]]:
        """`size` transitions, with replacement: each one as likely as any other, or as its priority says; see `take`.

        Raises:
            RLinfError: there is nothing to draw from.
        """
        return self.take(self.draw(size))

    def draw(self, size: int) -> Ints:
        """`[size, 2]`, the producers and the slots of transitions."""
        if not len(self):
            raise RLinfError("replay buffer", "there is no transition to draw from", "Add rows first.")
        if self._priorities is not None:
            place = self._priorities.draw(size, self._random)
        else:
            place, decided = self._any(size), self._flat("decided")
            # Slots without a decision are drawn, too, and thrown away: all others stay equally likely.
            while len(missed := np.flatnonzero(~decided.take(place))):
                place[missed] = self._any(len(missed))
        index = np.empty((size, 2), np.int64)
        np.divmod(place, self._slots, out=(index[:, 0], index[:, 1]))
        return index

    def take(self, index: Ints, *, beta: float = 1.0) -> Transitions[NDArray[Any]]:
        """The transitions that begin at the given producers and slots `[B, 2]`, which hold decisions.

        Args:
            index: what `draw` gave.
            beta: β of the weights of prioritised sampling, see `Sampling`; uniform sampling has none, as each weighs 1.
        """
        ring, first = index[:, 0], index[:, 1]
        begin = ring * self._slots
        start = begin + first
        if self.n_step == 1:
            reward, last, steps = self._picked("reward", start), start, 1
            discount = np.full(len(index), self.gamma, np.float32)
        else:
            reward, last, steps = self._summed(begin, first)
            discount = self._powers.take(steps).astype(np.float32)
        after = self._place(begin, first + steps)
        return Transitions(
            observation=self._observed(start),
            action=self._picked("action", start),
            reward=reward,
            observation_next=self._observed(after),
            terminated=self._picked("terminated", last),
            discount=discount,
            weight=None if self._priorities is None else self._priorities.weights(start, beta),
        )

    def update_priorities(self, index: Ints, error: NDArray[Any]) -> None:
        """Tells how badly transitions were predicted, which prioritised sampling draws by; uniform sampling does not care.

        Args:
            index: `[B, 2]`, what `draw` gave.
            error: `[B]`, δ of the critics, of either sign.
        """
        if self._priorities is not None:
            self._priorities.update(index[:, 0] * self._slots + index[:, 1], error)

    def save(self, folder: Path) -> None:
        """Writes everything into a folder that exists, see `rlinf.core.replay.saved`.

        What is drawn after `load` is what would have been drawn without.

        Raises:
            CheckpointError: there is no room, or the system refuses to write.
        """
        columns, state = (
            dict(self._columns),
            {
                "n_step": self.n_step,
                "gamma": self.gamma,
                "slots": self._slots,
                "producers": {str(name): ring for name, ring in self._rings.names.items()},
                "head": self._rings.head.tolist(),
                "filled": self._rings.filled.tolist(),
                "episode": self._rings.episode.tolist(),
                "added": self._added,
                "largest_priority": None if self._priorities is None else self._priorities.largest,
                "random": _plain(self._random.bit_generator.state),
            },
        )
        if self._priorities is not None and columns:
            columns[_PRIORITY] = self._priorities.powers.reshape(self._sizes)
        write_saved(folder, state, columns, int(self._rings.filled.max()))

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote.

        Raises:
            CheckpointError: a file is missing or damaged, or it was written by a buffer of another size or another sampling.
        """
        saved = SavedBuffer(folder)
        found, sampled = (saved.producers, saved.slots), saved.state["largest_priority"]
        if found != self._sizes:
            own = f"expected {self._sizes[0]} with {self._sizes[1]}"
            problem = f"the replay buffer has {found[0]} producers with {found[1]} slots each, {own}"
            raise CheckpointError(str(folder), problem, "Resume with the same capacity, environments and actors.")
        if (sampled is None) != (self._priorities is None):
            names = "uniform sampling", "sampling by priority"
            problem = f"the replay buffer has {names[sampled is not None]}, expected {names[sampled is None]}"
            raise CheckpointError(str(folder), problem, "Resume with the same algorithm.replay_buffer.sampling.")
        kept = {name: of for name, of in saved.columns.items() if name != _PRIORITY}
        columns = {name: self._storage.column(name, (*self._sizes, *shape), dtype) for name, (dtype, shape) in kept.items()}
        powers = np.zeros(self._sizes)
        for shard in saved.shards:
            for name, part in saved.read(shard).items():
                into = powers if name == _PRIORITY else columns[name]
                into[shard.rings, : saved.used] = part
        self._columns, self._kept = columns, {}
        if self._priorities is not None:
            self._priorities.restore(powers.reshape(-1), sampled)
        self._held = int(columns["decided"].sum()) if columns else 0
        self._flat_observation = OBSERVATION in columns
        # Anew: the old ones remember which rings were given to producers.
        self._rings = Rings(*self._sizes)
        self._rings.names = {int(name): ring for name, ring in saved.state["producers"].items()}
        self._rings.head, self._rings.filled, self._added = saved.head, saved.filled, saved.state["added"]
        self._rings.episode = np.array(saved.state["episode"], np.int64)
        self._random.bit_generator.state = _arrays(saved.state["random"])

    def _append_whole(self, arriving: Arriving, length: int, writers: Writers) -> None:
        """Writes rows without gaps, each of another producer."""
        rings = writers.neighbours
        block = None if rings is None else self._rings.block(rings, arriving.episode, length)
        if block is None:
            self._append(arriving, np.arange(len(writers.ring)), length, writers.ring)
            return
        rings, begin, end = block
        decisions, last = (rings, slice(begin, end)), (rings, end)
        decided = self._columns["decided"]
        # Counted before the flags change: some of what is overwritten were transitions.
        self._held += len(writers.ring) * length - int(np.count_nonzero(decided[rings, begin : end + 1]))
        decided[decisions], decided[last] = True, False
        if self._priorities is not None:
            self._priorities.write_block(block)
        for name, leaf in arriving.observation.items():
            self._columns[name][rings, begin : end + 1] = leaf
        for name, field in arriving.decision.items():
            self._columns[name][decisions] = field
        self._rings.wrote(rings, begin, end, arriving.left_in(slice(None), length))

    def _append_parts(self, arriving: Arriving, lengths: list[int], rings: list[int]) -> None:
        """Writes the decisions at the begin of each row, as many as `lengths` says."""
        # The rows of one producer follow one another; what is the first, the second … of each is written together, by length.
        together, turns = dict[tuple[int, int], list[tuple[int, int]]](), dict[int, int]()
        for row, (length, ring) in enumerate(zip(lengths, rings, strict=True)):
            if length:
                turns[ring] = turn = turns.get(ring, -1) + 1
                together.setdefault((turn, length), []).append((row, ring))
        for (_, length), alike in sorted(together.items()):
            row, ring = np.array(alike).T
            self._append(arriving, row, length, ring)

    def _append(self, arriving: Arriving, row: Ints, length: int, ring: Ints) -> None:
        """Writes the decisions of rows `[R]` of different producers and one length, and the observation that followed each."""
        # More than the ring holds would overwrite itself.
        skipped = max(0, length + 1 - self._slots)
        # The newest observation of an episode under way is the first one of what follows.
        follows = self._rings.follows(ring, arriving.episode[row]) & (skipped == 0)
        begin, steps = self._rings.head[ring] - follows, length - skipped
        at = (ring[:, None], (begin[:, None] + np.arange(steps + 1)) % self._slots)
        before, last = (at[0], at[1][:, :-1]), (ring, at[1][:, -1])
        decided = self._columns["decided"]
        self._held += len(row) * steps - int(np.count_nonzero(decided[at]))
        decided[before], decided[last] = True, False
        if self._priorities is not None:
            self._priorities.write((at[0] * self._slots + at[1]).reshape(-1), decided[at].reshape(-1))
        for name, leaf in arriving.observation.items():
            self._columns[name][at] = leaf[row, skipped : length + 1]
        for name, field in arriving.decision.items():
            self._columns[name][before] = field[row, skipped:length]
        self._rings.wrote(ring, begin, begin + steps, arriving.left_in(row, length))

    def _allocate(self, kept: Mapping[str, Column]) -> None:
        """Takes the memory for such columns, or compares them with those before."""
        if not self._columns:
            flags: dict[str, Column] = {name: ((), np.dtype(np.bool_)) for name in ("terminated", "ended", "decided")}
            columns = {**kept, "reward": ((), np.dtype(np.float32)), **flags}
            for name, (shape, dtype) in columns.items():
                self._columns[name] = self._storage.column(name, (*self._sizes, *shape), dtype)
            return
        if kept == self._kept:
            return
        own = {name: (column.shape[2:], column.dtype) for name, column in self._columns.items()}
        if any(own.get(name) != of for name, of in kept.items()) or len(kept) != len(own) - _OWN:
            found = {name: of for name, of in own.items() if name == "action" or name.startswith(OBSERVATION)}
            raise ShapeError("ReplayBuffer.add(rows)", f"expected {found}, found {kept}", "Use a buffer for each environment.")
        self._kept = kept

    @property
    def _sizes(self) -> tuple[int, int]:
        return len(self._rings), self._slots

    def _any(self, size: int) -> Ints:
        """`[size]` places that were written, each as likely as any other."""
        # A ring is written from its first slot on, so that those behind are the ones that never were.
        filled = self._rings.filled
        least, most = int(filled.min()), int(filled.max())
        if least == most:
            number = self._random.integers(most * len(filled), size=size)
            return number if most == self._slots else number + number // most * (self._slots - most)
        last = np.cumsum(filled)
        number = self._random.integers(int(last[-1]), size=size)
        return number + (np.arange(len(last)) * self._slots - (last - filled)).take(last.searchsorted(number, "right"))

    def _flat(self, name: str) -> NDArray[Any]:
        """A column with one axis for producers and slots."""
        column = self._columns[name]
        return column.reshape(-1, *column.shape[2:])

    def _picked(self, name: str, at: Ints) -> NDArray[Any]:
        """What a column has at places `[B]`."""
        # Faster than indexing; every place is one of the column.
        return self._flat(name).take(at, axis=0)

    def _place(self, begin: Ints, slot: Ints) -> Ints:
        """Places of slots below twice those of a ring, which goes round."""
        # A comparison takes a fraction of the time of a division.
        return begin + slot - self._slots * (slot >= self._slots)

    def _summed(self, begin: Ints, first: Ints) -> tuple[NDArray[np.float32], Ints, Ints]:
        """Rewards over at most n decisions `[B]`, the place of the last of them, and how many they are."""
        last = begin + first
        total, steps, going = self._picked("reward", last).astype(np.float64), np.ones(len(first), np.int64), True
        for step in range(1, min(self.n_step, self._slots)):
            # A step counts if all before it were decided. Nothing is where an episode ended, at its final observation, nor at the
            # newest slot, which parts its decisions from the oldest of the ring.
            at = self._place(begin, first + step)
            going = going & self._picked("decided", at)
            total += self._picked("reward", at) * (going * self._powers[step])
            last = np.where(going, at, last)
            steps += going
        return total.astype(np.float32), last, steps

    def _observed(self, at: Ints) -> Tree[NDArray[Any]]:
        """The observations at places, each leaf `[B, *]`."""
        if self._flat_observation:
            return self._picked(OBSERVATION, at)
        tree: dict[str, Any] = {}
        for name in (name for name in self._columns if name.startswith(f"{OBSERVATION}.")):
            *branches, leaf = name.split(".")[1:]
            inner = tree
            for branch in branches:
                inner = inner.setdefault(branch, {})
            inner[leaf] = self._picked(name, at)
        return tree


def _plain(state: Any) -> Any:
    """The state of a generator for JSON: arrays become lists."""
    return tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf, state)


def _arrays(state: Any) -> Any:
    """The state of a generator, from JSON."""
    # All arrays in the state of Philox are of this type.
    return tree_map(lambda leaf: np.array(leaf, np.uint64) if isinstance(leaf, list) else leaf, state)
