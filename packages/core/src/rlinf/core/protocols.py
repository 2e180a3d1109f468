"""The seams between parts: what each side may ask of the other, and no more.

Those of a cluster are in `rlinf.core.cluster.protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from rlinf.core.cluster.protocols import Channel as Channel
from rlinf.core.cluster.protocols import Child as Child
from rlinf.core.cluster.protocols import Cluster as Cluster
from rlinf.core.cluster.protocols import DeviceLock as DeviceLock
from rlinf.core.cluster.protocols import GroupSpec as GroupSpec
from rlinf.core.cluster.protocols import Messenger as Messenger
from rlinf.core.cluster.protocols import Placement as Placement
from rlinf.core.cluster.protocols import Rank as Rank
from rlinf.core.cluster.protocols import Work as Work
from rlinf.core.cluster.protocols import WorkerGroup as WorkerGroup
from rlinf.core.data import Batch, Credit, Decision, EnvSpec, LossOutput, Rescored, Scores, Trajectory, Weights
from rlinf.core.data.tree import Tree
from rlinf.core.language.generation import Generator as Generator
from rlinf.core.language.generation import GeneratorConfig as GeneratorConfig
from rlinf.core.language.problems import TaskConfig as TaskConfig
from rlinf.core.language.problems import Tokenizer as Tokenizer
from rlinf.core.metrics import Statistic

AllReduce = Callable[[Any], Any]
"""Adds a tensor over the ranks of a worker group and returns the sum."""

Mode = Literal["train", "eval"]


class Policy(Protocol):
    """Decides, and re-scores its decisions; both agree to 1e-5 for the same weights."""

    version: int

    def predict_action_batch(self, env_obs: Tree[Any], mode: Mode = "train", *, generator: Any = None) -> Decision[Any]:
        """Decides for a batch of observations, each leaf `[B, *]`.

        Args:
            env_obs: observations by key.
            mode: "train" samples; "eval" takes the most likely action.
            generator: the source of all randomness; the library's global one if None.
        """
        ...

    def default_forward(self, batch: Batch[Any]) -> Rescored[Any]:
        """What the current weights say of the decisions of a batch, each field `[B, T, …]`."""
        ...

    def weights(self) -> Weights[Any]:
        """All weights and buffers by sorted name, not copied."""
        ...

    def load(self, weights: Weights[Any]) -> None:
        """Takes over weights and their version."""
        ...


@runtime_checkable
class HasObservationStatistics(Protocol):
    """A policy with statistics of what it has seen, beside its trained weights."""

    def observe(self, batch: Batch[Any], *, all_reduce: AllReduce | None = None) -> None:
        """Adds the observations of a batch; called once an iteration, after the batch was trained on, on every rank."""
        ...


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy of which what it repeats for each decision can be compiled."""

    def enable_torch_compile(self, mode: str = "default") -> None:
        """Compiles it when it is next used, in a mode of `torch.compile`; `reduce-overhead` also captures CUDA graphs."""
        ...


@runtime_checkable
class ModelConfig(Protocol):
    """A registered model: its hyper-parameters, from which the policy is built."""

    def build(self, spec: EnvSpec, *, seed: int) -> Any:
        """The policy for an environment of that description, with fresh weights drawn from `seed`."""
        ...


@runtime_checkable
class LanguageModelConfig(Protocol):
    """A registered language model: its vocabulary says what it reads and writes, and no environment does."""

    def build(self, *, seed: int) -> Any:
        """The model, with fresh weights drawn from `seed` where there are no others."""
        ...

    def tokenizer(self, corpus: Iterable[str]) -> Tokenizer:
        """The tokenizer of the model's folder, or one that is made from texts; the same texts make the same one."""
        ...


class Builder(Protocol):
    """A registered model without hyper-parameters: a function."""

    def __call__(self, spec: EnvSpec, *, seed: int) -> Any:
        """As `ModelConfig.build`."""
        ...


class EnvConfig(Protocol):
    """A registered environment: its parameters, from which a `gymnasium.vector.VectorEnv` is built."""

    def check(self, place: str) -> None:
        """Refuses early what `make` would refuse late, such as a simulator that is not installed."""
        ...

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        """A `gymnasium.vector.VectorEnv` without autoreset, with `reset_mask`, success and episode statistics in its `info`.

        Args:
            num_envs: at least 1.
            max_episode_steps: steps after which an episode is truncated; the environment's own limit if None.
            ignore_terminations: an episode goes on after it terminated, until it is truncated.
            render: `render()` and `RecordVideo` work.
        """
        ...

    def describe(self, env: Any) -> EnvSpec:
        """What a policy must know of an environment that `make` returned, or of one that wraps it."""
        ...


class EnvWrapperConfig(Protocol):
    """A registered wrapper of environments: its parameters."""

    @property
    def training_only(self) -> bool:
        """Whether an evaluation leaves it out."""
        ...

    def wrap(self, env: Any, name: str) -> Any:
        """The environment behind one more wrapper.

        Args:
            env: what `EnvConfig.make` or another wrapper returned.
            name: of these environments in the run, such as `train_0`; no others have the same.
        """
        ...


class Advantage(Protocol):
    """Assigns credit to decisions."""

    def __call__(self, trajectory: Trajectory[Any], *, all_reduce: AllReduce | None = None) -> Credit[Any]:
        """Credit of the same `[B, T]`; `all_reduce` makes its statistics global over ranks."""
        ...


class Loss(Protocol):
    """Says how bad the current policy is on a micro-batch, as a sum and its weight."""

    def __call__(self, batch: Batch[Any], evaluation: Rescored[Any]) -> LossOutput[Any]:
        """The loss of `batch`, given what the current weights say of it."""
        ...


class Reward(Protocol):
    """Scores completions."""

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> Sequence[float]:
        """One score for each completion."""
        ...


class TrainerConfig(Protocol):
    """A registered trainer: its hyper-parameters, from which it is built."""

    def build(self, policy: Any, *, rank: int, world_size: int, rendezvous: str, training_steps: int | None = None) -> Trainer:
        """A trainer of `policy` as one of `world_size` ranks that meet at `rendezvous`; every rank calls it.

        `training_steps` are the optimizer steps of the whole run, over which schedules span.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSize:
    """One weight of a model as it is built."""

    elements: int
    """How many numbers it has."""
    bytes_each: int
    """The size of one."""
    trained: bool
    """Whether an optimizer changes it."""

    @property
    def bytes(self) -> int:
        """The size of all."""
        return self.elements * self.bytes_each


@runtime_checkable
class SaysMemory(Protocol):
    """A trainer's configuration that says what its state takes on the device of one rank."""

    def bytes_per_rank(self, weights: Sequence[WeightSize], world_size: int) -> Mapping[str, int]:
        """Bytes of `weights`, `gradients` and `optimizer`, without activations and what is gathered for a moment.

        Args:
            weights: of the model.
            world_size: how many ranks train together.
        """
        ...


class Trainer(Protocol):
    """Owns weights and optimizers."""

    @property
    def version(self) -> int:
        """How many optimizer steps made these weights."""
        ...

    def evaluate(self, batch: Batch[Any]) -> Rescored[Any]:
        """What the current weights say of past decisions, without a graph."""
        ...

    def step(self, micro_batches: Sequence[Batch[Any]], loss: Loss) -> Mapping[str, Statistic]:
        """One optimizer step over micro-batches, the loss divided once by its weight over all ranks."""
        ...

    def weights(self) -> Weights[Any]:
        """All weights, gathered from the ranks, on the CPU."""
        ...

    def all_reduce(self, value: Any) -> Any:
        """The sum of a tensor over ranks."""
        ...

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer and random state below `folder`; every rank calls it."""
        ...

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        ...

    def close(self) -> None:
        """Leaves the other ranks."""
        ...


class Gate(Protocol):
    """Lets a run begin only if the trainer scores the first rollout as the rollout did; later it only measures."""

    def measure(self, scores: Scores[Any]) -> Mapping[str, Statistic]:
        """Metrics of how far both are apart, which may be any distance."""
        ...

    def check(self, scores: Scores[Any], *, place: str) -> Mapping[str, Statistic]:
        """Metrics of how far both are apart; raises an `RLinfError` that names likely causes if that is too far."""
        ...


class WeightSync(Protocol):
    """Moves weights from one worker to others; both sides compare a manifest before any transfer."""

    def send(self, comm: Messenger, weights: Weights[Any], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers; without `ranks` it only helps to put lazy weights together (`capabilities.LazyWeights`)."""
        ...

    def recv(self, comm: Messenger, current: Weights[Any], group: str, rank: int) -> Weights[Any]:
        """The weights that a worker published, which must fit the structure of `current`."""
        ...
