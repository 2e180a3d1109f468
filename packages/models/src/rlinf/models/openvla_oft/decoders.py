"""From the hidden states of the slots to actions and their log-probabilities: by bins, or by regression.

Both say of each dimension of each step by itself what it is: log π(a|s) = Σᵢ log πᵢ(aᵢ|s).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.core.protocols import Mode
from rlinf.models.flow.draws import Source, drawn
from rlinf.models.openvla.bins import ActionBins
from rlinf.models.openvla.tokens import bin_entropy, bin_logprobs, chosen, draw
from rlinf.models.openvla_oft.heads import RegressionHead, normal_entropy, normal_logprob
from rlinf.models.precision import at_least_float32

TOKENS, NORMALIZED = "action_tokens", "normalized_action"
"""What a context keeps of the action, `[B, K, A]`: bins counted from the lowest id (zeros, as in padding, are one), or numbers."""


class Bins(nn.Module):
    """A categorical distribution over the last n ids of the vocabulary, for each slot.

    Args:
        bins: which ids mean which actions.
        chunk: K and A.
        temperature: τ.
        top_k: how many bins can be drawn; 0 for all.
    """

    def __init__(self, bins: ActionBins, chunk: tuple[int, int], *, temperature: float, top_k: int) -> None:
        super().__init__()
        self.bins, self.chunk, self.temperature, self.top_k = bins, chunk, temperature, top_k

    def decide(
        self, answers: Tensor, lm_head: nn.Module, mode: Mode, generator: Source
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The normalised action `[B, K, A]`, what the context keeps of it, and its log-probability `[B, K, A]`.

        Args:
            answers: `[B, K·A, L]`, the hidden states.
            lm_head: makes logits of hidden states.
            mode: "train" samples, "eval" takes the most likely.
            generator: the source of randomness.
        """
        logprob = self._logprobs(answers, lm_head)
        noise = _noise(logprob, generator, Tensor.exponential_) if mode == "train" else None
        tokens = draw(logprob, noise, self.bins)
        return self.bins.decode(tokens), {TOKENS: tokens - self.bins.first}, chosen(logprob, tokens, self.bins)

    def score(self, answers: Tensor, lm_head: nn.Module, kept: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probability of what was decided, and entropy, each `[B, K, A]`, in nats."""
        logprob = self._logprobs(answers, lm_head)
        return chosen(logprob, kept[TOKENS] + self.bins.first, self.bins), bin_entropy(logprob)

    def distance(self, answers: Tensor, lm_head: nn.Module, target: Tensor) -> Tensor:
        """Of each dimension of a demonstrated action, `[B, K, A]`: the cross-entropy over the whole vocabulary, in nats."""
        logits: Tensor = lm_head(answers).float()
        tokens = self.bins.encode(target)
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(target)

    def _logprobs(self, answers: Tensor, lm_head: nn.Module) -> Tensor:
        """`[B, K, A, n]`."""
        temperature = torch.full((len(answers),), self.temperature, device=answers.device)
        flat = bin_logprobs(lm_head(answers), self.bins, temperature=temperature, top_k=self.top_k)
        return flat.view(len(flat), *self.chunk, -1)


class Regression(nn.Module):
    """a ~ N(μ(s), σ²), μ by regression, one learned σ for each dimension; mode "eval" and imitation know μ alone.

    Args:
        width: L, of a hidden state.
        actions: A.
        log_std: log σ before it is learned.
    """

    def __init__(self, width: int, actions: int, *, log_std: float) -> None:
        super().__init__()
        self.head = RegressionHead(width, actions)
        self.log_std = nn.Parameter(torch.full((actions,), log_std))

    def decide(
        self, answers: Tensor, lm_head: nn.Module, mode: Mode, generator: Source
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        del lm_head
        mean = action = self._mean(answers)
        if mode == "train":
            action = torch.addcmul(mean, _noise(mean, generator, Tensor.normal_), self.log_std.exp())
        return action, {NORMALIZED: action}, normal_logprob(action, mean, self.log_std)

    def score(self, answers: Tensor, lm_head: nn.Module, kept: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        del lm_head
        # Scored as it was drawn: the action itself has gone through the units of the environment.
        logprob = normal_logprob(kept[NORMALIZED], self._mean(answers), self.log_std)
        return logprob, normal_entropy(self.log_std).expand_as(logprob)

    def distance(self, answers: Tensor, lm_head: nn.Module, target: Tensor) -> Tensor:
        """As of `Bins`, by L1."""
        del lm_head
        return (self._mean(answers) - target).abs()

    def _mean(self, answers: Tensor) -> Tensor:
        return at_least_float32(self.head(answers.to(self.log_std.dtype)))


def _noise(like: Tensor, generator: Source, fill: Callable[..., Tensor]) -> Tensor:
    """Noise of that shape, written where the generator can."""
    device = like.device if generator is None else generator.device

    def draw_part(shape: tuple[int, ...], part: torch.Generator | None) -> Tensor:
        return fill(torch.empty(shape, dtype=like.dtype, device=device), generator=part)

    return drawn(like.shape, generator, draw_part).to(like.device)
