"""Mathematics: whether the answer is equal, however it is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rlinf.algorithms.checks import expect_choice, expect_finite
from rlinf.algorithms.rewards.pool import InFile, Task
from rlinf.algorithms.rewards.reward import IsolatedReward
from rlinf.algorithms.rewards.text import after_last, last_boxed
from rlinf.core.config import expect_range
from rlinf.core.registry import require_modules

TAIL: Final = 5000
"""Without a box, only so many of the last characters are searched: the library's patterns take more than linear time."""


@dataclass(frozen=True, slots=True)
class Math(IsolatedReward):
    r"""Whether a completion comes to an expression equal to the right answer, by name: `math`.

    By the library math-verify (`pip install 'rlinf-algorithms[math]'`), in worker processes: what hangs is ended. The answer of a
    completion is its last `\boxed{…}`; without a box it is the last LaTeX or number that the library finds near the end. The
    right answer is LaTeX or a number, alone, between dollars or in a box.
    """

    max_val: float = 1.0
    """The score of a right answer, before `reward_scale`."""
    min_val: float = -1.0
    """The score of a wrong answer, of none, and of one that can't be verified in time, before `reward_scale`."""
    reward_scale: float = 1.0
    """Multiplies both scores, for instance to weigh this reward against others."""
    extraction: Literal["boxed", "any"] = "any"
    """Whether an answer counts only in a box."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""
    float_rounding: int = 6
    """Decimals to which numbers are compared."""
    strict: bool = True
    """Whether names of variables matter, and sets differ from tuples."""

    def __post_init__(self) -> None:
        IsolatedReward.__post_init__(self)
        expect_range("float_rounding", self.float_rounding, 0, 15)
        expect_choice("extraction", self.extraction, ("boxed", "any"))
        expect_finite(max_val=self.max_val, min_val=self.min_val, reward_scale=self.reward_scale)
        require_modules("math_verify", "sympy", place="math", extra="rlinf-algorithms[math]")

    @property
    def failure_score(self) -> float:
        """That of a wrong answer: what makes the verifier hang must not pay."""
        return self.min_val * self.reward_scale

    def question(self, completion: str, answer: str) -> tuple[str, str]:
        """The box, or else the end, of what counts of a completion; and the right answer in a box, or between its dollars."""
        boxed = last_boxed(after_last(completion, self.after))
        if boxed is None:
            found = "" if self.extraction == "boxed" else after_last(completion, self.after)[-TAIL:]
        else:
            found = f"\\boxed{{{boxed}}}" if boxed else ""
        inner = last_boxed(answer)
        right = answer.strip() if inner is None else inner
        return found, right if "$" in right else f"\\boxed{{{right}}}"

    def task(self) -> Task:
        """The comparison alone, so that its processes import nothing of ours."""
        low, high = self.min_val * self.reward_scale, self.max_val * self.reward_scale
        options = {"float_rounding": self.float_rounding, "strict": self.strict, "right": high, "wrong": low}
        file = str(Path(__file__).with_name("_math.py"))
        return Task(InFile(file, "score", options), InFile(file, "warm_up"), self.timeout_s, self.memory_mb)

    def verify(self, completion: str, answer: str) -> float:
        """The score of one completion, in this process and without any limit of time; call the reward for one with limits."""
        from rlinf.algorithms.rewards._math import score

        low, high = self.min_val * self.reward_scale, self.max_val * self.reward_scale
        question = self.question(completion, answer)
        return score(*question, float_rounding=self.float_rounding, strict=self.strict, right=high, wrong=low)
