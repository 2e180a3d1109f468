"""`ReplayBuffer`: the last transitions of several producers, drawn uniformly, over n decisions.

producer 0   s₀ a r │ s₁ a r │ s₂ a r │ s₃ final │ s₀ a r │ s₁ …     a ring for each, in the order of time
producer 1   s₀ a r │ s₁ a r │ s₂ newest │                             an observation is kept once: s′ of a slot is s of the next

A slot whose observation nothing was decided on (the final one of an episode, the newest of an episode under way) is no transition,
and is never drawn. What an episode under way does next is written over its newest observation, so that nothing is between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import CheckpointError, ConfigError, RLinfError, ShapeError
from rlinf.core.random import keyed_generator
from rlinf.core.replay.transitions import Transitions
from rlinf.core.trajectory import Trajectory
from rlinf.core.tree import Tree, tree_leaves, tree_map

Ints = NDArray[np.int64]
_STATE: Final = "replay.json"
_FORMAT: Final = 1
_OBSERVATION: Final = "observation"


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
        seed: of what is drawn.

    Raises:
        ConfigError: a number is out of range, or there are fewer than two slots for each producer.
    """

    def __init__(self, *, capacity: int, producers: int = 1, n_step: int = 1, gamma: float = 0.99, seed: int = 0) -> None:
        for name, value in (("capacity", capacity), ("producers", producers), ("n_step", n_step)):
            if value < 1:
                raise ConfigError(f"ReplayBuffer({name})", f"expected at least 1, found {value}")
        if not 0.0 <= gamma <= 1.0:
            raise ConfigError("ReplayBuffer(gamma)", f"expected a discount in [0, 1], found {gamma}")
        self._slots = capacity // producers
        if self._slots < 2:
            problem = f"{capacity} transitions can't be parted over {producers} producers with two slots each"
            raise ConfigError("ReplayBuffer(capacity)", problem, f"Use at least {2 * producers}.")
        self.n_step, self.gamma = n_step, gamma
        self._columns: dict[str, Any] = {}
        self._names: dict[int, int] = {}
        # Of each producer: where its next slot is, how many it has, and the episode that its newest observation is of.
        self._head = np.zeros(producers, np.int64)
        self._filled = np.zeros(producers, np.int64)
        self._episode = np.full(producers, -1, np.int64)
        self._added = self._held = 0
        self._random = keyed_generator(seed, "replay")
        self._flat_observation = False

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        return self._held

    @property
    def added(self) -> int:
        """How many transitions were ever added."""
        return self._added

    @property
    def nbytes(self) -> int:
        """Bytes that the slots take."""
        return sum(column.nbytes for column in self._columns.values())

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
        rows = rows.map(as_numpy)
        self._allocate(rows)
        mask = rows.mask.astype(bool)
        for row, length in enumerate(mask.sum(1).tolist()):
            if length:
                self._append(rows, row, int(length), self._ring(int(producer[row])))
        added = int(mask.sum())
        self._added += added
        return added

    def sample(self, size: int) -> Transitions[NDArray[Any]]:
        """`size` transitions, each one as likely as any other, with replacement.

        Raises:
            RLinfError: there is nothing to draw from.
        """
        return self.take(self.draw(size))

    def draw(self, size: int) -> Ints:
        """`[size, 2]`, the producers and the slots of transitions, drawn uniformly."""
        if not len(self):
            raise RLinfError("replay buffer", "there is no transition to draw from", "Add rows first.")
        last = np.cumsum(self._filled)
        drawn = np.empty((0, 2), np.int64)
        # Slots without a decision are drawn, too, and thrown away: all others stay equally likely.
        while len(drawn) < size:
            number = self._random.integers(int(last[-1]), size=size - len(drawn))
            ring = np.searchsorted(last, number, side="right")
            age = number - (last - self._filled)[ring]
            slot = (self._head[ring] - self._filled[ring] + age) % self._slots
            kept = self._columns["decided"][ring, slot]
            drawn = np.concatenate([drawn, np.stack([ring, slot], 1)[kept]])
        return drawn

    def take(self, index: Ints) -> Transitions[NDArray[Any]]:
        """The transitions that begin at the given producers and slots `[B, 2]`, which hold decisions."""
        ring, first = index[:, 0], index[:, 1]
        slots = (first[:, None] + np.arange(self.n_step)) % self._slots
        pick = (ring[:, None], slots)
        # A step counts if all before it were decided and did not end the episode; behind the newest slot nothing is decided, or
        # it is the oldest of the ring, which the newest one, where nothing is decided, parts from it.
        going = self._columns["decided"][pick] & ~np.roll(self._columns["ended"][pick], 1, axis=1)
        going[:, 0] = True
        counts = np.logical_and.accumulate(going, axis=1)
        powers = np.power(self.gamma, np.arange(self.n_step))
        reward = (self._columns["reward"][pick] * counts * powers).sum(1)
        steps = counts.sum(1)
        final = (first + steps - 1) % self._slots
        return Transitions(
            observation=self._observed(ring, first),
            action=self._columns["action"][ring, first],
            reward=reward.astype(np.float32),
            observation_next=self._observed(ring, (final + 1) % self._slots),
            terminated=self._columns["terminated"][ring, final],
            discount=np.power(self.gamma, steps).astype(np.float32),
        )

    def save(self, folder: Path) -> None:
        """Writes everything into a folder that exists: a `.npy` for each column, and `replay.json` with the rest.

        What is drawn after `load` is what would have been drawn without.
        """
        for name, column in self._columns.items():
            np.save(folder / f"{name}.npy", column, allow_pickle=False)
        state = {
            "format": _FORMAT,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "slots": self._slots,
            "columns": sorted(self._columns),
            "producers": {str(name): ring for name, ring in self._names.items()},
            "head": self._head.tolist(),
            "filled": self._filled.tolist(),
            "episode": self._episode.tolist(),
            "added": self._added,
            "random": _plain(self._random.bit_generator.state),
        }
        (folder / _STATE).write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote.

        Raises:
            CheckpointError: a file is missing or damaged, or it was written by a buffer of another size.
        """
        try:
            state = json.loads((folder / _STATE).read_text())
            columns = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in state["columns"]}
            shape, found = (len(self._head), self._slots), (len(state["head"]), state["slots"])
            if state["format"] != _FORMAT or any(column.shape[:2] != found for column in columns.values()):
                raise ValueError("of another format, or its columns are of other sizes than it says")
            random, head = _arrays(state["random"]), np.array(state["head"], np.int64)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(str(folder), f"the replay buffer can't be read ({error})", "Use another checkpoint.") from error
        if found != shape:
            problem = f"the replay buffer has {found[0]} producers with {found[1]} slots each, expected {shape[0]} with {shape[1]}"
            raise CheckpointError(str(folder), problem, "Resume with the same capacity, environments and actors.")
        self._columns = columns
        self._held = int(columns["decided"].sum()) if columns else 0
        self._flat_observation = _OBSERVATION in columns
        self._names = {int(name): ring for name, ring in state["producers"].items()}
        self._head, self._added = head, state["added"]
        self._filled, self._episode = (np.array(state[name], np.int64) for name in ("filled", "episode"))
        self._random.bit_generator.state = random

    def _ring(self, producer: int) -> int:
        """The number of a producer's ring."""
        if producer not in self._names and len(self._names) == len(self._head):
            problem = f"rows of producer {producer} beside those of {sorted(self._names)}"
            raise RLinfError("replay buffer", problem, f"It was made for {len(self._head)} producers.")
        return self._names.setdefault(producer, len(self._names))

    def _append(self, rows: Trajectory[NDArray[Any]], row: int, length: int, ring: int) -> None:
        """Writes the decisions of one row, and the observation that followed them."""
        # More than the ring holds would overwrite itself.
        skipped = max(0, length + 1 - self._slots)
        episode = int(rows.episode[row]) if rows.episode is not None else -1
        # The newest observation of an episode under way is the first one of what follows.
        follows = int(self._filled[ring] > 0 and self._episode[ring] == episode and not skipped)
        begin = int(self._head[ring]) - follows
        steps = np.arange(skipped, length)
        at = (begin + np.arange(len(steps) + 1)) % self._slots
        for name, leaf in self._leaves(rows.observation):
            self._columns[name][ring, at] = leaf[row, skipped : length + 1]
        ended = (rows.terminated | rows.truncated)[row, steps].astype(bool)
        wrote = {"action": rows.action, "reward": rows.reward, "terminated": rows.terminated}
        for name, field in wrote.items():
            self._columns[name][ring, at[:-1]] = field[row, steps]
        self._columns["ended"][ring, at[:-1]] = ended
        self._held += len(steps) - int(self._columns["decided"][ring, at].sum())
        self._columns["decided"][ring, at] = np.arange(len(at)) < len(steps)
        self._head[ring] = (int(at[-1]) + 1) % self._slots
        self._filled[ring] = min(self._slots, int(self._filled[ring]) - follows + len(at))
        self._episode[ring] = -1 if ended[-1] else episode

    def _allocate(self, rows: Trajectory[NDArray[Any]]) -> None:
        """Takes the memory for rows like these, or compares them with those before."""
        self._flat_observation = not isinstance(rows.observation, Mapping)
        kept = {name: (leaf.shape[2:], leaf.dtype) for name, leaf in self._leaves(rows.observation)}
        kept["action"] = (rows.action.shape[2:], rows.action.dtype)
        if self._columns:
            own = {name: (column.shape[2:], column.dtype) for name, column in self._columns.items() if name in kept}
            if own != kept:
                raise ShapeError("ReplayBuffer.add(rows)", f"expected {own}, found {kept}", "Use a buffer for each environment.")
            return
        kept |= {"reward": ((), np.dtype(np.float32))}
        kept |= {name: ((), np.dtype(np.bool_)) for name in ("terminated", "ended", "decided")}
        self._columns = {name: np.zeros((*self._sizes, *shape), dtype) for name, (shape, dtype) in kept.items()}

    @property
    def _sizes(self) -> tuple[int, int]:
        return len(self._head), self._slots

    def _leaves(self, observation: Tree[Any] | None) -> Iterator[tuple[str, Any]]:
        for path, leaf in tree_leaves({} if observation is None else observation):
            yield f"{_OBSERVATION}.{path}" if path else _OBSERVATION, leaf

    def _observed(self, ring: Ints, slot: Ints) -> Tree[NDArray[Any]]:
        """The observations in slots, each leaf `[B, *]`."""
        if self._flat_observation:
            return self._columns[_OBSERVATION][ring, slot]
        tree: dict[str, Any] = {}
        for name in (name for name in self._columns if name.startswith(f"{_OBSERVATION}.")):
            *branches, leaf = name.split(".")[1:]
            inner = tree
            for branch in branches:
                inner = inner.setdefault(branch, {})
            inner[leaf] = self._columns[name][ring, slot]
        return tree


def _plain(state: Any) -> Any:
    """The state of a generator for JSON: arrays become lists."""
    return tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf, state)


def _arrays(state: Any) -> Any:
    """The state of a generator, from JSON."""
    return tree_map(lambda leaf: np.array(leaf, np.uint64) if isinstance(leaf, list) else leaf, state)
