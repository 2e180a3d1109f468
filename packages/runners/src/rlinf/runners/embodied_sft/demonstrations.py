"""From recorded episodes to batches: an observation, and the chunk of actions that followed it.

An example is a step t of an episode of T: what was seen before it, and the actions t … t + K − 1. Those from T on repeat the last
one, and a mask says that they don't count. Where a policy acted and an expert said what it would have done, a chunk ends with the
first such step: what the expert says next answers what the policy did, and not the state in which the chunk began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.capabilities import HasSFTLoss
from rlinf.core.data import Batch, LossOutput, Trajectory
from rlinf.core.data.offline import ADVANTAGE_LABELS, OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.rewards import LearnsOffsets, LearnsReturns

if TYPE_CHECKING:
    import torch

TEXTS = "task_descriptions"
OBSERVATION, COUNTED, RETURNS = "observation", "counted", "returns"
LATER, OFFSETS = "later", "offsets"


class Demonstrations:
    """The examples of some episodes.

    Args:
        episodes: at least one.
        chunk: K.
        tasks: all tasks in words, those of other episodes, too.
        columns: what else is known of each step, by name, `[T]` for each episode; in a batch it is `[B, 1]` beside the observation.
        interventions: whether of episodes that a policy played only the steps count in which an expert acted, as in HG-DAgger:
            Kelly et al., "HG-DAgger: Interactive Imitation Learning with Human Experts" (2019), arXiv:1810.02890. An example that
            has none is left out.
        place: the section that names them.

    Raises:
        ConfigError: an action or something seen is infinite or not a number; the message has the episode, the key and the step.
    """

    def __init__(
        self,
        episodes: Sequence[OfflineEpisode],
        *,
        chunk: int,
        tasks: Sequence[str],
        columns: Mapping[str, Sequence[NDArray[Any]]] | None = None,
        interventions: bool = False,
        place: str = "data",
    ) -> None:
        self._episodes, self._chunk = list(episodes), chunk
        for episode in self._episodes:
            expect_finite(episode, place)
        self._counts = [_counted(episode, interventions) for episode in self._episodes]
        self._columns = columns or {}
        self._executed = [_executed(episode) for episode in self._episodes]
        begins = [np.flatnonzero(self._any_counted(number)) for number in range(len(self._episodes))]
        self._episode: NDArray[np.int64] = np.repeat(np.arange(len(begins)), [len(steps) for steps in begins])
        self._step: NDArray[np.int64] = np.concatenate(begins)
        numbers = {task: number for number, task in enumerate(tasks)}
        self._task = np.array([numbers[episode.task] for episode in self._episodes], np.int64)

    def __len__(self) -> int:
        return len(self._step)

    def column(self, key: str) -> NDArray[Any] | None:
        """What was seen under a key before every step, `[steps, *]`; None if there is no such."""
        if key not in self._episodes[0].observation:
            return None
        # Some formats also keep what was seen after the last step.
        return np.concatenate([episode.observation[key][: len(episode)] for episode in self._episodes])

    @property
    def action(self) -> NDArray[np.float32]:
        """What was done in every step, `[steps, A]`."""
        return np.concatenate([_vectors(episode.action) for episode in self._episodes])

    def batch(self, examples: Sequence[int], *, pairs: np.random.Generator | None = None) -> Batch[Any]:
        """Examples by number, for `Imitation`: `context` has the observation, and `counted` `[B, 1, K]`.

        Args:
            examples: their numbers.
            pairs: draws another frame of the episode of each example, any as likely as any other: `context` also has what was seen
                there, as `later`, and `offsets` `[B, 1]` in [−1, 1], how far behind the first one it is, as a share of the episode.
        """
        where = [(self._episodes[int(self._episode[at])], int(self._step[at])) for at in examples]
        action = np.stack([self._following(episode, step) for episode, step in where])
        observation = self._frames(where)
        counted = np.stack([self._following_counted(int(self._episode[at]), int(self._step[at])) for at in examples])[:, None]
        known: dict[str, Any] = {
            name: np.stack([column[int(self._episode[at])][int(self._step[at])] for at in examples])[:, None]
            for name, column in self._columns.items()
        }
        if pairs is not None:
            others = [(episode, int(pairs.integers(frames_of(episode)))) for episode, _ in where]
            offsets = [
                (other - step) / max(frames_of(episode) - 1, 1) for (episode, step), (_, other) in zip(where, others, strict=True)
            ]
            known |= {LATER: self._frames(others), OFFSETS: np.array(offsets, np.float32)[:, None]}
        trajectory = Trajectory.of(
            context={OBSERVATION: observation, COUNTED: counted, **known},
            action=action[:, None],
            # Nobody asks how likely a demonstration was, but a trajectory has the field.
            logprob=np.zeros((len(where), 1), np.float32),
            task=self._task[self._episode[np.asarray(examples)]],
        )
        return Batch.of(cast("Trajectory[Any]", trajectory))

    def _frames(self, where: Sequence[tuple[OfflineEpisode, int]]) -> dict[str, NDArray[Any]]:
        """Observations of frames, by key, each leaf `[B, 1, *]`."""
        keys = self._episodes[0].observation
        return {key: np.stack([episode.observation[key][step] for episode, step in where])[:, None] for key in keys}

    def _following(self, episode: OfflineEpisode, step: int) -> NDArray[np.float32]:
        steps = np.minimum(step + np.arange(self._chunk), len(episode) - 1)
        return _vectors(episode.action[steps])

    def _following_counted(self, episode: int, step: int) -> NDArray[np.bool_]:
        counted = np.zeros(self._chunk, np.bool_)
        found = self._counts[episode][step : step + self._chunk]
        counted[: len(found)] = found
        executed = self._executed[episode]
        if executed is not None:
            # A step counts if the expert executed all steps of the chunk before it.
            counted[1 : len(found)] &= np.logical_and.accumulate(executed[step : step + len(found) - 1])
        return counted

    def _any_counted(self, episode: int) -> NDArray[np.bool_]:
        """`[T]`, whether any step of the chunk from there on counts."""
        counts = self._counts[episode]
        if self._executed[episode] is not None:
            # What counts is every step, or what the expert executed; a chunk that begins with another step ends with it.
            return counts
        # Entry t adds up the steps t … t + K − 1, of which those behind the end are 0.
        return np.convolve(counts, np.ones(self._chunk))[self._chunk - 1 :] > 0


@dataclass(frozen=True, slots=True)
class Imitation:
    """How far a policy is from what was demonstrated: its own `sft_loss`."""

    tasks: Sequence[str]
    """In words, by the number that a batch has."""
    generator: torch.Generator
    """The source of what the loss draws, such as the times of a flow."""

    def of_policy(self, policy: HasSFTLoss, batch: Batch[Any]) -> LossOutput[Any]:
        trajectory, seen = batch.trajectory, _seen(batch, self.tasks)
        context = cast("Mapping[str, Any]", trajectory.context)
        if ADVANTAGE_LABELS in context:
            seen[ADVANTAGE_LABELS] = context[ADVANTAGE_LABELS][:, 0]
        return policy.sft_loss(seen, trajectory.action[:, 0], mask=context[COUNTED][:, 0], generator=self.generator)


@dataclass(frozen=True, slots=True)
class Valuation:
    """How surprising the returns of recorded steps are to a model: its own `return_loss`."""

    tasks: Sequence[str]
    """As of `Imitation`."""

    def of_policy(self, policy: LearnsReturns, batch: Batch[Any]) -> LossOutput[Any]:
        context = cast("Mapping[str, Any]", batch.trajectory.context)
        return policy.return_loss(_seen(batch, self.tasks), context[RETURNS][:, 0], mask=context[COUNTED][:, 0, 0])


@dataclass(frozen=True, slots=True)
class Progress:
    """How surprising the offsets between two frames of an episode are to critics: their own `offset_loss`."""

    tasks: Sequence[str]
    """As of `Imitation`."""

    def of_policy(self, policy: LearnsOffsets, batch: Batch[Any]) -> LossOutput[Any]:
        context = cast("Mapping[str, Any]", batch.trajectory.context)
        first, second = (_seen(batch, self.tasks, key) for key in (OBSERVATION, LATER))
        return policy.offset_loss(first, second, context[OFFSETS][:, 0], mask=context[COUNTED][:, 0, 0])


def frames_of(episode: OfflineEpisode) -> int:
    """How many observations an episode has: its steps, and one more in a format that keeps what was seen last."""
    return min(len(leaf) for leaf in episode.observation.values())


def _seen(batch: Batch[Any], tasks: Sequence[str], key: str = OBSERVATION) -> dict[str, Any]:
    """The observations of a batch, each leaf `[B, *]`, with the words of the task if there are any."""
    context = cast("Mapping[str, Any]", batch.trajectory.context)
    seen = {name: leaf[:, 0] for name, leaf in context[key].items()}
    if any(tasks):
        seen[TEXTS] = np.array(tasks)[batch.trajectory.task.cpu().numpy()]
    return seen


def held_out(episodes: int, wanted: int | None) -> int:
    """How many of some episodes, the last ones, are not learned."""
    return max(1, episodes // 10) if wanted is None else wanted


def expect_finite(episode: OfflineEpisode, place: str) -> None:
    """Refuses an episode in which something is infinite or not a number.

    Raises:
        ConfigError: the message has the episode, the key and the step.
    """
    for name, leaf in {**episode.observation, "action": episode.action}.items():
        if not np.issubdtype(leaf.dtype, np.floating) or np.isfinite(leaf).all():
            continue
        step, *index = (int(at) for at in np.argwhere(~np.isfinite(leaf))[0])
        where = f"'{name}' of episode {episode.number}, step {step}, index {index}"
        raise ConfigError(place, f"expected finite numbers, found {float(leaf[step, *index])} in {where}", "Mend the dataset.")


def _counted(episode: OfflineEpisode, interventions: bool) -> NDArray[np.bool_]:
    """`[T]`, the steps whose actions are learned."""
    if interventions and episode.intervened is not None:
        return np.asarray(episode.intervened, np.bool_)
    return np.ones(len(episode), np.bool_)


def _executed(episode: OfflineEpisode) -> NDArray[np.bool_] | None:
    """`[T]`, the steps whose action was executed, and not a policy's in its place; None if all were."""
    return None if episode.policy_action is None else np.asarray(episode.intervened, np.bool_)


def _vectors(action: NDArray[Any]) -> NDArray[np.float32]:
    """`[T, A]` float32."""
    return np.asarray(action, np.float32).reshape(len(action), -1)
