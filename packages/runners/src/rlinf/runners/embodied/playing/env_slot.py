"""One slot's vector environment, and its side of the conversation with a rollout worker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Decision, EnvSpec
from rlinf.core.data.offline import MixesExpert, OfflineEpisode
from rlinf.core.data.tree import Tree, tree_combine, tree_index, tree_map
from rlinf.core.envs.chunks import ChunkStep, chunk_step
from rlinf.core.envs.failures import EnvPlace, env_place, locate
from rlinf.core.envs.robots import take_counts
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.core.evaluation import EpisodeKey, EpisodePlayer, EpisodeProtocol
from rlinf.core.protocols import Channel
from rlinf.runners.embodied.playing.episode_memory import EpisodeMemory
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.playing.under_way import EpisodeActions, forgotten, play_again
from rlinf.runners.embodied.topology import ChunksInExecution, Remembered, Reply, Request

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSender:
    """Sends the requests of a slot to the rollout worker that serves it."""

    requests: Channel
    """Carries `Request`s."""
    queue: Hashable
    """The key of those to the worker that serves the slot; see `request_queue`."""
    restarts: int = 0
    """How often the process of the env worker was started again."""

    def ask(
        self,
        slot: Slot,
        key: tuple[int, ...],
        obs: Any,
        remembered: Remembered | None = None,
        chunks: ChunksInExecution | None = None,
    ) -> None:
        """Asks for actions for observations, each leaf `[n, *]`; None says that no more requests come."""
        asked = Request(
            slot=slot.index,
            env_rank=slot.env_rank,
            key=key,
            obs=obs,
            remembered=remembered,
            restarts=self.restarts,
            chunks=chunks,
        )
        self.requests.put(asked, key=self.queue)


Conversation = Generator[None, Reply, None]
"""What a slot does from one answer to the next: each `yield` waits for the answer to what it has just asked."""


def converse(conversations: Mapping[int, Conversation], receive: Callable[[], Reply]) -> None:
    """Carries on the conversations of several slots until all have ended, each as soon as it is answered.

    While one slot simulates, others are decided for. The order of the answers changes no number: randomness is keyed by slot.

    Args:
        conversations: by slot.
        receive: waits for the next answer, to whichever slot.
    """
    # All ask before the first one waits.
    waiting = {slot: conversation for slot, conversation in conversations.items() if _goes_on(conversation, None)}
    while waiting:
        reply = receive()
        if not _goes_on(waiting[reply.slot], reply):
            del waiting[reply.slot]


def _goes_on(conversation: Conversation, reply: Any) -> bool:
    """Whether a conversation awaits another answer after this one; None begins it."""
    try:
        conversation.send(reply)
    except StopIteration:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision for each environment, and values of the final observations that were asked along."""

    decision: Decision[Any]
    """`[num_envs, …]`."""
    final_envs: NDArray[np.intp]
    """`[n]`, the environments whose episodes ended with the step before."""
    final_values: Floats | None
    """`[n]`, the critic's values of their final observations; None without a critic."""
    memory: Tree[Any] | None = None
    """What the policy remembers after the decision, each leaf `[num_envs, *]`; None if it has no memory."""


class EnvSlot:
    """Steps the environments of a slot with the actions that it is answered.

    An episode that ends inside a rollout is reset at once, and its final observation rides along with the next request, so
    that the critic can value it: no transition is lost and nothing is reset inside `step`.

    Args:
        slot: which environments these are.
        env: a vector environment without autoreset.
        spec: what is known of it.
        keyed: inside, what the environment refuses is called by its key.
    """

    def __init__(
        self, slot: Slot, env: Any, spec: EnvSpec, keyed: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.slot, self.spec, self._keyed = slot, spec, keyed
        # Before the first reset there is no episode to go on with.
        self.ended: Bools = np.ones(slot.num_envs, bool)
        self.episode = np.full(slot.num_envs, -1, np.int64)
        """`[num_envs]`, the number of the episode that each environment is in; below 0 before the first."""
        self._obs: Any = None
        self._finals: Any = None
        self._final_envs = np.empty(0, np.intp)
        self._final_names: list[int] = []
        self._memory = EpisodeMemory()
        self._actions = EpisodeActions(slot.num_envs)
        self._env = env
        self._low: Any = spec.action.low
        self._high: Any = spec.action.high

    @property
    def waived(self) -> Mapping[str, str]:
        """What the environment can't keep of the contract, and why."""
        return self.metadata.get("waived", {})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the environment says of itself."""
        return self._env.metadata

    def reset(self, mask: Bools, seeds: Sequence[int], **options: Any) -> None:
        """Resets the environments of `mask`, each to the initial state of its seed."""
        with self.located():
            self._obs, _ = self._env.reset(seed=list(seeds), options={"reset_mask": mask, **options})
        self.ended = self.ended & ~mask
        self._actions.begin(mask)

    def leave(self) -> None:
        """Gives up the episodes under way: whatever begins next begins with a reset."""
        self.ended, self.episode = np.ones_like(self.ended), np.full_like(self.episode, -1)

    def saved(self) -> dict[str, Any]:
        """What `restore` takes: the episodes under way, what was done in them and what the policy remembers of them."""
        found = {"episode": self.episode, "ended": self.ended, **self._actions.saved(~self.ended)}
        return found | self._memory.saved()

    def restore(self, saved: Mapping[str, Any], begin: Callable[..., None]) -> bool:
        """Plays the episodes again that were under way; false where they do not come to where they were, and all begins anew.

        Args:
            saved: what `saved` returned, of the same environments.
            begin: resets the environments of a mask, with options, each to the initial state of its episode.
        """
        tells = "playing" in self.metadata.get("wrapper_options", ())

        def started(mask: Bools, counts: Bools) -> Any:
            begin(mask, **({"playing": counts} if tells else {}))
            return self._obs

        actions = saved.get("actions")
        fits = not forgotten(saved) if actions is None else actions.shape[3:] == self.spec.action.shape
        self._obs = play_again(self._env, saved, started) if fits else None
        if self._obs is None:
            self.leave()
            return False
        self._actions.restore(saved)
        self.ended = saved["ended"]
        # They were counted when they were played first.
        self.take_counts()
        if "memory" in saved:
            self._memory.keep(saved["remembered"].tolist(), saved["memory"])
        return True

    def seen(self) -> dict[str, Any]:
        """Copies of what is observed now in numbers, each leaf `[num_envs, *]`; final observations where an episode has ended."""
        found = {key: np.array(value) for key, value in self._obs.items()}
        return {key: value for key, value in found.items() if value.dtype.kind in "biuf"}

    def keep_finals(self) -> None:
        """Lets the observations of the episodes that have just ended ride along with the next request."""
        self._final_envs = np.flatnonzero(self.ended)
        self._final_names = [self._names[env] for env in self._final_envs]
        # Copied, as the reset that follows may write into the same memory.
        self._finals = tree_map(np.copy, tree_index(self._obs, self._final_envs))

    def ask(self, sender: RequestSender, key: tuple[int, ...]) -> None:
        """Asks for actions for the current observations."""
        # A simulator may write its next observations into the same memory while these are on their way.
        obs, names = tree_map(np.copy, self._obs), self._names
        if len(self._final_envs):
            obs, names = tree_combine(np.concatenate, [obs, self._finals]), names + self._final_names
        sender.ask(self.slot, key, obs, self._memory.recall(names))

    def answer(self, reply: Reply) -> Answer:
        """What is answered to the last request."""
        decision = reply.decision
        envs, self._final_envs = self._final_envs, np.empty(0, np.intp)
        rows, value = self.slot.num_envs, decision.value
        # The rows behind those of the environments are final observations; see `ask`.
        finals = None if value is None else value[rows:]
        memory = None if reply.memory is None else tree_index(reply.memory, slice(rows))
        return Answer(decision=decision.rows(slice(rows)), final_envs=envs, final_values=finals, memory=memory)

    def remember(self, answer: Answer) -> None:
        """Keeps what the policy remembers after an answer; only of one whose actions are carried out, before any reset."""
        self._memory.keep(self._names, answer.memory)

    def close_requests(self, sender: RequestSender) -> None:
        """Says that no more requests come: a rollout worker ends when each slot that it serves has said so."""
        sender.ask(self.slot, (), None)

    def share(self, protocol: EpisodeProtocol, total_envs: int) -> list[EpisodeKey]:
        """The slot's share of a protocol: episode n is played by the slot of environment n mod `total_envs`, the number of all."""
        first, last = self.slot.first_env, self.slot.first_env + self.slot.num_envs
        return [episode for episode in protocol.work_list() if first <= episode.number % total_envs < last]

    def player(self, protocol: EpisodeProtocol, episodes: Sequence[EpisodeKey], options: Mapping[str, Any]) -> EpisodePlayer:
        """Plays episodes of a protocol in the slot's environments, from the start, with options for the first reset."""
        with self.located():
            return EpisodePlayer(self._env, self.spec, protocol, episodes, options)

    @property
    def _names(self) -> list[int]:
        """A number for the episode that each environment is in, which no other episode of the slot has."""
        return (self.episode * self.slot.num_envs + np.arange(self.slot.num_envs)).tolist()

    def step(self, action: Floats, when: str = "") -> ChunkStep:
        """Executes `[N, K, A]` actions, clipped to the environment's bounds, in each environment until its episode ends.

        Args:
            action: of each environment.
            when: for messages, such as "iteration 3".

        Raises:
            NonFiniteError: a reward is infinite or not a number, or an observation is what the environment's guard refuses.
            RLinfError: what else the environment raises.
        """
        with self.located(when):
            # Clipped for the simulator only: log-probabilities belong to the action that was drawn.
            executed = self.clipped(action)
            step = chunk_step(self._env, executed)
        self._obs, self.ended = step.observations, step.done
        self._actions.append(executed)
        return step

    def clipped(self, action: Floats) -> Floats:
        """Actions `[N, K, *]` within the environment's bounds.

        Raises:
            ConfigError: they are other ones than the environment takes.
        """
        made, taken = action.shape[2:], self.spec.action.shape
        if made != taken:
            problem = f"the policy makes actions of the shape {list(made)}, and the environment takes {list(taken)}"
            remedy = "Build it for the action of the EnvSpec that it is given: its answers are [B, K, *spec.action.shape]."
            raise ConfigError("actor.model.model_type", problem, remedy)
        # NumPy 1 refuses to clip without any bound.
        return action if self._low is None and self._high is None else np.clip(action, self._low, self._high)

    def take_counts(self) -> Mapping[str, float]:
        """What the environments counted since the last call; see `HasCounts`."""
        return take_counts(self._env)

    def mix_expert(self, beta: float) -> None:
        """Lets the expert act in a share of the steps; only of an environment that `MixesExpert`."""
        self._mixture.mix_expert(beta)

    def take_episodes(self) -> list[OfflineEpisode]:
        """The episodes that ended since the last call; only of an environment that `MixesExpert`."""
        return self._mixture.take_episodes()

    @property
    def _mixture(self) -> MixesExpert:
        """The wrapper that mixes, inside of others."""
        env = self._env
        while not isinstance(env, MixesExpert):
            env = env.env
        return env

    @contextmanager
    def located(self, when: str = "") -> Generator[None]:
        """Inside, what the environment raises says where and when; a value that can't be used is called by its key instead.

        Raises:
            RLinfError: the same error if it is one of ours; else one that names it, and has it as its cause.
        """
        try:
            with self._keyed():
                yield
        except ConfigError:
            raise
        except RLinfError as error:
            # Behind the last lines of a log nothing is read.
            if error.problem.endswith("\n"):
                error.move(f"{error.place} ({self._where(error, when)})")
            else:
                error.extend(self._where(error, when))
                error.move(f"env[{self.slot.env_rank}]")
            raise
        except Exception as error:
            said = error_text(error)
            raise RLinfError(f"env[{self.slot.env_rank}]", f"{said}, {self._where(error, when)}") from error

    def _where(self, error: Exception, when: str) -> str:
        """The slot, the environment among all of the run, its episode and the moment, as far as they are known."""
        slot, found = self.slot, env_place(error)
        of = f"in slot {slot.index} (environments {slot.first_env} to {slot.first_env + slot.num_envs - 1})"
        if found.env is not None:
            number = int(self.episode[found.env])
            locate(error, EnvPlace(episode=None if number < 0 else number))
            found = replace(env_place(error), env=slot.first_env + found.env)
        return ", ".join(part for part in (of, str(found), when) if part)

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()


def step_decided(decision: Decision[Any], step: ChunkStep) -> tuple[Decision[Any], Bools | None]:
    """The decision with the actions that were executed, and `[num_envs]`, where others made some; None where nobody else could."""
    flags = step.infos.get("intervene_flag")
    if flags is None:
        return decision, None
    return replace(decision, action=step.infos["intervene_action"]), flags.any(axis=1)


def task_numbers(infos: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """`[num_envs]`, the task of each environment's episode as `infos` of a step tell it; None where there is only one."""
    task = infos["episode"].get("task")
    return None if task is None else np.asarray(task, np.int64)
