"""`AgentRewardWorker`: scores episodes by their answers, and by what their turns earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rlinf.core.agents import Branch, Episode
from rlinf.core.data import Trajectory
from rlinf.core.errors import RLinfError
from rlinf.core.language.problems import Tokenizer
from rlinf.core.rewards import RewardSample
from rlinf.runners.agent.schema import AgentConfig
from rlinf.runners.conversations.rows import episode_rows
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.reward import LanguageRewardWorker
from rlinf.runners.reasoning.topology import Channels, Written

READ = ("⟦", "⟧")
"""Around what the model read and did not write: masked, nothing is learned from it."""


class AgentRewardWorker(LanguageRewardWorker):
    """Scores its share of the groups."""

    cfg: AgentConfig

    def compute_rewards(self, job: JobSpec, channels: Channels) -> list[GroupReport]:
        """Scores this worker's share of a job as it is written.

        Raises:
            RLinfError: a larger share of the episodes failed than `agent.max_failed_share` allows.
        """
        reports = super().compute_rewards(job, channels)
        responses = [response for report in reports for response in report.responses]
        failed = [response for response in responses if response.measured["failed"]]
        if len(failed) > self.cfg.agent.max_failed_share * len(responses):
            found = f"{len(failed)} of {len(responses)} episodes failed; the first: {failed[0].failure}"
            remedy = "Mend the workflow or its tools, or raise agent.max_failed_share."
            raise RLinfError(f"rollout ({job.key})", found, remedy)
        return reports

    def scored_text(self, member: Written, stops: set[int]) -> str:
        """The answer."""
        return cast("Episode", member).answer

    def sample(self, member: Written, given: RewardSample) -> RewardSample:
        """With its turns, and all tokens that were written in them."""
        turns = cast("Episode", member).own_turns
        return replace(given, turns=turns, tokens=tuple(int(token) for turn in turns for token in turn.completion.tokens))

    def rewards(self, members: Sequence[Written], scores: Sequence[float]) -> list[float]:
        """The scores, with the penalty of length if there is one, and what workflows gave; 0 for what failed."""
        shaped = zip(cast("Sequence[Episode]", members), self.shaped(scores, members), strict=True)
        return [0.0 if episode.failed else score + episode.reward for episode, score in shaped]

    def response(self, member: Written, reward: float, score: float, text: str | None) -> Response:
        """Its length, how it ended, what it called and whether it is right."""
        episode = cast("Episode", member)
        earned = 0.0 if episode.failed else sum(turn.reward for turn in episode.own_turns)
        return Response(
            reward=reward + earned,
            # Whether it is right does not depend on its length, so that the penalty in `reward` does not count.
            success=score + episode.reward >= self.cfg.reward.success and not episode.failed,
            tokens=len(episode),
            finish=episode.finish,
            text=None if text is None else transcript(episode, self.state.tokenizer),
            measured=_measured(episode),
            failure=episode.failure,
        )

    def rows(self, prompt_group: PromptGroup, members: Sequence[Written], rewards: Sequence[float]) -> Trajectory[Any]:
        """One row for each branch of each episode."""
        episodes, pad = cast("Sequence[Episode]", members), self.state.tokenizer.pad_token_id
        return episode_rows(episodes, rewards, group=prompt_group.group, pad_id=pad)


def _measured(episode: Episode) -> Mapping[str, float]:
    results = [result for turn in episode.own_turns for result in turn.results]
    return {
        "agents": float(len({branch.agent for branch in episode.branches})),
        "turns": float(len(episode.own_turns)),
        "tool_calls": float(len(results)),
        "tool_errors": float(sum(result.outcome != "ok" for result in results)),
        "tool_timeouts": float(sum(result.outcome == "timeout" for result in results)),
        "tool_resends": float(sum(result.resent for result in results)),
        "failed": float(episode.failed),
        "retried": float(episode.attempts - 1),
    }


def transcript(episode: Episode, tokenizer: Tokenizer) -> str:
    """What was written after the prompt; branches follow each other, and a failure is named at the end."""
    parts = [_branch(branch, tokenizer) for branch in episode.branches]
    if episode.failure:
        parts.append(f"[{episode.finish}: {episode.failure}]")
    return "\n".join(parts)


def _branch(branch: Branch, tokenizer: Tokenizer) -> str:
    text = f"[{branch.agent}] " if branch.agent else ""
    for number, turn in enumerate(branch.turns):
        if number < branch.inherited:
            continue
        # The prompt of the first turn is that of the problem, which stands beside it.
        read = tokenizer.decode(turn.prompt) if number else ""
        text += f"{READ[0]}{read}{READ[1]}" if read else ""
        text += tokenizer.decode([int(token) for token in turn.completion.tokens])
    return text
