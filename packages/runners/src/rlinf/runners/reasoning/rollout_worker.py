"""`ReasoningRolloutWorker`: answers problems with groups of responses, each a single completion."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import ShownPrompt
from rlinf.core.random import keyed_seed
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.rollout import LanguageRolloutWorker
from rlinf.runners.reasoning.language import as_numpy, complete
from rlinf.runners.reasoning.topology import Written


class ReasoningRolloutWorker(LanguageRolloutWorker):
    """One generator and its share of the problems."""

    async def write_group(self, job: JobSpec, prompt_group: PromptGroup) -> tuple[Written, ...]:
        """One response for each member; those of an aborted group go on from what they had written."""
        problems = self.engine.problems
        prompt, sampling = problems.prompt(job.split, prompt_group.problem), problems.stopped(job.sampling)
        before = prompt_group.partial or (None,) * job.members
        members = [self._member(job, prompt_group, prompt, sampling, member, part) for member, part in enumerate(before)]
        return tuple(await asyncio.gather(*members))

    def abort_group(self, job: JobSpec, prompt_group: PromptGroup) -> None:
        """Each member is one request."""
        self.engine.generator.abort([_request(job, prompt_group, member) for member in range(job.members)])

    def kept(self, job: JobSpec, prompt_group: PromptGroup, members: tuple[Written, ...]) -> PromptGroup:
        """With all that was written, if anything was."""
        partial = cast("tuple[Completion[Any], ...]", members)
        return replace(prompt_group, partial=partial if any(map(len, partial)) else ())

    async def _member(
        self,
        job: JobSpec,
        prompt_group: PromptGroup,
        prompt: ShownPrompt,
        sampling: SamplingConfig,
        member: int,
        partial: Completion[Any] | None,
    ) -> Completion[Any]:
        """One response, the likeliest for a baseline; goes on with what an aborted one had written, unless that was its end."""
        if partial is not None and partial.finish != "abort":
            return partial
        # Neither job nor worker is in it, so that a group draws the same in whichever it is written.
        seed = keyed_seed(self.cfg.runner.seed, f"rollout/{job.split}", prompt_group.group, member)
        request = _request(job, prompt_group, member)
        if member == job.samples:
            sampling = replace(sampling, temperature=0.0)
        found = await complete(self.engine.generator, prompt, sampling, seed=seed, request_id=request, partial=partial)
        return as_numpy(found)


def _request(job: JobSpec, prompt_group: PromptGroup, member: int) -> str:
    return f"{job.key}/{prompt_group.group}/{member}"
