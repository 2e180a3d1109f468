"""`ReasoningRolloutWorker`: holds a generator and answers problems with groups of responses.

job ──► groups ──► members, all at once ──► a group is complete ──► reward worker
                                                   └► enough are ──► the rest is aborted; what it wrote goes back to the runner
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from rlinf.core.data import Completion, Weights
from rlinf.core.errors import RLinfError
from rlinf.core.generation import Generator, SamplingConfig
from rlinf.core.problems import ShownPrompt, Split
from rlinf.core.protocols import Work
from rlinf.core.random import keyed_seed
from rlinf.core.worker import Worker, idempotent
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.prompt_lengths import PromptLengths, longest_prompt, measure
from rlinf.runners.reasoning.language import Problems, build_policy, build_tokenizer, check_images, check_temperature, complete
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, WrittenGroup, queue_name
from rlinf.runners.training.tensors import to_numpy

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


@dataclass(frozen=True, slots=True)
class _Engine:
    generator: Generator
    topology: ReasoningTopology
    problems: Problems


class ReasoningRolloutWorker(Worker):
    """One generator and its share of the problems."""

    def __init__(self, cfg: ReasoningConfig) -> None:
        self.cfg = cfg
        self._engine: _Engine | None = None
        self._held: Weights[Any] | None = None
        self._turn = asyncio.Lock()

    @idempotent
    def init_worker(self, topology: ReasoningTopology) -> None:
        """Builds the generator, once; its weights are those of the actor only after the first synchronisation."""
        if self._engine is not None:
            return
        torch.set_num_threads(self.threads)
        policy = build_policy(self.cfg, starting_weights=False, rollout=True).eval()
        check_temperature(policy, self.cfg.rollout.sampling_params)
        self._held = policy.weights()
        generator = self.cfg.rollout.generator.build(policy, rank=self.rank, world_size=self.world_size)
        problems = Problems(self.cfg, build_tokenizer(self.cfg))
        check_images(problems, generator)
        self._engine = _Engine(generator, topology, problems)

    def measure_prompts(self, splits: Sequence[Split]) -> list[PromptLengths]:
        """Which prompts of its share of these splits are too long, one answer for each split."""
        engine, _ = self._ready()
        limit = longest_prompt(self.cfg, engine.generator)
        return [measure(engine.problems, split, limit, rank=self.rank, ranks=self.world_size) for split in splits]

    async def sync_model_from_actor(self) -> int:
        """Takes over the actor's weights, also while responses are being written; returns their version."""
        engine, held = self._ready()
        received = self.cfg.weight_sync.recv(self.messenger, held, engine.topology.actor, 0)
        await self._take(received)
        return received.version

    async def load_weights(self, checkpoint_file: str | None, version: int) -> None:
        """Takes the weights of a checkpoint, or those that a run would start from."""
        if checkpoint_file is not None:
            weights = Weights(tensors=load_file(Path(checkpoint_file)), version=version)
        else:
            # Not every generator has the weights of the policy that it was built from, so all of them are given.
            weights = build_policy(self.cfg, starting_weights=True, rollout=True).weights()
        await self._take(weights)

    async def generate(self, job: JobSpec, channels: Channels) -> Generated:
        """Answers its share of a job; several jobs may be under way.

        Args:
            job: what is asked of all rollout workers.
            channels: `completions` takes each group as soon as it is complete.
        """
        if not self.cfg.actor.offload:
            return await self._generate(job, channels)
        async with self._turn, self.device_lock:  # one job after the other, as the lock belongs to a task
            return await self._generate(job, channels)

    async def _generate(self, job: JobSpec, channels: Channels) -> Generated:
        engine, _ = self._ready()
        prompt_groups, needed = job.share(self.rank, self.world_size)
        if not needed:
            return Generated(tokens=0, resumed=0, aborted=prompt_groups)
        # Groups that were aborted before have a place for certain; the rest goes to the first of the others that are done.
        free = max(0, needed - sum(prompt_group.again for prompt_group in prompt_groups))
        queue = queue_name(job.key, engine.topology.reward_rank(self.rank))
        groups = {asyncio.ensure_future(self._group(job, prompt_group)): prompt_group for prompt_group in prompt_groups}
        running, tokens, resumed = set(groups), 0, 0
        sent: list[Work[None]] = []
        try:
            while needed:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # A set has no order, and which of them find a place must not depend on chance.
                for task in sorted(done, key=lambda task: groups[task].group):
                    # Done, but without a place: it stays in `groups`, and what it wrote goes back to the runner with the aborted
                    # ones.
                    if not needed or not (groups[task].again or free):
                        continue
                    prompt_group = groups.pop(task)
                    # What was written before is part of the completions, and need not travel twice.
                    written = WrittenGroup(prompt_group=prompt_group.anew(), completions=task.result())
                    sent.append(channels.completions.put(written, key=queue, async_op=True))
                    free, needed = free - (not prompt_group.again), needed - 1
                    tokens, resumed = tokens + sum(map(len, written.completions)), resumed + prompt_group.written
            aborted = await self._abort(job, groups)
            # Waited for at the end only, so that sending does not hold up the groups that are still written.
            for work in sent:
                await work
            return Generated(tokens=tokens, resumed=resumed, aborted=aborted)
        finally:
            for task in groups:
                task.cancel()

    async def close(self) -> None:
        """Ends the generator."""
        await self._ready()[0].generator.close()

    async def _group(self, job: JobSpec, prompt_group: PromptGroup) -> tuple[Completion[Any], ...]:
        engine, _ = self._ready()
        prompt = engine.problems.prompt(job.split, prompt_group.problem)
        sampling = engine.problems.stopped(job.sampling)
        before = prompt_group.partial or (None,) * job.samples
        members = [self._member(job, prompt_group, prompt, sampling, member, part) for member, part in enumerate(before)]
        return tuple(await asyncio.gather(*members))

    async def _member(
        self,
        job: JobSpec,
        prompt_group: PromptGroup,
        prompt: ShownPrompt,
        sampling: SamplingConfig,
        member: int,
        partial: Completion[Any] | None,
    ) -> Completion[Any]:
        """One response; goes on with what an aborted one had written, unless that was its end."""
        if partial is not None and partial.finish != "abort":
            return partial
        engine, _ = self._ready()
        seed = keyed_seed(self.cfg.runner.seed, f"rollout/{job.split}", prompt_group.group, member)
        request = _request(job, prompt_group, member)
        found = await complete(engine.generator, prompt, sampling, seed=seed, request_id=request, partial=partial)
        return _as_numpy(found)

    async def _abort(
        self, job: JobSpec, groups: Mapping[asyncio.Task[tuple[Completion[Any], ...]], PromptGroup]
    ) -> tuple[PromptGroup, ...]:
        """Ends groups that are under way; returns them by their numbers, with what they had written if that came in time."""
        engine, _ = self._ready()
        engine.generator.abort(
            [_request(job, prompt_group, member) for prompt_group in groups.values() for member in range(job.samples)]
        )
        if groups:
            await asyncio.wait(groups, timeout=ABORT_S)
        found = [
            replace(prompt_group, partial=_any(task.result()) if task.done() else prompt_group.partial)
            for task, prompt_group in groups.items()
        ]
        return tuple(sorted(found, key=_number))

    async def _take(self, weights: Weights[Any]) -> None:
        engine, _ = self._ready()
        await engine.generator.load(weights)
        self._held = weights

    def _ready(self) -> tuple[_Engine, Weights[Any]]:
        if self._engine is None or self._held is None:
            raise RLinfError(f"rollout[{self.rank}]", "has no generator yet", "Call init_worker(topology) first.")
        return self._engine, self._held


def _any(partial: tuple[Completion[Any], ...]) -> tuple[Completion[Any], ...]:
    """What was written; () if nothing was."""
    return partial if any(map(len, partial)) else ()


def _number(prompt_group: PromptGroup) -> int:
    return prompt_group.group


def _request(job: JobSpec, prompt_group: PromptGroup, member: int) -> str:
    return f"{job.key}/{prompt_group.group}/{member}"


def _as_numpy(completion: Completion[Any]) -> Completion[Any]:
    if not isinstance(completion.tokens, torch.Tensor):
        return completion
    tokens, logprob, version = (to_numpy(x) for x in (completion.tokens, completion.logprob, completion.version))
    return Completion(tokens=tokens, logprob=logprob, version=version, finish=completion.finish)
