"""`AgentRolloutWorker`: plays episodes, many at once on one event loop, with one generator.

group ──► episodes ──► turns ──► generator
                └────► calls ──► tools
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from rlinf.core.agents import Episode, PolicyEndpoint, SessionConfig, ToolBox
from rlinf.core.data import Completion
from rlinf.core.errors import ConfigError
from rlinf.core.generation import SamplingConfig
from rlinf.core.random import keyed_seed
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.remote_tools import RemoteTools
from rlinf.runners.agent.schema import AgentConfig
from rlinf.runners.conversations.conversation import turn_ends
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.rollout import Generated, LanguageRolloutWorker
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
        self._in_flight: dict[str, set[str]] = {}
        self._aborted: set[str] = set()
        self._remote: dict[str, ToolBox] = {}
        self._endpoint: PolicyEndpoint | None = None
        self._starting = asyncio.Lock()

    def prepare(self) -> None:
        """Builds the tools."""
        self._tools = self.cfg.agent.toolbox()

    async def _generate(self, job: JobSpec, channels: Channels) -> Generated:
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
        """One episode for each member."""
        sampling, key = self._ended(job.sampling), _key(job, prompt_group)
        self._in_flight[key] = set()
        try:
            episodes = [self._episode(job, prompt_group, sampling, member) for member in range(job.samples)]
            return tuple(await asyncio.gather(*episodes))
        finally:
            self._in_flight.pop(key, None)
            self._aborted.discard(key)

    def abort_group(self, job: JobSpec, prompt_group: PromptGroup) -> None:
        """Ends the requests that are under way; none is begun afterwards."""
        key = _key(job, prompt_group)
        if key in self._in_flight:
            self._aborted.add(key)
            self.engine.generator.abort(self._in_flight[key])

    def partial(self, members: tuple[Written, ...]) -> tuple[Completion[Any], ...]:
        """Nothing: what tools have seen and done can't be gone on with by another worker."""
        return ()

    async def _episode(self, job: JobSpec, prompt_group: PromptGroup, sampling: SamplingConfig, member: int) -> Episode:
        engine, key = self.engine, _key(job, prompt_group)
        problem = engine.problems.get(job.split, prompt_group.problem)
        prompt = engine.problems.prompt(job.split, prompt_group.problem).tokens

        def begin(attempt: int) -> tuple[Task, TurnGenerator]:
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
            generate = TurnGenerator(
                engine.generator,
                sampling,
                seed=seed,
                request=f"{key}/{member}/{attempt}",
                in_flight=self._in_flight[key],
                aborted=lambda: key in self._aborted,
            )
            return task, generate

        async with self._places:
            return await play(self.cfg.agent, begin)

    async def close(self) -> None:
        """Ends the endpoint and the generator."""
        if self._endpoint is not None:
            await self._endpoint.close()
        await super().close()

    async def _served(self, *, plain: bool) -> PolicyEndpoint:
        """The endpoint, which begins with the first episode that asks for it, on the event loop of all episodes.

        Raises:
            ConfigError: the run has none.
        """
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
