"""What a policy or a trainer may be able to do beyond its protocol: each a protocol of its own, asked for with `isinstance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlinf.core.data import Batch, Completion, Decision, LossOutput, Weights
from rlinf.core.data.tree import Tree
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import ShownPrompt, Split
from rlinf.core.metrics import Statistic


@runtime_checkable
class HasSFTLoss(Protocol):
    """A policy that can be trained on demonstrations (SFT, behaviour cloning)."""

    def sft_loss(self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: Any = None) -> LossOutput[Any]:
        """How far the policy is from demonstrated actions, differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            action: `[B, K, A]`, what the expert did from there on, in the units of the environment.
            mask: `[B, K]` bool, False for steps after the end of the episode; all count if None.
            generator: the source of randomness, if the loss draws any.

        Returns:
            The sum over what counts and its weight; among the metrics `sft_loss`, the two as a mean.
        """
        ...


@runtime_checkable
class HasExpert(Protocol):
    """A vector environment, below its wrappers, that knows how its task is solved."""

    def expert_actions(self) -> Any:
        """`[N, A]`, what an expert would do now in each environment, whatever a policy can see."""
        ...


@runtime_checkable
class FitsStatistics(Protocol):
    """A policy that normalises states and actions by statistics of data, which are part of its weights."""

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        """Takes statistics from data, in place of those that it has.

        Args:
            action: `[N, A]`, what was done, in the units of the environment.
            states: `[N, D]`, what was seen under the key `states`; None where there are none.
        """
        ...


@runtime_checkable
class PolicyLoss(Protocol):
    """A loss that needs more of a policy than what it says of decisions, such as how far it is from demonstrations."""

    def of_policy(self, policy: Any, batch: Batch[Any]) -> LossOutput[Any]:
        """The loss of a micro-batch, of which the loss knows what its columns are; differentiable."""
        ...


@runtime_checkable
class TakesPolicyLoss(Protocol):
    """A trainer that minimises a `PolicyLoss`."""

    def step_policy(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss) -> Mapping[str, Statistic]:
        """As `Trainer.step`."""
        ...

    def measure_policy(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss) -> Mapping[str, Statistic]:
        """The metrics over all ranks, `loss` among them, without a graph; every rank calls it, with at least one micro-batch.

        A rank that has nothing to measure gives a batch of which nothing counts.
        """
        ...

    def add_policy_loss(self, micro_batches: Sequence[Batch[Any]], loss: PolicyLoss, *, weight: float) -> Mapping[str, Statistic]:
        """Adds weight · Σ total / Σ weight to what the next step minimises, both sums apart from its own; metrics as there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRegression:
    """A regression of a flow on decisions that it made, at N times and noises that each of them recorded."""

    prediction: Any
    """`[B, N, H, D]`, the velocity that the current weights predict; differentiable."""
    previous: Any
    """`[B, N, H, D]`, what the weights that decided predicted there."""
    target: Any
    """`[B, N, H, D]`, the velocity that the decision asks for: noise − action."""
    time: Any
    """`[B, N]`, τ in (0, 1], 1 at pure noise."""


@runtime_checkable
class HasFlowRegression(Protocol):
    """A flow policy that can be improved by regression on its own decisions, without likelihoods (NFT)."""

    def flow_regression(self, context: Tree[Any]) -> FlowRegression:
        """What the weights predict where decisions recorded times and noises, and what they should have.

        Args:
            context: that of the decisions, each leaf `[B, *]`.
        """
        ...


@runtime_checkable
class HasNoiseSteering(Protocol):
    """A flow or diffusion policy that can be steered by choosing its initial noise (DSRL)."""

    noise_shape: tuple[int, int]
    """H and D: the shape of the initial noise of one sample."""

    def steer(self, env_obs: Tree[Any], noise: Any) -> Any:
        """The action `[B, K, A]` that the noise `[B, H, D]` becomes, without randomness."""
        ...


@runtime_checkable
class RecurrentPolicy(Protocol):
    """A policy with a memory. The memory is data: an observation key that goes in, and a leaf of the context that comes out."""

    def initial_state(self, rows: int) -> Mapping[str, Any]:
        """What to add to the observations at the start of an episode, each leaf `[rows, *]`."""
        ...

    def next_state(self, decision: Decision[Any]) -> Mapping[str, Any]:
        """What to add to the observations that follow a decision."""
        ...


@runtime_checkable
class HasExplorationSchedule(Protocol):
    """A policy whose exploration follows a schedule over training iterations."""

    def set_global_step(self, step: int) -> None:
        """Tells the policy the iteration, counted from 0."""
        ...


@runtime_checkable
class RealTimeChunkingPolicy(Protocol):
    """A policy that can decide while its last chunk is still being executed (real-time chunking)."""

    def continue_chunk(self, env_obs: Tree[Any], previous: Any, *, delay: int, generator: Any = None) -> Decision[Any]:
        """A chunk that agrees with the one in execution where that can't be changed any more.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            previous: `[B, K, A]`, the rest of the chunk in execution, its first step the next to be executed.
            delay: steps of it that will have been executed when the new chunk is there.
            generator: the source of randomness.
        """
        ...


@runtime_checkable
class LanguageModelPolicy(Protocol):
    """A policy that is a language model, whose weights an engine of text generation can take over."""

    if TYPE_CHECKING:  # `isinstance` sees no submodule from Python 3.12 on, and so may not look for it
        network: Any
        """The causal language model of transformers: `network(input_ids=…, position_ids=…, past_key_values=…).logits`."""
    temperature: float
    """At which it scores."""
    version: int
    """That of its weights."""

    def load(self, weights: Weights[Any]) -> None:
        """Takes over weights and their version, into the memory of `network`."""
        ...

    def network_weights(self, weights: Weights[Any]) -> Mapping[str, Any]:
        """Weights of this policy by the names of its folder: adapters merged, without the critic; tied ones under each name."""
        ...

    def save_network(self, folder: Path) -> None:
        """Writes the folder that `from_pretrained`, vLLM and SGLang read."""
        ...


@runtime_checkable
class HasFingerprint(Protocol):
    """A task with fields that stand for something outside of it, such as a file."""

    def fingerprint(self, split: Split) -> Mapping[str, str]:
        """What stands for such fields where results are compared, by name; "" for those that don't change the problems of a split.

        Equal for equal contents, wherever they are.
        """
        ...


@runtime_checkable
class HasContext(Protocol):
    """A generator that knows how long a prompt and its response may be together."""

    @property
    def context_length(self) -> int | None:
        """In tokens; None if nobody knows."""
        ...


@runtime_checkable
class HasProgress(Protocol):
    """A generator that shows what it has written of a request in flight."""

    def progress(self, request_id: str) -> Sequence[int]:
        """The tokens so far; () for a request that is not in flight."""
        ...


@runtime_checkable
class LoadsNetwork(Protocol):
    """A policy that takes weights by the names of Hugging Face."""

    def load_network(self, folder: Path) -> None:
        """Takes the weights of a folder that `from_pretrained` reads, sharded or not; a critic and adapters stay as they are."""
        ...


@runtime_checkable
class WeightLayout(Protocol):
    """A configuration of how another program lays the weights of language models down: the parameters of a conversion."""

    def recognizes(self, folder: Path) -> bool:
        """Whether a folder is laid down so."""
        ...

    def write(self, tensors: Mapping[str, Any], network: Path, folder: Path) -> None:
        """Writes weights.

        Args:
            tensors: by the names of Hugging Face.
            network: a folder of Hugging Face with the `config.json` of the network.
            folder: where; it is there and empty.
        """
        ...

    def read(self, folder: Path, network: Path) -> Mapping[str, Any]:
        """What `write` was given, from its folder; `network` as there."""
        ...


@runtime_checkable
class HasAdapters(Protocol):
    """A policy whose training is in adapters, without which it is what it was before: its own reference policy, at no memory."""

    def without_adapters(self) -> AbstractContextManager[None]:
        """Inside, adapters do nothing."""
        ...


@runtime_checkable
class HasOffload(Protocol):
    """A trainer that can leave its device to others for a while."""

    def offload(self, *parts: str) -> int:
        """Moves `parameters`, `gradients` and `optimizer`, or those that are named, to host memory; returns the bytes freed.

        It happens as a whole or not at all, as does `onload`. What is away can't be used until it is back.
        """
        ...

    def onload(self, *parts: str) -> int:
        """Brings everything back to the bit, or the parts that are named; returns the bytes allocated."""
        ...


@runtime_checkable
class HasMemory(Protocol):
    """A trainer or a generator that knows what its parts take."""

    def memory(self) -> Mapping[str, int]:
        """Bytes on the device, by part.

        Of a trainer this rank's `parameters` and `optimizer` as they are now, and `gradients` at the most since it was asked
        last, as they live within a step only. Of a generator its `parameters`, and the `cache` of keys and values at the most
        since it was asked last; of an engine that takes a share of the device for both, `cache` is all of that share.
        """
        ...


@runtime_checkable
class HasReference(Protocol):
    """A trainer that also knows a reference policy."""

    def reference(self, batch: Batch[Any]) -> Any:
        """What the reference policy says of past decisions: log-probabilities in the shape of `Trajectory.logprob`, no graph.

        Every rank calls it equally often.
        """
        ...


@runtime_checkable
class HasCasting(Protocol):
    """A weight sync that can give receivers weights in a type that is not the sender's."""

    def casting(self) -> Any:
        """The same, but floating weights are cast to the receivers' type before they are sent."""
        ...


@runtime_checkable
class KeepsReference(Protocol):
    """A trainer's configuration that can have its trainer keep the weights that it starts from."""

    def keeping_reference(self) -> Any:
        """The same configuration, but what it builds is `HasReference`."""
        ...


@runtime_checkable
class LazyWeights(Protocol):
    """A trainer that gives tensors one at a time: put together where ranks hold parts of them, and copied by who sends them."""

    def lazy_weights(self) -> Weights[Any]:
        """All weights, each put together on the device when it is asked for, and not kept; not copied where a rank has it whole.

        Every rank calls it, and gives what it got to `WeightSync.send`, without receivers on all ranks but the first.
        """
        ...


@runtime_checkable
class HasPrecision(Protocol):
    """A configuration that knows in which precision what it builds computes."""

    @property
    def precision(self) -> str | None:
        """One of "fp32", "fp16" and "bf16"; None for that of the weights that it is given."""
        ...


@runtime_checkable
class PacksRows(Protocol):
    """A trainer's configuration under which it parts and packs rows itself."""

    max_tokens_per_mbs: int | None
    """The most columns of one pass; None if it takes micro-batches as they are given."""


@runtime_checkable
class SeesTrees(Protocol):
    """A language model that can be given branches which begin alike as one row, depth first, with what they share once.

    The context then has `seen_until` `[B, T]` int: column i sees column j where j ≤ i < seen_until[j].
    """

    @property
    def sees_trees(self) -> bool:
        """Whether its attention can."""
        ...


@runtime_checkable
class VisionLanguagePolicy(Protocol):
    """A policy that is a language model and knows what its network is given of a context, pictures and all."""

    def network_inputs(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of `network.base_model`, among them `input_ids` `[B, T]` and `position_ids` `[*, B, T]`.

        Of several positions the last three are those that attention knows, and text behind a picture goes on after the highest.

        Args:
            context: `input_ids` and `segment_ids` `[B, T]`, 0 for padding, and leaves `[B, T, *]` of what is shown.
        """
        ...


@runtime_checkable
class HasImages(Protocol):
    """A generator that also reads pictures."""

    async def generate_with_images(
        self,
        prompt: ShownPrompt,
        sampling: SamplingConfig,
        *,
        seed: int,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Any]:
        """As `Generator.generate`, of a prompt with pictures.

        Raises:
            ConfigError: as there; the policy can't look at pictures, or the last token of the prompt shows one.
        """
        ...
