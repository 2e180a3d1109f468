"""Problems of reasoning-gym, a library of procedural data sets with scorers of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.errors import ConfigError, below
from rlinf.core.language.problems import Problem, Split
from rlinf.core.registry import require_modules
from rlinf.core.rewards import RewardSample
from rlinf.envs.tasks.generated import SplitSizes
from rlinf.envs.tasks.splits import split_of

EXTRA: Final = "rlinf-envs[reasoning-gym]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym(SplitSizes):
    """A data set of reasoning-gym, by name: `data.type: reasoning_gym`; the reward `reasoning_gym` scores it as the library does.

    Nothing is downloaded: problems are made from a seed. The worked response is the library's own answer.
    """

    dataset: str
    """Its name in the library, such as `chain_sum`."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its parameters, such as `{max_digits: 2}`."""
    only: str = ""
    """A field of an entry's metadata that is used in place of its question, such as `expression`; "" for the question."""
    end: str = ""
    """The text after each question, such as `=`."""
    chat: bool = False
    """Whether a question becomes a message of the user, for the tokenizer's chat template."""
    train: int = 10_000
    validation: int = 512

    def check(self, place: str) -> None:
        """Refuses a data set or a parameter that the library does not know, and sizes that it can't fill.

        Raises:
            ConfigError: the message names the key.
            MissingExtra: the library is not installed.
        """
        require_modules("reasoning_gym", place=place, extra=EXTRA)
        for split in ("train", "validation"):
            try:
                self.problems(split)
            except ConfigError as error:
                raise below(place, error) from error

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, each with the library's entry as its row.

        Raises:
            ConfigError: the data set does not exist, refuses its parameters, or has not so many different problems.
        """
        from rlinf.envs.tasks._reasoning_gym import entries

        count = self.train if split == "train" else self.validation
        found: dict[str, Mapping[str, Any]] = {}
        # Of the same length for both splits, so that asking for more problems of one changes nothing in the other.
        for entry in entries(self.dataset, self.params, self.seed):
            question = self._question(entry)
            if question not in found and split_of(question, seed=self.seed, validation_share=self.validation_share) == split:
                found[question] = entry
            if len(found) == count:
                return [self._problem(number, *item) for number, item in enumerate(found.items())]
        problem = f"expected {count} different problems for '{split}', found {len(found)}"
        raise ConfigError(split, problem, "Ask for fewer, or make the problems larger by data.params.")

    def _question(self, entry: Mapping[str, Any]) -> str:
        if not self.only:
            return f"{entry['question']}{self.end}"
        if self.only not in entry["metadata"]:
            names = ", ".join(sorted(entry["metadata"]))
            raise ConfigError("only", f"no '{self.only}' in the metadata of '{self.dataset}'", f"It has: {names}.")
        return f"{entry['metadata'][self.only]}{self.end}"

    def _problem(self, number: int, question: str, entry: Mapping[str, Any]) -> Problem:
        prompt = ({"role": "user", "content": question},) if self.chat else question
        answer = "" if entry["answer"] is None else str(entry["answer"])
        row = {"dataset": self.dataset, "params": dict(self.params), "entry": entry}
        return Problem(prompt=prompt, answer=answer, id=number, solution=answer or None, row=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymReward:
    """What reasoning-gym itself says of an answer, from 0 to 1, by name: `reasoning_gym`; for its own problems alone."""

    after: str | None = None
    """The answer is what follows the last of these marks, such as `#`; null for the whole response."""
    strict: bool = False
    """Whether only a whole point counts; many scorers give 0.01 for any answer, others a share for some of it."""

    def check(self, place: str) -> None:
        """Refuses where the library is not installed."""
        require_modules("reasoning_gym", place=place, extra=EXTRA)

    def score_samples(self, samples: Sequence[RewardSample]) -> list[float]:
        """The library's scores.

        Raises:
            ConfigError: a problem is of another task.
        """
        from rlinf.envs.tasks._reasoning_gym import score

        found: list[float] = []
        for sample in samples:
            if "entry" not in sample.row:
                raise ConfigError("reward.reward_type", "expected problems of data.type reasoning_gym", "Choose another reward.")
            text = sample.text if self.after is None else sample.text.rpartition(self.after)[2]
            # As text it can be a key, under which `score` finds the data set that it has made before.
            params = json.dumps(sample.row["params"], sort_keys=True)
            value = score(sample.row["dataset"], params, text.strip(), sample.row["entry"])
            found.append(float(value >= 1.0) if self.strict else value)
        return found
