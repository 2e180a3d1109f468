"""`AgentRolloutWorker`: plays episodes, many at once on one event loop, with one generator.

group ──► episodes ──► turns ──► generator
                └────► calls ──► tools
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from rlinf.core.agents import Episode, PolicyEndpoint, SessionConfig, ToolBox
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.random import keyed_seed
from rlinf.runners.agent.episode_groups import EpisodeGroup, PlayedEpisode
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.schema import AgentConfig
from rlinf.runners.agent.tool_worker import RemoteTools
from rlinf.runners.conversations.conversation import turn_ends
from rlinf.runners.reasoning.generation.prompt_groups import Held, JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.rollout import ABORT_S, Generated, LanguageRolloutWorker
from rlinf.runners.reasoning.topology import Channels, Written


class AgentRolloutWorker(LanguageRolloutWorker):
    """One generator, the tools, and its share of the problems.

    Args:
        cfg: the configuration of the run.
    """

    cfg: AgentConfig

    def __init__(self, cfg: AgentConfig) -> None:
        super().__init__(cfg)
        self._tools = ToolBox()
        self._places = asyncio.Semaphore(cfg.agent.max_concurrent)
        self._groups: dict[str, EpisodeGroup] = {}
        self._suspended: dict[int, EpisodeGroup] = {}
        self._remote: dict[str, ToolBox] = {}
        self._endpoint: PolicyEndpoint | None = None
        self._starting = asyncio.Lock()

    def prepare(self) -> None:
        """Builds the tools."""
        self._tools = self.cfg.agent.toolbox()

    async def _generate(self, job: JobSpec, channels: Channels) -> Generated:
        if self._suspends(job):
            # What would be too old begins anew, wherever that is.
            self._drop([prompt_group.group for prompt_group in job.prompt_groups if prompt_group.held is None])
        try:
            return await self._generate_with_tools(job, channels)
        finally:
            # All but what `kept` has put aside.
            for prompt_group in job.prompt_groups:
                group = self._groups.pop(_key(job, prompt_group), None)
                if group is not None:
                    group.cancel()

    async def _generate_with_tools(self, job: JobSpec, channels: Channels) -> Generated:
        ranks = self.engine.topology.tool_ranks
        if not ranks:
            return await super()._generate(job, channels)
        resends = self.cfg.agent.tool_workers.resends
        remote = RemoteTools(job.key, self.rank, ranks, channels, resends=resends, keeps=self._tools.keeps)
        self._remote[job.key] = self._tools.elsewhere(remote.call)
        reading = asyncio.ensure_future(remote.read())
        try:
            return await super()._generate(job, channels)
        finally:
            reading.cancel()
            del self._remote[job.key]

    async def write_group(self, job: JobSpec, prompt_group: PromptGroup) -> tuple[Written, ...]:
        """One episode for each member; those of a group that was suspended go on. () if it is suspended again."""
        group = self._suspended.pop(prompt_group.group) if prompt_group.held is not None else None
        if group is not None:
            group.resume()
        else:
            group = EpisodeGroup(self.engine.generator, self._places)
            for member in range(job.samples):
                group.begin(self._episode(job, prompt_group, member))
        self._groups[_key(job, prompt_group)] = group
        return await (group.played() if self._suspends(job) else group.ended())

    def abort_group(self, job: JobSpec, prompt_group: PromptGroup) -> None:
        """Suspends the group where a later job may go on with it, and ends it otherwise."""
        group = self._groups.get(_key(job, prompt_group))
        if group is not None:
            group.suspend() if self._suspends(job) else group.abort()

    def known(self, prompt_group: PromptGroup) -> PromptGroup:
        """Begun anew where its episodes are gone, as with the process of the worker before this one."""
        return prompt_group if prompt_group.held is None or prompt_group.group in self._suspended else prompt_group.anew()

    def kept(self, job: JobSpec, prompt_group: PromptGroup, members: tuple[Written, ...]) -> PromptGroup:
        """Held here: what tools have seen and done can't be gone on with by another worker."""
        if not self._suspends(job):
            return prompt_group.anew()
        group = self._suspended[prompt_group.group] = self._groups.pop(_key(job, prompt_group))
        return replace(prompt_group, held=Held(rank=self.rank, tokens=group.tokens, oldest=group.oldest))

    def _suspends(self, job: JobSpec) -> bool:
        """Whether groups of a job that are not needed are gone on with by a later one."""
        return self.cfg.rollout.partial_lag > 0 and job.split == "train"

    def _drop(self, groups: Collection[int]) -> list[asyncio.Task[Episode]]:
        """Ends groups that nobody will go on with; see `EpisodeGroup.cancel`."""
        dropped = [self._suspended.pop(number) for number in groups if number in self._suspended]
        return [task for group in dropped for task in group.cancel()]

    def _episode(
        self, job: JobSpec, prompt_group: PromptGroup, member: int
    ) -> Callable[[PlayedEpisode], Coroutine[Any, Any, Episode]]:
        """Plays one episode, all attempts of it."""
        engine, key, sampling = self.engine, _key(job, prompt_group), self._ended(job.sampling)
        problem = engine.problems.get(job.split, prompt_group.problem)
        prompt = engine.problems.prompt(job.split, prompt_group.problem).tokens

        def begin(playing: PlayedEpisode, attempt: int) -> tuple[Task, TurnGenerator]:
            task = Task(
                problem=problem,
                prompt=prompt,
                tools=self._remote.get(job.key, self._tools),
                config=self.cfg.agent,
                tokenizer=engine.tokenizer,
                split=job.split,
                endpoint=lambda: self._served(plain=isinstance(problem.prompt, str)),
            )
            seed = keyed_seed(self.cfg.runner.seed, f"agent/{job.split}", prompt_group.group, member, attempt)
            request = f"{key}/{member}/{attempt}"
            return task, TurnGenerator(engine.generator, sampling, seed=seed, request=request, playing=playing)

        return lambda playing: play(self.cfg.agent, partial(begin, playing))

    async def close(self) -> None:
        """Ends the endpoint and the generator, and episodes that nobody goes on with any more."""
        ending = self._drop(list(self._suspended))
        # What was cancelled has ended only when it has noticed.
        if ending:
            await asyncio.wait(ending, timeout=ABORT_S)
        if self._endpoint is not None:
            await self._endpoint.close()
        await super().close()

    async def _served(self, *, plain: bool) -> PolicyEndpoint:
        """The endpoint, which begins with the first episode that asks for it, on the event loop of all episodes.

        Raises:
            ConfigError: the run has none.
        """
        # Many episodes ask for it at the same time, and the first one starts it.
        async with self._starting:
            if self._endpoint is None:
                section, engine, agent = self.cfg.agent.endpoint, self.engine, self.cfg.agent
                if section is None:
                    raise ConfigError("agent.endpoint", "the run has none", "Add `endpoint: {}` to `agent`.")
                sampling = self._ended(self.cfg.rollout.sampling_params)
                session = SessionConfig(sampling=sampling, fixed=True, plain=plain, seed=keyed_seed(self.cfg.runner.seed, "served"))
                form = agent.tool_format.format
                start = section.config.start(engine.generator, engine.tokenizer, form, session=session, rank=self.rank)
                self._endpoint = await start
            return self._endpoint

    def _ended(self, sampling: SamplingConfig) -> SamplingConfig:
        """The same, where a turn may also end behind a call."""
        engine, form = self.engine, self.cfg.agent.tool_format.format
        sampling = engine.problems.stopped(sampling)
        ends = turn_ends(engine.tokenizer, form, self._tools.tools)
        return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *ends))))


def _key(job: JobSpec, prompt_group: PromptGroup) -> str:
    return f"{job.key}/{prompt_group.group}"
