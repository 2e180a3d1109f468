"""How a flow is told which actions were good, as a configuration says it; `conditioning` has what follows."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageCondition:
    """How a policy is told which actions were good, and how far it follows that (RECAP).

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), arXiv:2511.14759.
    """

    unconditional_prob: float = 0.1
    """The share of examples in [0, 1] that are learned without being told, so that one network is the policy with and without."""
    guidance_scale: float = 1.0
    """β ≥ 0 of classifier-free guidance: 0 acts as all data, 1 as the good actions; others lie between or beyond, at the cost of a
    second pass of the network in each denoising step."""

    @property
    def guided(self) -> bool:
        """Whether acting asks the flow that is not told, too."""
        return self.guidance_scale != 1.0

    def __post_init__(self) -> None:
        expect_range("unconditional_prob", self.unconditional_prob, 0.0, 1.0)
        expect_range("guidance_scale", self.guidance_scale, 0.0, 100.0)
        if self.guided and not self.unconditional_prob:
            problem = "expected more than 0, as guidance_scale asks what the policy does without being told, found 0"
            raise ConfigError("unconditional_prob", problem, "Use 0.1, or guidance_scale: 1.")
