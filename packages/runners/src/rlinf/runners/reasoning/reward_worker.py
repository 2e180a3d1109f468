"""`RewardWorker`: scores single completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from rlinf.core.data import Completion, Trajectory
from rlinf.core.rewards import RewardSample
from rlinf.runners.reasoning.generation.admission import Response
from rlinf.runners.reasoning.generation.prompt_groups import PromptGroup
from rlinf.runners.reasoning.generation.reward import LanguageRewardWorker
from rlinf.runners.reasoning.rows import group_rows
from rlinf.runners.reasoning.topology import Written


class RewardWorker(LanguageRewardWorker):
    """Scores its share of the groups."""

    def scored_text(self, member: Written, stops: set[int]) -> str:
        """The whole response."""
        completion = cast("Completion[Any]", member)
        return self.state.tokenizer.decode(_said(completion, stops), skip_special_tokens=True)

    def sample(self, member: Written, given: RewardSample) -> RewardSample:
        """With the tokens of the response, the one that ended it among them."""
        completion = cast("Completion[Any]", member)
        return replace(given, tokens=tuple(int(token) for token in completion.tokens))

    def rewards(self, members: Sequence[Written], scores: Sequence[float]) -> list[float]:
        """The scores, with the penalty of length if there is one."""
        return self.shaped(scores, members)

    def response(self, member: Written, reward: float, score: float, text: str | None) -> Response:
        """Its length, how it ended and whether it is right."""
        right = score >= self.cfg.reward.success
        return Response(reward=reward, success=right, tokens=len(member), finish=member.finish, text=text)

    def rows(self, prompt_group: PromptGroup, members: Sequence[Written], rewards: Sequence[float]) -> Trajectory[Any]:
        """One row for each response."""
        prompt = self.state.problems.prompt("train", prompt_group.problem)
        completions = cast("Sequence[Completion[Any]]", members)
        return group_rows(prompt, completions, rewards, group=prompt_group.group, pad_id=self.state.tokenizer.pad_token_id)


def _said(completion: Completion[Any], stops: set[int]) -> list[int]:
    """The tokens of a response without the one that ended it."""
    tokens = [int(token) for token in completion.tokens]
    return tokens[:-1] if tokens and tokens[-1] in stops else tokens
