"""What every flow policy does with its field: decide, follow it from a given noise, go on from a chunk, and score again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlinf.core.capabilities import FlowRegression
from rlinf.core.data import Rescored
from rlinf.core.data.sequences import Granularity
from rlinf.core.errors import ConfigError
from rlinf.models.flow.chain import Chain, ChainScore, Spread, sample_chain, score_chain
from rlinf.models.flow.density import of_decision
from rlinf.models.flow.explaining import Draws, Explained, draw_matching, explain
from rlinf.models.flow.field import Field
from rlinf.models.flow.guidance import guided, prefix_weights
from rlinf.models.flow.noise import initial_noise
from rlinf.models.flow.sampling import FlowSampling


@dataclass(slots=True, kw_only=True)
class FlowSampler:
    """Samples the chains of a policy, and scores them."""

    sampling: FlowSampling
    noise_shape: tuple[int, int]
    """H and D, of a chunk as the flow makes it."""
    executed: tuple[int, int]
    """K and A, what of it is executed."""
    granularity: Granularity
    """Of log-probabilities and entropies."""
    spread: Spread | None
    """The noise network of flow_noise; None without one."""
    level: float
    """η of the training iteration."""

    def sample(self, flow: Field, like: Tensor, *, train: bool, generator: torch.Generator | None) -> Chain:
        """The chain of a decision.

        Args:
            flow: given what is observed.
            like: `[B, *]`, whose rows, device and type the noise has.
            train: whether the mode is "train".
            generator: the source of all randomness.
        """
        shape = (len(like), *self.noise_shape)
        noise = initial_noise(shape, self.sampling, train=train, generator=generator, device=like.device, dtype=like.dtype)
        if train and self.sampling.likelihood == "matching":
            return self._made(flow, self.follow(flow, noise), generator)
        level, spread = self.level, self.spread
        return sample_chain(flow, noise, self.sampling, noise_level=level, train=train, spread=spread, generator=generator)

    def follow(self, flow: Field, noise: Tensor) -> Chain:
        """The chain from noise `[B, H, D]` by the ODE, without randomness."""
        return sample_chain(flow, noise, self.sampling, noise_level=self.level, train=False, spread=self.spread)

    def go_on(self, flow: Field, previous: Tensor, *, known: int, delay: int, generator: torch.Generator | None) -> Chain:
        """The chain, by the guided ODE, of a chunk that agrees with the one in execution; see `rlinf.models.flow.guidance`.

        Args:
            flow: given what is observed.
            previous: `[B, H, D]`, the rest of the chunk in execution, and anything behind it.
            known: n, the steps of that rest, at most H.
            delay: steps of it that will have been executed when the new chunk is there.
            generator: the source of the initial noise, where `eval_noise` draws any.
        """
        weight = prefix_weights(self.noise_shape[0], delay=delay, known=known)
        shape, device, dtype = (len(previous), *self.noise_shape), previous.device, previous.dtype
        # As mode "eval" starts, so that the two differ by the guidance alone.
        noise = initial_noise(shape, self.sampling, train=False, generator=generator, device=device, dtype=dtype)
        return self.follow(guided(flow, previous, weight), noise)

    def score(self, flow: Field, context: Mapping[str, Tensor]) -> ChainScore:
        """What the flow says of decisions that are recorded in a context, see `Chain.recorded`."""
        if self.sampling.likelihood == "matching":
            return self._score(self._explained(flow, context))
        chain = (context["chains"], context["denoise_inds"], context["noise_level"])
        return score_chain(flow, *chain, self.sampling, spread=self.spread)

    def regress(self, flow: Field, context: Mapping[str, Tensor]) -> FlowRegression:
        """What the flow predicts where decisions recorded draws, of the elements that count; see `FlowRegression`."""
        if self.sampling.likelihood != "matching":
            raise ConfigError("sampling.likelihood", "chains have no draws to regress on", "Set it to matching.")
        found, draws = self._explained(flow, context), Draws.of(context)
        steps, size = self._counted
        prediction, target, previous = (x[..., :steps, :size] for x in (found.prediction, found.target, draws.velocity))
        return FlowRegression(prediction=prediction, target=target, previous=previous, time=draws.time)

    def _made(self, flow: Field, chain: Chain, generator: torch.Generator | None) -> Chain:
        """A chain of the ODE, with what explains its end."""
        time, noise = draw_matching(chain.action, self.sampling.matching_draws, generator)
        found = explain(flow, chain.action, time, noise)
        draws = Draws(time=time, noise=noise, velocity=found.prediction)
        return replace(chain, draws=draws, score=self._score(found))

    def _explained(self, flow: Field, context: Mapping[str, Tensor]) -> Explained:
        draws = Draws.of(context)
        return explain(flow, context["made"], draws.time, draws.noise)

    def _score(self, found: Explained) -> ChainScore:
        """As a score, whose sum over the elements that count is the mean over them."""
        steps, size = self._counted
        logprob = found.logprob() / (steps * size)
        return ChainScore(logprob=logprob, entropy=torch.zeros_like(logprob), hidden=found.hidden)

    def rescored(self, score: ChainScore, value: Tensor | None, axes: Sequence[int]) -> Rescored[Tensor]:
        """What is said of decisions `[B, T]`, the `axes`, of which score and value are by row."""
        logprob, entropy = (self.of_decision(x) for x in (score.logprob, score.entropy))
        return Rescored(
            logprob=logprob.view(*axes, *logprob.shape[1:]),
            entropy=entropy.view(*axes, *entropy.shape[1:]),
            value=None if value is None else value.view(*axes),
        )

    @property
    def _counted(self) -> tuple[int, int]:
        return self.executed if self.sampling.density == "executed" else self.noise_shape

    def of_decision(self, x: Tensor) -> Tensor:
        """Log-probabilities or entropies `[B, H, D]` at the granularity; see `rlinf.models.flow.density.of_decision`."""
        steps, size = self.executed
        return of_decision(x, steps=steps, size=size, level=self.granularity, density=self.sampling.density)
