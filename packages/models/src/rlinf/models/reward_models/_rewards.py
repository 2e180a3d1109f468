"""Scores texts with networks: tokens, batches, devices."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

from rlinf.core.language.answered import answered_tokens
from rlinf.core.language.problems import Message, Tokenizer
from rlinf.core.rewards import RewardSample
from rlinf.models.language.tokens import text_context
from rlinf.models.reward_models.rewards import JudgeReward, ModelReward
from rlinf.models.reward_models.yes_no import YesNoRewardConfig

_SEED: Final = 0
"""Decides the weights of a preset: every worker has the same."""
_LOCK: Final = threading.Lock()
"""Parts of a composite reward are asked in threads of their own, and one model is loaded once."""


class Scores(Protocol):
    """A reward model."""

    def score(self, context: Mapping[str, Tensor]) -> Tensor:
        """`[B]`, of the one sequence of each row."""
        ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: Scores
    tokenizer: Tokenizer
    longest: int
    """Tokens that it reads, the most."""


def model_scores(reward: ModelReward, samples: Sequence[RewardSample]) -> list[float]:
    """What a sequence classifier says of prompts with their responses."""

    def load() -> _Loaded:
        model = reward.model.build(seed=_SEED)
        return _placed(model, model.network, reward.model.tokenizer(()), reward.max_length)

    with _LOCK:
        loaded = _loaded(reward.built, load)
        texts = [answered_tokens(loaded.tokenizer, sample.asked or sample.prompt, sample.text) for sample in samples]
        return _scored(loaded, texts, reward.batch_size)


def judge_scores(reward: JudgeReward, samples: Sequence[RewardSample]) -> list[float]:
    """How likely a language model says yes to a question about each response."""

    def load() -> _Loaded:
        yes, no = reward.answers("reward")
        judge = YesNoRewardConfig(causal_lm=reward.model, yes_id=yes, no_id=no).build(seed=_SEED)
        tokenizer = reward.model.tokenizer((reward.yes, reward.no))
        return _placed(judge, judge.model.network, tokenizer, reward.max_length)

    with _LOCK:
        loaded = _loaded(reward.built, load)
        return _scored(loaded, [_question(loaded.tokenizer, reward.question, each) for each in samples], reward.batch_size)


def _loaded(held: list[Any], load: Callable[[], _Loaded]) -> _Loaded:
    if not held:
        held.append(load())
    return held[0]


def _placed(model: Any, network: Any, tokenizer: Tokenizer, longest: int | None) -> _Loaded:
    """On the first accelerator that this process sees, which is one of its worker's; on the CPU where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    positions = int(getattr(network.config, "max_position_embeddings", 1 << 20))
    return _Loaded(model.to(device or "cpu").eval(), tokenizer, min(longest or positions, positions))


def _scored(loaded: _Loaded, texts: Sequence[Sequence[int]], size: int) -> list[float]:
    # By length, so that rows of one batch need little padding.
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found = [0.0] * len(texts)
    for begin in range(0, len(order), size):
        rows = order[begin : begin + size]
        context = text_context([texts[row][-loaded.longest :] for row in rows], pad_id=loaded.tokenizer.pad_token_id)
        scores: list[float] = cast("Any", loaded.model.score(context)).tolist()
        for row, score in zip(rows, scores, strict=True):
            found[row] = score
    return found


def _question(tokenizer: Tokenizer, question: str, sample: RewardSample) -> list[int]:
    asked = sample.asked or sample.prompt
    prompt = asked if isinstance(asked, str) else "\n".join(message["content"] for message in asked)
    given = {"prompt": prompt, "response": sample.text, "answer": sample.answer}
    # In one pass: a response that has such a mark in it is only text.
    content = re.sub(r"\{(prompt|response|answer)\}", lambda mark: given[mark[1]], question)
    message: Message = {"role": "user", "content": content}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
