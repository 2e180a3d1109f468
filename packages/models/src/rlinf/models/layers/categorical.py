"""What an actor draws numbered actions from."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.core.data import ArraySpec
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.sequences import Granularity
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import ActorCriticConfig
from rlinf.models.flow.draws import draw
from rlinf.models.layers.action_distribution import PolicyDistribution


class CategoricalDistribution(PolicyDistribution[Tensor]):
    """P(a = i) = softmax(y)ᵢ for each number of each control step, independently.

    The parameters are log-probabilities `[*, K · A, n]`, n the largest count; −∞ where a number has fewer choices. A latent is the
    index of each choice, `[*, K · A]` int64, counted from 0.

    Args:
        config: of the actor.
        action: one control step: a number, `()`, or several, `[A]`, each within its bounds.
        place: the name of the policy, for messages.

    Raises:
        ConfigError: the numbers have no bounds, or the configuration asks for what only vectors of numbers have.
    """

    squash = False
    low: Tensor
    valid: Tensor
    _column: Tensor

    def __init__(self, config: ActorCriticConfig, action: ArraySpec, place: str) -> None:
        super().__init__()
        _refuse_continuous(config, place)
        if action.low is None or action.high is None:
            raise ConfigError(place, "expected numbered actions within bounds, found none", "Give the action space bounds.")
        low, high = (torch.as_tensor(as_numpy(bound), dtype=torch.int64).reshape(-1) for bound in (action.low, action.high))
        self.step_shape = (config.num_action_chunks, *action.shape)
        self.level: Granularity = config.logprob_type
        counts = high - low + 1
        self._choices = int(counts.sum())
        choice, first = torch.arange(int(counts.max())), counts.cumsum(0) - counts
        valid = choice < counts[:, None]
        # Not saved: the action space says them, and a policy is built for one.
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("valid", valid, persistent=False)
        self.register_buffer("_column", torch.where(valid, first[:, None] + choice, 0), persistent=False)

    @property
    def size(self) -> int:
        """How many numbers say which chunk was chosen, one for each choice."""
        return self.outputs

    @property
    def outputs(self) -> int:
        """K times the choices of a control step."""
        return self.step_shape[0] * self._choices

    def free_log_std(self) -> None:
        """None: choices have no standard deviation."""
        return

    def given(self, output: Tensor, log_std: Tensor | None) -> Tensor:
        """Log-probabilities `[*, K · A, n]` of the actor's output `[*, outputs]`."""
        steps = self._by_step(output)
        return steps[..., self._column].masked_fill(~self.valid, -torch.inf).log_softmax(-1).flatten(-3, -2)

    def draw(self, given: Tensor, generator: torch.Generator | None) -> Tensor:
        """Indices `[*, K · A]`: the largest of log pᵢ − log Eᵢ, Eᵢ exponential.

        Maddison et al., "A* Sampling" (2014), sec. 2, arXiv:1411.0030 (the Gumbel-max trick).
        """
        exponential = -draw(given.shape, torch.rand, given, generator).log()
        return (given - exponential.log()).argmax(-1)

    def most_likely(self, given: Tensor) -> Tensor:
        return given.argmax(-1)

    def action(self, latent: Tensor) -> Tensor:
        """`[*, K]`, or `[*, K, A]`, int64 within the bounds."""
        return (self._by_step(latent) + self.low).reshape(*latent.shape[:-1], *self.step_shape)

    def latent(self, action: Tensor) -> Tensor:
        """Indices `[*, K · A]` of actions `[*, K]` or `[*, K, A]`."""
        leading = action.shape[: action.ndim - len(self.step_shape)]
        index = action.long().reshape(*leading, self.step_shape[0], -1) - self.low
        # Columns that only pad a row hold zeros, which need not be among the choices; whatever is said of them is masked.
        return torch.minimum(index.clamp_min(0), self.valid.sum(-1) - 1).flatten(-2)

    def unit(self, action: Tensor) -> Tensor:
        """`[*, outputs]`, 1 for what was chosen and 0 for the rest."""
        chosen = torch.nn.functional.one_hot(self.latent(action), self.valid.shape[-1])
        steps = chosen.reshape(*chosen.shape[:-2], self.step_shape[0], *self.valid.shape)
        return steps[..., self.valid].flatten(-2).to(torch.get_default_dtype())

    def logprob(self, latent: Tensor, given: Tensor, level: Granularity | None = None) -> Tensor:
        return self._parts(given.gather(-1, latent.unsqueeze(-1)).squeeze(-1), level)

    def entropy(self, given: Tensor) -> Tensor:
        """H = −Σᵢ pᵢ log pᵢ, summed to the shape of the log-probability."""
        finite = given.masked_fill(torch.isneginf(given), 0.0)
        return self._parts(-(given.exp() * finite).sum(-1), None)

    def distance(self, given: Tensor, expert: Tensor) -> Tensor:
        """−log P of what the expert did, `[*, K]`, the mean over A."""
        found = self.logprob(self.latent(expert), given, "action_level")
        return -found / len(self.low)

    def _by_step(self, x: Tensor) -> Tensor:
        """`[*, K, n]`, of `[*, K · n]`."""
        return x.reshape(*x.shape[:-1], self.step_shape[0], x.shape[-1] // self.step_shape[0])

    def _parts(self, x: Tensor, level: Granularity | None) -> Tensor:
        """`[*, K · A]`, summed over what counts as one."""
        level = level or self.level
        if level == "chunk_level":
            return x.sum(-1)
        if level == "action_level":
            return self._by_step(x).sum(-1)
        return x.reshape(*x.shape[:-1], *self.step_shape)


def _refuse_continuous(config: ActorCriticConfig, place: str) -> None:
    """Refuses what only vectors of numbers have: nothing set would be read."""
    asked = {
        "distribution": config.distribution != "gaussian",
        "state_dependent_std": config.state_dependent_std,
        "num_q_heads": config.num_q_heads > 0,
    }
    for key in (key for key, is_set in asked.items() if is_set):
        problem = f"expected the default for numbered actions, found {getattr(config, key)}"
        raise ConfigError(f"{place}.{key}", problem, "Leave it out: they are drawn from a categorical distribution.")
