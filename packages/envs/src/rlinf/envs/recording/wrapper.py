"""Recording while an environment is used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.envs.recording.episode import Episode, Writer
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, Step, given_seeds, reset_rows, unmasked

logger = logging.getLogger("rlinf.envs")

_TEXTS = "task_descriptions"


class RecordEpisodes(Wrapper):
    """Hands each episode that has ended to a writer.

    What is kept in memory is the running episode of each environment and nothing else. An episode that is cut off by a reset or by
    `close` before it has ended is not recorded.

    Args:
        env: an environment of this package; the wrapper stands outside of its `EnforceContract`, and inside of `AugmentImages`.
        writer: gets the episodes in the order in which they end; closed with the environment.
        only_success: leave out episodes that were never solved.
        task: the task in words, for an environment whose observations don't have `task_descriptions`.
        max_episodes: as many the writer keeps, those that it has already too; None: no limit.

    Where an expert can act in place of the policy, the infos of a step say so: `intervene_flag` `[N]` bool, whether it did, and
    `intervene_action` `[N, *]`, what it did or would have done, not a number where nobody knows. Then `actions` are the expert's,
    and the policy's where the expert's are unknown.

    `reset(options={"playing": mask})`, `[N]` bool, leaves out the episodes that only fill up a batch, as in an evaluation that has
    fewer episodes left than environments.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        writer: Writer,
        *,
        only_success: bool = False,
        task: str = "",
        max_episodes: int | None = None,
    ) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "wrapper_options": (*env.metadata.get("wrapper_options", ()), "playing")}
        self._max_episodes = max_episodes
        self._writer = writer
        self._only_success = only_success
        self._task = task
        self._running: list[_Running | None] = [None] * env.num_envs
        self._unsolved = 0

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, and forgets the running ones in their place."""
        options = dict(options or {})
        playing = options.pop("playing", np.ones(self.num_envs, np.bool_))
        observations, infos = self.env.reset(seed=seed, options=options)
        seeds = given_seeds(options.get("seed") if seed is None else seed, self.num_envs)
        for row in np.flatnonzero(reset_rows(options, self.num_envs)):
            self._running[row] = None
            if not playing[row] or self._full:
                continue
            texts = observations.get(_TEXTS)
            task = self._task if texts is None else str(texts[row])
            running = _Running(task=task, seed=seeds[row])
            running.observations.append(_row(observations, int(row)))
            self._running[row] = running
        return observations, infos

    def step(self, actions: Any) -> Step:
        """One step of every environment; writes the episodes that end with it.

        Raises:
            RLinfError: the writer can't write.
        """
        values, active = unmasked(actions, self.num_envs)
        values = as_numpy(values)
        observations, rewards, terminated, truncated, infos = result = self.env.step(actions)
        for row in np.flatnonzero(active):
            running = self._running[row]
            if running is not None:
                running.observations.append(_row(observations, int(row)))
                # Copied, as the caller may write its array again.
                running.decide(np.array(values[row]), infos, int(row))
                flags = bool(terminated[row]), bool(truncated[row]), bool(infos["success"][row])
                running.outcomes.append((float(rewards[row]), *flags))
                if flags[0] or flags[1]:
                    # Before it is written: where that fails, the episode has ended all the same.
                    self._running[row] = None
                    self._write(running)
        return result

    def close(self, **kwargs: Any) -> None:
        """Completes the recording and frees the simulators."""
        # One that was reset and never stepped is no loss.
        lost = sum(1 for running in self._running if running is not None and running.actions)
        if lost:
            logger.info("%d episodes that had not ended are not recorded", lost)
        if (lost or self._unsolved) and not self._writer.count:
            # Nobody would know before the folder is read.
            logger.warning("no episode is recorded: %d had not ended, %d were not solved (only_success)", lost, self._unsolved)
        self._running = [None] * self.num_envs
        try:
            self._writer.close()
        finally:
            super().close(**kwargs)

    @property
    def _full(self) -> bool:
        return self._max_episodes is not None and self._writer.count >= self._max_episodes

    def _write(self, running: _Running) -> None:
        if self._full:
            return
        if not self._only_success or any(outcome[3] for outcome in running.outcomes):
            self._writer.write(running.episode())
        else:
            self._unsolved += 1


@dataclass(slots=True, kw_only=True)
class _Running:
    """An episode that has not ended."""

    task: str
    seed: int | None
    observations: list[dict[str, NDArray[Any]]] = field(default_factory=list[Any])
    actions: list[NDArray[Any]] = field(default_factory=list[Any])
    outcomes: list[tuple[float, bool, bool, bool]] = field(default_factory=list[Any])
    policy_actions: list[NDArray[Any]] = field(default_factory=list[Any])
    intervened: list[bool] = field(default_factory=list[bool])

    def decide(self, action: NDArray[Any], infos: Infos, row: int) -> None:
        """Keeps an action, and that of an expert where there is one."""
        if "intervene_action" in infos:
            self.policy_actions.append(action)
            self.intervened.append(bool(infos["intervene_flag"][row]))
            expert = as_numpy(infos["intervene_action"][row])
            action = action if np.isnan(expert).any() else np.array(expert, action.dtype)
        self.actions.append(action)

    def episode(self) -> Episode:
        rewards, terminated, truncated, success = zip(*self.outcomes, strict=True)
        return Episode(
            observations={key: np.stack([seen[key] for seen in self.observations]) for key in self.observations[0]},
            actions=np.stack(self.actions),
            rewards=np.array(rewards, np.float32),
            terminated=np.array(terminated, np.bool_),
            truncated=np.array(truncated, np.bool_),
            success=np.array(success, np.bool_),
            task=self.task,
            seed=self.seed,
            intervened=np.array(self.intervened, np.bool_) if self.intervened else None,
            policy_actions=np.stack(self.policy_actions) if self.policy_actions else None,
        )


def _row(observations: Any, row: int) -> dict[str, NDArray[Any]]:
    """A copy of what one environment shows, without the texts."""
    return {key: np.array(as_numpy(array[row])) for key, array in observations.items() if key != _TEXTS}
