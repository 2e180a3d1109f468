"""Language models as rewards of a run; light to import, torch is reached when the first response is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError
from rlinf.core.rewards import RewardSample
from rlinf.models.language.policy import CausalLMConfig
from rlinf.models.reward_models.sequence import SequenceRewardConfig

RESPONSE: Final = "{response}"
"""Where a question has what is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextReward:
    """A network that reads prompt and response, in batches, with the tokenizer of its own folder."""

    batch_size: int = 16
    """Responses in one forward pass, the most; they are padded to the longest of them, which changes no score."""
    max_length: int | None = None
    """Tokens that are read, the most; of a longer text the beginning is left out. null: as many positions as the model has."""
    built: list[Any] = field(init=False, repr=False, compare=False, default_factory=list[Any])
    """The model, once it has scored something in this process."""

    def __post_init__(self) -> None:
        expect_at_least("batch_size", self.batch_size, 1)
        expect_at_least("max_length", self.max_length, 1)

    @property
    def opinion(self) -> bool:
        """It has learned what it says."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReward(_TextReward):
    """What a reward model says of prompt and response, by name: `reward_model`.

    Messages are rendered with the chat template of the model's own tokenizer, the response as the assistant's; a prompt that is one
    text is followed by the response and the token that ends a text. Pictures are not seen.
    """

    model: SequenceRewardConfig
    """A folder that `AutoModelForSequenceClassification` reads, with one label and a tokenizer; or a preset, which scores
    at random."""

    def __post_init__(self) -> None:
        _TextReward.__post_init__(self)
        if self.model.fresh_head:
            problem = "expected a trained head, found one that is drawn at random"
            raise ConfigError("model.fresh_head", problem, "Train it first: apps/reasoning/sft.py, runner.task_type reward_model.")

    def check(self, place: str) -> None:
        """Refuses a folder that is no reward model.

        Raises:
            ConfigError: it is not there, or holds something else.
            MissingExtra: transformers is not installed.
        """
        self.model.check(f"{place}.model")
        if self.model.model_path is not None:
            self.model.tokenizer(())

    def score_samples(self, samples: Sequence[RewardSample]) -> list[float]:
        """The score of each response, in a range that is the model's own."""
        from rlinf.models.reward_models._rewards import model_scores

        return model_scores(self, samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReward(_TextReward):
    """P(yes) that a language model gives to a question about prompt and response, by name: `yes_no`.

    The question is a message of the user, rendered with the chat template of the model's own tokenizer.
    """

    model: CausalLMConfig
    """Who is asked: a folder with a tokenizer, or a preset, which judges at random."""
    question: str = "Is this answer right? Say yes or no. Question: {prompt} Answer: {response}"
    """The question; `{prompt}`, `{response}` and `{answer}` (the right one) are replaced by those of each response."""
    yes: str = "yes"
    """One token, whose probability counts; a token that begins with a space is another one."""
    no: str = "no"
    """One token, the other answer: the score is the probability of `yes` among the two."""

    def __post_init__(self) -> None:
        _TextReward.__post_init__(self)
        if RESPONSE not in self.question:
            raise ConfigError("question", f"expected a text with {RESPONSE}, found {self.question!r:.80}", "Say what is judged.")
        if self.yes == self.no:
            raise ConfigError("yes", f"expected two answers, found {self.yes!r} twice")

    def check(self, place: str) -> None:
        """Refuses a folder that is not there, and answers that are more than one token.

        Raises:
            ConfigError: one of both.
            CheckpointError: the folder has no tokenizer.
            MissingExtra: transformers is not installed.
        """
        self.model.check(f"{place}.model")
        self.answers(place)

    def answers(self, place: str) -> tuple[int, int]:
        """The tokens of "yes" and "no".

        Raises:
            ConfigError: one of them is not one token; the message names the key below `place`.
        """
        tokenizer = self.model.tokenizer((self.yes, self.no))
        found: list[int] = []
        for key, text in (("yes", self.yes), ("no", self.no)):
            tokens = tokenizer.encode(text, add_special_tokens=False)
            if len(tokens) != 1:
                problem = f"expected one token, and {text!r} is {len(tokens)} of this tokenizer"
                raise ConfigError(f"{place}.{key}", problem, "Choose a text that is one, such as a single letter.")
            found.append(tokens[0])
        return found[0], found[1]

    def score_samples(self, samples: Sequence[RewardSample]) -> list[float]:
        """The probability of yes among the two answers, for each response."""
        from rlinf.models.reward_models._rewards import judge_scores

        return judge_scores(self, samples)
