"""How a flow policy is sampled: the hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError

Density = Literal["executed", "chain"]
"""Which elements of a chain count in the log-probability of a decision: see `of_decision`."""
NoiseMethod = Literal["flow_sde", "flow_noise", "flow_cps", "flow_ode"]
Likelihood = Literal["chain", "matching"]
"""What stands for the log-probability of a decision: see `FlowSampling.likelihood`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSampling:
    """Steps of a flow and where noise enters them. Times run from τ = 1 (noise) to τ = 0 (action) in equal steps δ = 1/K."""

    num_steps: int = 4
    """K, denoising steps from noise to a chunk of actions; more are more exact, and each is one pass of the network."""
    noise_method: NoiseMethod = "flow_sde"
    """How a step of mode "train" is made stochastic; mode "eval" is always the ODE."""
    noise_level: float | None = None
    """η of flow_sde and flow_cps where it is constant, 0.5 if None; flow_noise has a network instead."""
    noise_anneal: tuple[float, float, int] | None = None
    """η at the first iteration, η at the end, and iterations between the two, on a line; None for a constant η."""
    joint_logprob: bool = False
    """False: one step, drawn for each sample, is stochastic, and its log-probability is the decision's. True: all are, and
    theirs with that of the initial noise add up."""
    ignore_last: bool = False
    """Whether the last step is never the stochastic one."""
    joint_reduction: Literal["sum", "mean"] = "sum"
    """With `joint_logprob`: the sum is the log-probability of the chain; the mean over its K + 1 terms makes smaller steps."""
    eval_noise: Literal["zero", "sample"] = "zero"
    """Where the ODE of mode "eval" starts: at the centre of the noise, so that an evaluation draws nothing; or at a sample."""
    density: Density = "executed"
    """Which elements of a chain count in a decision's log-probability: see `of_decision`."""
    noise_logvar_range: tuple[float, float] = (0.08, 0.16)
    """The least and the greatest standard deviation of flow_noise."""
    likelihood: Likelihood = "chain"
    """What stands for the log-probability of a decision. chain: the density of its stochastic steps. matching: how well the flow
    explains what was executed, as flow policy gradients have it (FPO; see `rlinf.models.flow.explaining`), of decisions by the ODE
    from a drawn noise (`noise_method: flow_ode`); the loss `nft` needs it, too."""
    matching_draws: int = 8
    """N, the times and noises at which `matching` looks. A decision keeps them, and what the flow predicted there."""

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.random_steps < 1:
            least = 1 + self.num_steps - self.random_steps
            raise ConfigError("num_steps", f"expected at least {least} with these options, found {self.num_steps}")
        if self.noise_level is not None and self.noise_anneal is not None:
            found = f"{self.noise_level} is constant, and noise_anneal {list(self.noise_anneal)} changes it"
            raise ConfigError("noise_level", found, "Set noise_anneal to null, or leave noise_level out.")
        *levels, steps = self._levels
        for level in levels:
            expect_range("noise_level", level, 0.0, 100.0)
        if steps < 0:
            raise ConfigError("noise_anneal", f"expected iterations from 0 on, found {steps}")
        if self.likelihood == "matching" and (self.noise_method != "flow_ode" or self.joint_logprob):
            found = f"'matching' judges what the ODE makes, found noise_method {self.noise_method}"
            found += " with joint_logprob" if self.joint_logprob else ""
            raise ConfigError("likelihood", found, "Set noise_method: flow_ode and joint_logprob: false.")
        expect_at_least("matching_draws", self.matching_draws, 1)
        expect_range("noise_logvar_range", self.noise_logvar_range[1], 0.0, 100.0)
        if min(levels) <= 0.0 and self.noise_method != "flow_ode":
            raise ConfigError("noise_level", f"expected more than 0, found {min(levels)}", "Use flow_ode for no noise.")
        low, high = self.noise_logvar_range
        if not 0.0 < low <= high:
            raise ConfigError("noise_logvar_range", f"expected 0 < low ≤ high, found {list(self.noise_logvar_range)}")

    @property
    def random_steps(self) -> int:
        """How many steps, from the first on, may be the stochastic one; the last of flow_cps never is."""
        # σ of flow_cps is τ′ sin(π η / 2), which is 0 at the last step: such a step has no density.
        return self.num_steps - (self.ignore_last or self.noise_method == "flow_cps")

    def level(self, step: int) -> float:
        """η at a training iteration, counted from 0."""
        start, end, steps = self._levels
        return start + (end - start) * min(1.0, max(0, step) / max(1, steps))

    @property
    def _levels(self) -> tuple[float, float, int]:
        """η at the first iteration, at the end, and iterations between the two."""
        constant = 0.5 if self.noise_level is None else self.noise_level
        return self.noise_anneal or (constant, constant, 0)
