"""Which problems are answered when: each pass over them has an order of its own, and a run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Split
from rlinf.core.random import keyed_generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one rollout worker holds of a group that was suspended, and nobody else can go on with."""

    rank: int
    """The worker."""
    tokens: int
    """How many were written."""
    oldest: int | None
    """The oldest weight version that wrote one of them; None if there is no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """A problem that is to be answered by a group of responses."""

    group: int
    """Unique in its split; keys the randomness of its responses."""
    problem: int
    """The place of the problem in its split."""
    again: bool = False
    """Whether it was aborted before; it is not aborted a second time, so that long responses are not lost."""
    partial: tuple[Completion[Any], ...] = field(default=(), compare=False)
    """What its responses held when it was aborted, NumPy, one for each member, from which any rollout worker goes on; () begins
    anew. Not compared."""
    held: Held | None = field(default=None, compare=False)
    """What a rollout worker holds of it, in place of `partial`; None if none does. Not compared."""

    @property
    def written(self) -> int:
        """Tokens of what can be gone on with."""
        return self.held.tokens if self.held is not None else sum(map(len, self.partial))

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that wrote one of those tokens; None if there is no token."""
        if self.held is not None:
            return self.held.oldest
        return min((part.oldest for part in self.partial if part.oldest is not None), default=None)

    def anew(self) -> PromptGroup:
        """The same without anything written."""
        return replace(self, partial=(), held=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What rollout and reward workers are asked for at once."""

    key: str
    """Unique in the run; names the queues of what is written for it."""
    split: Split
    """Of the problems."""
    prompt_groups: tuple[PromptGroup, ...]
    """The groups to begin, over all rollout workers."""
    needed: int
    """How many groups must be finished; the rest are aborted."""
    samples: int
    """Responses in each group."""
    sampling: SamplingConfig
    """How tokens are drawn."""
    shown: int
    """How many groups' texts the reports carry."""
    baseline: bool = False
    """Whether each group has one member more, the last, which is the likeliest response: the others are compared with its score."""
    origin: int | None = None
    """The rollout worker that had these groups before, and handed them over; None for the shares of all workers."""

    @property
    def members(self) -> int:
        """How many responses are written for each group."""
        return self.samples + self.baseline

    def share(self, rank: int, ranks: int) -> tuple[tuple[PromptGroup, ...], int]:
        """The groups that one rollout worker begins, and how many of them it must finish."""
        if self.origin is not None:
            return self.prompt_groups, len(self.prompt_groups)
        return self._shares(ranks)[rank]

    def for_worker(self, rank: int | None, ranks: int) -> JobSpec:
        """The same, with what was written before only where one rollout worker needs it; None for workers that need none."""
        own = set[int]() if rank is None else {prompt_group.group for prompt_group in self.share(rank, ranks)[0]}
        prompt_groups = [
            prompt_group if prompt_group.group in own else replace(prompt_group, partial=()) for prompt_group in self.prompt_groups
        ]
        return replace(self, prompt_groups=tuple(prompt_groups))

    def _shares(self, ranks: int) -> list[tuple[tuple[PromptGroup, ...], int]]:
        """What is held goes to who holds it, the rest one after the other to who has the fewest; with nothing held: in turn."""
        # A run that resumes may have fewer rollout workers than the one that wrote these groups.
        holders = [each.held.rank if each.held is not None and each.held.rank < ranks else None for each in self.prompt_groups]
        count = [holders.count(rank) for rank in range(ranks)]
        owners: list[int] = []
        for holder in holders:
            owner = min(range(ranks), key=lambda rank: count[rank]) if holder is None else holder
            # Those that are held were counted above.
            count[owner] += holder is None
            owners.append(owner)
        own = [
            tuple(each for each, owner in zip(self.prompt_groups, owners, strict=True) if owner == rank) for rank in range(ranks)
        ]
        needed = [0] * ranks
        # Places for groups that were aborted before come first, so that none of them is aborted again while there is another.
        for most in ([sum(each.again for each in groups) for groups in own], list(map(len, own))):
            while sum(needed) < self.needed and any(map(int.__lt__, needed, most)):
                needed[min((r for r in range(ranks) if needed[r] < most[r]), key=lambda rank: needed[rank])] += 1
        return list(zip(own, needed, strict=True))

    def handed_over(self, prompt_groups: Sequence[PromptGroup], origin: int) -> JobSpec:
        """The same for one rollout worker that goes on with groups of another."""
        return replace(self, prompt_groups=tuple(prompt_groups), needed=len(prompt_groups), origin=origin)


class ProblemSource:
    """Draws problems without an end, each once in a pass.

    Args:
        problems: how many there are.
        seed: that of the run.
        shuffle: whether each pass has an order of its own.
    """

    def __init__(self, problems: int, *, seed: int, shuffle: bool) -> None:
        self._numbers: Sequence[int] = range(problems)
        self._seed, self._shuffle = seed, shuffle
        self._position = 0
        self._returned: list[PromptGroup] = []
        self._pass: tuple[int, NDArray[np.intp]] | None = None

    def keep(self, numbers: Sequence[int]) -> None:
        """Draws only these problems from now on; called before anything is drawn, and equally where a run goes on."""
        self._numbers = numbers

    def draw(self, count: int) -> list[PromptGroup]:
        """The next `count` groups; those that were given back come first."""
        again, self._returned = self._returned[:count], self._returned[count:]
        return again + [self._next() for _ in range(count - len(again))]

    def give_back(self, prompt_groups: Sequence[PromptGroup]) -> None:
        """Takes back groups that were drawn and aborted."""
        self._returned += [replace(prompt_group, again=True) for prompt_group in prompt_groups]

    def state(self, outstanding: Sequence[PromptGroup] = ()) -> dict[str, Any]:
        """The position, as plain values.

        Args:
            outstanding: groups that were drawn and are not finished yet; after `restore` they are drawn again.
        """
        waiting = [*outstanding, *self._returned]
        return {"position": self._position, "returned": [_to_plain(prompt_group) for prompt_group in waiting]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self._position = state["position"]
        self._returned = [_from_plain(plain) for plain in state["returned"]]

    def _next(self) -> PromptGroup:
        number, place = divmod(self._position, len(self._numbers))
        prompt_group = PromptGroup(group=self._position, problem=self._numbers[int(self._permutation(number)[place])])
        self._position += 1
        return prompt_group

    def _permutation(self, number: int) -> NDArray[np.intp]:
        if self._pass is None or self._pass[0] != number:
            # From the seed and the number of the pass alone, so that a run that goes on needs nothing but the position.
            shuffled = keyed_generator(self._seed, "data", number).permutation(len(self._numbers))
            self._pass = (number, shuffled if self._shuffle else np.arange(len(self._numbers)))
        return self._pass[1]


def _to_plain(prompt_group: PromptGroup) -> dict[str, Any]:
    """A group in numbers and texts that JSON keeps to the bit."""
    partial = [
        # As floats of Python, to which a float32 goes and comes back without a loss.
        {"tokens": part.tokens.tolist(), "logprob": part.logprob.tolist(), "version": part.version.tolist(), "finish": part.finish}
        for part in prompt_group.partial
    ]
    plain = {"group": prompt_group.group, "problem": prompt_group.problem, "again": prompt_group.again, "partial": partial}
    return plain if prompt_group.held is None else {**plain, "held": asdict(prompt_group.held)}


def _from_plain(plain: Mapping[str, Any]) -> PromptGroup:
    """What `_to_plain` was made of."""
    partial = tuple(
        Completion(
            tokens=np.asarray(part["tokens"], np.int64),
            logprob=np.asarray(part["logprob"], np.float32),
            version=np.asarray(part["version"], np.int64),
            finish=part["finish"],
        )
        for part in plain.get("partial", ())
    )
    # No worker of a run that goes on still holds it: it begins anew there, and what it had is counted as discarded.
    held = Held(**plain["held"]) if "held" in plain else None
    return PromptGroup(group=plain["group"], problem=plain["problem"], again=plain["again"], partial=partial, held=held)
