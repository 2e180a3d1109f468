"""`LanguageRolloutWorker`: holds a generator and answers problems with groups, whatever a member of a group is.

job ──► groups ──► all at once ──► a group is complete ──► reward worker
                                                   └► enough are ──► the rest is aborted; what it wrote goes back to the runner
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from rlinf.core.data import Weights
from rlinf.core.errors import RLinfError
from rlinf.core.language.generation import Generator
from rlinf.core.language.problems import Split, Tokenizer
from rlinf.core.protocols import Work
from rlinf.core.worker import Worker, idempotent
from rlinf.runners.checkpoints.starting_weights import fitting_model, read_weights
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.prompt_lengths import PromptLengths, longest_prompt, measure
from rlinf.runners.reasoning.language import Problems, build_policy, build_tokenizer, check_images, check_temperature
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, Written, WrittenGroup, queue_name
from rlinf.runners.training.devices import give_back
from rlinf.runners.training.memory import record_memory

ABORT_S = 60.0
"""How long requests may take to end after they were aborted; what they had written is lost if they take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a worker wrote for a job."""

    tokens: int
    """How many, without those of aborted groups."""
    resumed: int
    """How many of them an earlier job had written, before it was aborted."""
    aborted: tuple[PromptGroup, ...]
    """The groups that were cut short, with what they had written."""
    lost: int = 0
    """Tokens of groups that this worker was to go on with and no longer had."""


@dataclass(eq=False, slots=True)
class Share:
    """What a worker has of a job that is under way."""

    job: JobSpec
    groups: dict[asyncio.Task[tuple[Written, ...]], PromptGroup]
    """Those that are written, by their tasks."""
    needed: int
    """How many of them must still be finished."""
    free: int
    """How many of these are places for groups that were not aborted before."""
    began: float = field(default_factory=time.monotonic)

    @property
    def movable(self) -> list[asyncio.Task[tuple[Written, ...]]]:
        """The groups that another worker could finish; none where some of them are surplus, and end with the others."""
        if self.needed < len(self.groups):
            return []
        return [task for task, group in self.groups.items() if not task.done() and not group.again]


@dataclass(frozen=True, slots=True)
class Engine:
    """What a worker writes with."""

    generator: Generator
    topology: ReasoningTopology
    tokenizer: Tokenizer
    problems: Problems


class LanguageRolloutWorker(Worker, ABC):
    """One generator and its share of the problems.

    Args:
        cfg: the configuration of the run.
    """

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._engine: Engine | None = None
        self._policy: Any = None
        self._held: Weights[Any] | None = None
        self._turn = asyncio.Lock()
        self._under_way: dict[str, Share] = {}

    @abstractmethod
    async def write_group(self, job: JobSpec, prompt_group: PromptGroup) -> tuple[Written, ...]:
        """The members of a group; where requests are aborted, they hold what was written."""

    @abstractmethod
    def abort_group(self, job: JobSpec, prompt_group: PromptGroup) -> None:
        """Aborts a group's requests, so that `write_group` returns soon with what was written."""

    @abstractmethod
    def kept(self, job: JobSpec, prompt_group: PromptGroup, members: tuple[Written, ...]) -> PromptGroup:
        """An aborted group with what can be gone on with, from what `write_group` has returned."""

    def known(self, prompt_group: PromptGroup) -> PromptGroup:
        """A group as this worker can go on with it."""
        return prompt_group

    def prepare(self) -> None:
        """Builds what else is needed, at the end of `init_worker`."""

    @idempotent
    def init_worker(self, topology: ReasoningTopology) -> None:
        """Builds the generator, once; its weights are those of the actor only after the first synchronisation."""
        if self._engine is not None:
            return
        torch.set_num_threads(self.threads)
        # Not the weights that the run starts from: others are given before anything is written.
        policy = build_policy(self.cfg, starting_weights=False, rollout=True).eval()
        check_temperature(policy, self.cfg.rollout.sampling_params)
        generator = self.cfg.rollout.generator.build(policy, rank=self.rank, world_size=self.world_size)
        # Where the generator has put them, as what is received comes there.
        self._policy, self._held = policy, policy.weights()
        tokenizer = build_tokenizer(self.cfg.actor.model, self.cfg.data.task)
        problems = Problems(self.cfg, tokenizer)
        check_images(problems, generator)
        self._engine = Engine(generator, topology, tokenizer, problems)
        self.prepare()

    def measure_prompts(self, splits: Sequence[Split]) -> list[PromptLengths]:
        """Which prompts of its share of these splits are too long, one answer for each split."""
        engine, _ = self._ready()
        limit = longest_prompt(self.cfg, engine.generator)
        return [measure(engine.problems, split, limit, rank=self.rank, ranks=self.world_size) for split in splits]

    async def sync_model_from_actor(self) -> int:
        """Takes over the actor's weights, also while responses are being written; returns their version."""
        engine, held = self._ready()
        # Of all actors the first one sends; see `publish`.
        received = self.cfg.weight_sync.recv(self.messenger, held, engine.topology.actor, 0)
        version = received.version
        await self._take(received)
        # What is still held here would not be given back.
        del received
        self._rest()
        return version

    async def load_weights(self, checkpoint_file: str | None, version: int) -> None:
        """Takes the weights of a checkpoint, or those that a run would start from."""
        if checkpoint_file is not None:
            file = Path(checkpoint_file)
            with fitting_model(file.parents[1], self.cfg.source, self.cfg.actor.model):
                await self._take(read_weights(file, "checkpoint", version=version))
        else:
            # Not every generator has the weights of the policy that it was built from, so all of them are given.
            await self._take(build_policy(self.cfg, starting_weights=True, rollout=True).weights())

    async def generate(self, job: JobSpec, channels: Channels) -> Generated:
        """Answers its share of a job; several jobs may be under way.

        Args:
            job: what is asked of all rollout workers.
            channels: `completions` takes each group as soon as it is complete.
        """
        if not self.cfg.actor.offload:
            return await self._generate(job, channels)
        async with self._turn, self.device_lock:  # one job after the other, as the lock belongs to a task
            try:
                return await self._generate(job, channels)
            finally:
                self._rest()

    async def under_way(self, key: str) -> tuple[int, float]:
        """Of a job: how many of its groups could go to another worker, and the seconds for which it has been under way."""
        share = self._under_way.get(key)
        return (0, 0.0) if share is None else (len(share.movable), time.monotonic() - share.began)

    async def hand_over(self, key: str, count: int) -> tuple[PromptGroup, ...]:
        """Gives up to `count` groups of a job, with what was written of them; they are no longer this worker's to finish."""
        share = self._under_way.get(key)
        if share is None:
            return ()
        # The last ones: those that were begun first may be nearest to their end.
        given = {task: share.groups.pop(task) for task in share.movable[max(0, len(share.movable) - count) :]}
        share.needed, share.free = share.needed - len(given), share.free - len(given)
        return await self._abort(share.job, given)

    async def _generate(self, job: JobSpec, channels: Channels) -> Generated:
        engine, _ = self._ready()
        own, needed = job.share(self.rank, self.world_size)
        prompt_groups = tuple(map(self.known, own))
        lost = sum(prompt_group.written for prompt_group in own) - sum(prompt_group.written for prompt_group in prompt_groups)
        if not needed:
            return Generated(tokens=0, resumed=0, aborted=prompt_groups, lost=lost)
        # Groups that were aborted before have a place for certain; the rest goes to the first of the others that are done.
        free = max(0, needed - sum(prompt_group.again for prompt_group in prompt_groups))
        queue = queue_name(job.key, engine.topology.reward_rank(self.rank if job.origin is None else job.origin))
        groups = {asyncio.ensure_future(self.write_group(job, prompt_group)): prompt_group for prompt_group in prompt_groups}
        share = self._under_way[job.key] = Share(job, groups, needed, free)
        running, tokens, resumed = set(groups), 0, 0
        sent: list[Work[None]] = []
        try:
            while share.needed:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # A set has no order, and which of them find a place must not depend on chance. What was handed over is not ours.
                for task in sorted((task for task in done if task in groups), key=lambda task: groups[task].group):
                    # Done, but without a place: it stays in `groups`, and what it wrote goes back to the runner with the aborted
                    # ones.
                    if not share.needed or not (groups[task].again or share.free):
                        continue
                    prompt_group = groups.pop(task)
                    # What was written before is part of the completions, and need not travel twice.
                    written = WrittenGroup(prompt_group=prompt_group.anew(), completions=task.result())
                    sent.append(channels.completions.put(written, key=queue, async_op=True))
                    share.free, share.needed = share.free - (not prompt_group.again), share.needed - 1
                    tokens, resumed = tokens + sum(map(len, written.completions)), resumed + prompt_group.written
            aborted = await self._abort(job, groups)
            record_memory(self, engine.generator)
            # Waited for at the end only, so that sending does not hold up the groups that are still written.
            for work in sent:
                await work
            return Generated(tokens=tokens, resumed=resumed, aborted=aborted, lost=lost)
        finally:
            self._under_way.pop(job.key, None)
            for task in groups:
                task.cancel()

    @property
    def engine(self) -> Engine:
        """What it writes with; there is one after `init_worker`."""
        return self._ready()[0]

    async def close(self) -> None:
        """Ends the generator."""
        await self._ready()[0].generator.close()

    async def _abort(
        self, job: JobSpec, groups: Mapping[asyncio.Task[tuple[Written, ...]], PromptGroup]
    ) -> tuple[PromptGroup, ...]:
        """Ends groups that are under way; returns them by their numbers, with what they had written if that came in time."""
        for prompt_group in groups.values():
            self.abort_group(job, prompt_group)
        if groups:
            await asyncio.wait(groups, timeout=ABORT_S)
        found = [
            self.kept(job, prompt_group, task.result()) if task.done() else prompt_group for task, prompt_group in groups.items()
        ]
        return tuple(sorted(found, key=attrgetter("group")))

    async def _take(self, weights: Weights[Any]) -> None:
        engine, _ = self._ready()
        await engine.generator.load(weights)
        # Those that the generator has copied into its policy, if it has, so that none are there twice.
        self._held = self._policy.weights() if self._policy.version == weights.version else weights

    def _rest(self) -> None:
        """Where an actor comes to the same devices in turn, what is free of their memory is given back for it."""
        if self.cfg.actor.offload:
            give_back()

    def _ready(self) -> tuple[Engine, Weights[Any]]:
        if self._engine is None or self._held is None:
            raise RLinfError(f"rollout[{self.rank}]", "has no generator yet", "Call init_worker(topology) first.")
        return self._engine, self._held
