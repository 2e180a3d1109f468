"""`EnvWorker`: simulates, asks a rollout worker for every action, and sends trajectories to the actor.

reset ──► obs ──ask──►  rollout worker  ──answer──► action ──► step ──► reward, obs ──ask──► …
└──► rows ──► Trajectory ──► actor

Each slot goes this way by itself (`converse`): with several, one simulates while others are decided for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from rlinf.core.data import EnvSpec, Trajectory
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.envs.robots import add_counts
from rlinf.core.errors import RLinfError
from rlinf.core.evaluation import EpisodeKey, EpisodeProtocol, EpisodeResult
from rlinf.core.protocols import Channel, Mode
from rlinf.core.worker import Worker, idempotent
from rlinf.runners.embodied.playing.building import build_slots
from rlinf.runners.embodied.playing.env_slot import (
    Answer,
    Conversation,
    EnvSlot,
    RequestSender,
    converse,
    step_decided,
    task_numbers,
)
from rlinf.runners.embodied.playing.evaluating import evaluation_of, filmed_players, telling
from rlinf.runners.embodied.playing.initial_states import InitialStates, unlike_members
from rlinf.runners.embodied.playing.rows import Bools, Ints, RowCollector, shares
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.playing.tree_files import read_tree, write_tree
from rlinf.runners.embodied.playing.under_way import ELSEWHERE, TOO_LONG, episodes_file, forgotten, unrepeatable
from rlinf.runners.embodied.rules import check_evaluated, check_states
from rlinf.runners.embodied.schema import EvalEnvConfig, PlayedConfig, TrainEnvConfig
from rlinf.runners.embodied.topology import Attempt, Interaction, Reply, Topology, answer_queue, request_queue
from rlinf.runners.embodied.wrapping import described
from rlinf.runners.training.memory import SimulatorMemory


class EnvWorker(Worker):
    """Holds its share of the environments, in one slot for each pipeline stage."""

    def __init__(self, cfg: PlayedConfig) -> None:
        self.cfg = cfg
        self._env_slots: list[EnvSlot] = []
        self._eval_env_slots: list[EnvSlot] = []
        self._initial: InitialStates
        self._topology: Topology | None = None
        self._restarts = 0
        self._prepared: int | None = None
        self._executed = 0
        self._closed = False
        self._memory = SimulatorMemory(self)

    @idempotent
    def init_worker(self, slots: Sequence[Slot]) -> EnvSpec:
        """Builds the training environments of those slots that are its own, and says what a policy must know of them."""
        own = [slot for slot in slots if slot.env_rank == self.rank]
        self.close()
        self._closed, self._prepared = False, None
        self._env_slots, spec = self._build(self.cfg.env.train, own, render=False)
        self._initial = InitialStates(self.cfg.env.train, self.cfg.runner.seed, self._env_slots[0].metadata)
        if told := unlike_members(self.cfg.env.train.group_size, self._env_slots[0].waived):
            self.log_warning(told)
        return spec

    def init_evaluation(self, slots: Sequence[Slot]) -> EnvSpec:
        """Builds the environments of evaluations alone, and says what a policy must know of those that it was trained in."""
        self._eval_env_slots, spec = self._build_evaluated(slots)
        return spec if self.cfg.env.same else described(self.cfg.env.train)

    @idempotent
    def connect(self, topology: Topology, restarts: int = 0) -> None:
        """Learns of the other workers; needed before `interact` and `evaluate`.

        Args:
            topology: who they are.
            restarts: how often the process of this worker was started again so far.

        Raises:
            ConfigError: the environment of evaluations is another one, for which the policy of training can't be used; or it has
                not the tasks and the initial states that are to be played.
        """
        self._topology, self._restarts = topology, restarts
        if not (self._env_slots or self._eval_env_slots):
            return  # a process that was started again meanwhile, which is built anew before it plays
        # The same environment is built when it is needed first; of another one it must be known before anything is trained.
        for env_slot in () if self.cfg.env.same else self._evaluated():
            check_evaluated(self.cfg, env_slot.spec, topology.spec)
        known = (self._eval_env_slots or self._env_slots)[0]
        check_states(self.cfg, known.metadata, trains=bool(self._env_slots))
        if self._env_slots:
            self._rest()

    @idempotent
    def close(self) -> None:
        """Closes all environments, which completes what they record."""
        for env_slot in self._eval_env_slots + ([] if self._closed else self._env_slots):
            env_slot.close()
        self._eval_env_slots, self._closed = [], True

    def _rest(self) -> None:
        """With `env.offload`, closes all environments until somebody plays in them; no episode goes on, see `rules`."""
        if self.cfg.env.offload:
            self.close()
            self._memory = SimulatorMemory(self)

    def _wake(self) -> None:
        """Builds the training environments again if they are closed."""
        if self._closed:
            slots, self._closed = [env_slot.slot for env_slot in self._env_slots], False
            self._env_slots, _ = self._build(self.cfg.env.train, slots, render=False)

    @idempotent
    def save_checkpoint(self, folder: str) -> None:
        """Writes what was done in the episodes that go on in the next iteration."""
        train = self.cfg.env.train
        if train.auto_reset and self._env_slots and not unrepeatable(train, self._env_slots[0].waived):
            slots = {str(env_slot.slot.index): env_slot.saved() for env_slot in self._env_slots}
            write_tree(episodes_file(folder, self.rank), slots)

    @idempotent
    def load_checkpoint(self, folder: str) -> None:
        """Plays the episodes again that `save_checkpoint` has found under way."""
        saved, restored = read_tree(episodes_file(folder, self.rank)), list[bool]()
        for env_slot in self._env_slots if self.cfg.env.train.auto_reset else ():
            of = saved.get(str(env_slot.slot.index), {"episode": ()})
            begin = partial(self._reset, env_slot, episode=of["episode"])
            restored.append(len(of["episode"]) == env_slot.slot.num_envs and env_slot.restore(of, begin))
        if not all(restored):
            known = TOO_LONG if any(forgotten(of) for of in saved.values()) else ELSEWHERE
            why = unrepeatable(self.cfg.env.train, self._env_slots[0].waived) or known
            self.log_warning(f"episodes under way begin anew, so that numbers differ from those of one run: {why}")

    @idempotent
    def prepare(self, step: int) -> None:
        """Resets what iteration `step` begins with, so that it can be done while the actor trains."""
        # A process that was started again under this call has nothing to reset yet; `interact` comes back to it.
        if self._prepared != step and self._env_slots:
            with self.worker_timer("reset"), self._memory.growing():
                for env_slot in self._env_slots:
                    self._begin_epoch(env_slot, step, 0)
            self._prepared = step

    def interact(
        self, step: int, requests: Channel, answers: Channel, trajectories: Channel, again: Attempt | None = None
    ) -> Interaction:
        """Collects one iteration of experience and sends it to the actor, each rollout epoch as soon as it is played.

        Args:
            step: the iteration.
            requests: where observations go, by `request_queue`.
            answers: where decisions come from, by `answer_queue`.
            trajectories: where `(env rank, Trajectory, number)` go, keyed by actor rank: one for each rollout epoch, in the order
                of their numbers over the whole run.
            again: the process that began the iteration has died. It is played from its start, and what the actor has of it
                already it knows by the number. No episode goes on from an epoch that the actor may have had from the other
                process: each epoch, and the next iteration, begins with a reset. None: the iteration is begun.

        Returns:
            What was played.
        """
        self._executed = 0
        actors = self._connected().actor_ranks
        self._wake()
        # As a rule this was done while the actor trained; not for the first iteration after a start.
        if again is None:
            self.prepare(step)
        else:
            for env_slot in self._env_slots:
                env_slot.leave()
                self._begin_epoch(env_slot, step, 0)
        played, decisions = [_Played() for _ in self._env_slots], Counter[int]()

        numbers = count(step * self.cfg.env.train.rollout_epoch)

        def send_complete() -> None:
            if all(part.rows for part in played):
                number = next(numbers)
                rows = Trajectory.concat([part.rows.popleft() for part in played])
                decisions.update(rows.version[rows.mask].tolist())
                for rank, share in enumerate(shares(rows, groups=self.cfg.env.train.groups, parts=actors)):
                    trajectories.put((self.rank, share, number), key=rank)

        senders = [self._sender(env_slot, requests, "train", step, again) for env_slot in self._env_slots]
        self._converse(
            {
                env_slot.slot.index: self._roll_out(env_slot, sender, step, part, send_complete, anew=again is not None)
                for env_slot, sender, part in zip(self._env_slots, senders, played, strict=True)
            },
            answers,
        )
        for env_slot in () if again is None else self._env_slots:
            env_slot.leave()
        episodes = [result for part in played for result in part.episodes]
        counts = add_counts(env_slot.take_counts() for env_slot in self._env_slots)
        self._rest()
        return Interaction(episodes=episodes, env_steps=self._executed, decisions=dict(decisions), counts=counts)

    def evaluate(
        self, protocol: EpisodeProtocol, requests: Channel, answers: Channel, video: str | None = None
    ) -> list[EpisodeResult]:
        """Plays this worker's share of a protocol, each episode once.

        Args:
            protocol: what is measured.
            requests: as for `interact`.
            answers: as for `interact`.
            video: where the first episodes of slot 0 are filmed; None films nothing.
        """
        found, conversations = list[list[EpisodeResult]](), dict[int, Conversation]()
        total = 0
        for env_slot in self._evaluated():
            film = {"record": video} if video and env_slot.slot.index == 0 else {}
            share = env_slot.share(protocol, self.cfg.env.eval.total_num_envs)
            player, total = env_slot.player(protocol, share, film), total + len(share)
            found.append([])
            sender = self._sender(env_slot, requests, "eval")
            conversations[env_slot.slot.index] = evaluation_of(env_slot, sender, [player], found[-1], protocol.real_time_chunking)
        self._converse(conversations, answers, telling(found, total, self.log_info))
        self._rest()
        return [result for results in found for result in results]

    def film(
        self, protocol: EpisodeProtocol, episodes: Sequence[tuple[EpisodeKey, str]], requests: Channel, answers: Channel
    ) -> list[EpisodeResult]:
        """Plays some episodes of a protocol once more, one after another in the environments of slot 0, each filmed alone.

        Args:
            protocol: what they are of.
            episodes: which, and the file of each film.
            requests: as for `interact`.
            answers: as for `interact`.
        """
        results, conversations = list[EpisodeResult](), dict[int, Conversation]()
        # Also those that play nothing: a rollout worker ends when each slot that it serves has said that it is done.
        for env_slot in self._evaluated():
            players = filmed_players(env_slot, protocol, episodes if env_slot.slot.index == 0 else ())
            sender = self._sender(env_slot, requests, "eval")
            conversations[env_slot.slot.index] = evaluation_of(env_slot, sender, players, results, protocol.real_time_chunking)
        self._converse(conversations, answers)
        self._rest()
        return results

    def collect(
        self, step: int, protocol: EpisodeProtocol, beta: float, requests: Channel, answers: Channel
    ) -> list[OfflineEpisode]:
        """Plays this worker's share of a protocol in the training environments, where an expert can act in place of the policy.

        Args:
            step: the round, as the rollout is told it.
            protocol: what is played.
            beta: the expert's share of the steps.
            requests: as for `interact`.
            answers: as for `interact`.

        Returns:
            The episodes, with what the expert would have done in each step; their numbers are the seeds of their resets.
        """
        conversations: dict[int, Conversation] = {}
        for env_slot in self._env_slots:
            env_slot.mix_expert(beta)
            player = env_slot.player(protocol, env_slot.share(protocol, self.cfg.env.train.total_num_envs), {})
            sender = self._sender(env_slot, requests, "train", step)
            conversations[env_slot.slot.index] = evaluation_of(env_slot, sender, [player], [])
        self._converse(conversations, answers)
        return [episode for env_slot in self._env_slots for episode in env_slot.take_episodes()]

    def _converse(self, slots: Mapping[int, Conversation], answers: Channel, tell: Callable[[], None] | None = None) -> None:
        def receive() -> Reply:
            if tell is not None:
                tell()
            with self.worker_timer("wait_for_actions"):
                return answers.get(key=answer_queue(self.rank, self._restarts))

        converse(slots, receive)

    def _roll_out(
        self,
        env_slot: EnvSlot,
        sender: RequestSender,
        step: int,
        played: _Played,
        send_complete: Callable[[], None],
        *,
        anew: bool,
    ) -> Conversation:
        """One slot's part of an iteration; with `anew` each rollout epoch begins with a reset."""
        train = self.cfg.env.train
        for epoch in range(train.rollout_epoch):
            # The first one has been begun.
            if epoch:
                if anew:
                    env_slot.leave()
                self._begin_epoch(env_slot, step, epoch)
            collector = RowCollector.of(train, env_slot.slot, env_slot.episode)
            env_slot.ask(sender, (step, epoch, 0))
            for t in range(train.max_steps_per_rollout_epoch):
                answer = env_slot.answer((yield))
                played.episodes.extend(self._advance(env_slot, answer, collector, (step, epoch, t)))
                env_slot.ask(sender, (step, epoch, t + 1))
            # The last request was made for its values, which bootstrap what goes on; its actions are not taken.
            played.rows.append(collector.finish(env_slot.answer((yield)).decision.value))
            send_complete()
        env_slot.close_requests(sender)

    def _advance(
        self, env_slot: EnvSlot, answer: Answer, collector: RowCollector, key: tuple[int, int, int]
    ) -> list[EpisodeResult]:
        """One decision of a slot is carried out: simulate, keep rows, reset what has ended; `key` is that of its request."""
        if answer.final_values is not None:
            collector.final_values(answer.final_envs, answer.final_values)
        env_slot.remember(answer)
        iteration, epoch, t = key
        before = env_slot.seen() if self.cfg.keeps_observations else None
        with self.worker_timer("simulate"):
            step = env_slot.step(answer.decision.action, f"iteration {iteration}, epoch {epoch}, step {t}")
        over, cut = step.terminated.max(axis=1), step.truncated.max(axis=1)
        # Without bootstrapping, a cut counts as an end of the task, after which nothing is worth anything.
        if not self.cfg.bootstraps_truncated:
            over, cut = step.done, np.zeros_like(cut)
        # What was executed is learned from, whoever decided it.
        decision, acted = step_decided(answer.decision, step)
        collector.append(decision, step.rewards.sum(axis=1), over, cut, task_numbers(step.infos), acted)
        if before is not None:
            collector.observed(before, env_slot.seen())
        self._executed += int(step.executed.sum())
        statistics, knows = step.infos["episode"], env_slot.spec.knows_success
        results = [EpisodeResult.of(statistics, env, knows_success=knows) for env in np.flatnonzero(env_slot.ended).tolist()]
        # After the last step nothing is reset: the next request values final observations, too, and `_begin_epoch` resets.
        if env_slot.ended.any() and t + 1 < self.cfg.env.train.max_steps_per_rollout_epoch:
            env_slot.keep_finals()
            self._reset(env_slot, env_slot.ended, env_slot.episode + 1)
        return results

    def _begin_epoch(self, env_slot: EnvSlot, step: int, epoch: int) -> None:
        """Resets what has ended, or everything where no episode goes on, which a run that resumes does too."""
        train = self.cfg.env.train
        # A rollout epoch begins no more episodes than it has decisions, so no number from here on was given before.
        fresh = (step * train.rollout_epoch + epoch) * train.max_steps_per_rollout_epoch
        if train.auto_reset and (env_slot.episode >= 0).all() and not env_slot.ended.all():
            self._reset(env_slot, env_slot.ended, env_slot.episode + 1)
        else:
            self._reset(env_slot, np.ones(env_slot.slot.num_envs, bool), np.full(env_slot.slot.num_envs, fresh))

    def _reset(self, env_slot: EnvSlot, mask: Bools, episode: Ints, **options: Any) -> None:
        """Begins the episodes of these numbers; the initial state of each follows from its group and its number alone."""
        if mask.any():
            env_slot.episode = np.where(mask, episode, env_slot.episode)
            groups = (env_slot.slot.first_env + np.arange(env_slot.slot.num_envs)) // self.cfg.env.train.group_size
            named = groups.tolist(), env_slot.episode.tolist()
            env_slot.reset(mask, self._initial.seeds(*named), **self._initial.options(*named), **options)

    def _evaluated(self) -> list[EnvSlot]:
        """The slots of evaluations, built when they are asked for first."""
        if not self._eval_env_slots:
            self._eval_env_slots, _ = self._build_evaluated(self._connected().slots["eval"])
        return self._eval_env_slots

    def _build_evaluated(self, slots: Sequence[Slot]) -> tuple[list[EnvSlot], EnvSpec]:
        config, own = self.cfg.env.eval, [slot for slot in slots if slot.env_rank == self.rank]
        return self._build(config, own, render=config.video_cfg.save_video)

    def _build(
        self, config: TrainEnvConfig | EvalEnvConfig, slots: Sequence[Slot], *, render: bool
    ) -> tuple[list[EnvSlot], EnvSpec]:
        if not slots:
            raise RLinfError(f"env[{self.rank}]", "there is no environment for this worker", "Place fewer env workers.")
        with self._memory.growing():
            return build_slots(config, slots, self.hardware_infos, render=render)

    def _sender(
        self, env_slot: EnvSlot, requests: Channel, mode: Mode, iteration: int | None = None, again: Attempt | None = None
    ) -> RequestSender:
        rank = self._connected().rollout_rank(env_slot.slot, mode)
        return RequestSender(requests=requests, queue=request_queue(rank, iteration, again), restarts=self._restarts)

    def _connected(self) -> Topology:
        if self._topology is None:
            raise RLinfError(f"env[{self.rank}]", "not connected to the other workers", "Call connect(topology) first.")
        return self._topology


@dataclass(frozen=True, slots=True)
class _Played:
    """What one slot has played in an iteration."""

    rows: deque[Trajectory[Any]] = field(default_factory=deque[Trajectory[Any]])
    """Of each rollout epoch that is not sent yet, because another slot has not played it."""
    episodes: list[EpisodeResult] = field(default_factory=list[EpisodeResult])
