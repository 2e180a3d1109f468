"""The seams of off-policy learning: a policy judges actions, an algorithm says what is learned, and a trainer owns the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from rlinf.core.data import ArraySpec, EnvSpec, LossOutput, Trajectory, Weights
from rlinf.core.data.tree import Tree
from rlinf.core.metrics import Statistic
from rlinf.core.replay.transitions import Transitions

Judges = Literal["q_functions", "batch_normalized_q_functions", "action_values"]
"""What an algorithm learns values with: Q-functions of vectors of numbers (`HasQFunctions`), those that
normalise by the statistics of a batch (`HasQBatchNorm`), or the value of each numbered action
(`HasActionValues`)."""


@runtime_checkable
class HasQFunctions(Protocol):
    """A policy with Q-functions, for soft actor-critic and its relatives."""

    def sample_action(self, env_obs: Tree[Any], *, generator: Any = None) -> tuple[Any, Any]:
        """A fresh action `[B, K, A]` and its log-probability `[B]`, both differentiable by reparametrisation."""
        ...

    def q_values(self, env_obs: Tree[Any], action: Any) -> Any:
        """`[B, N]`, what each of N critics says of an action `[B, K, A]`; differentiable."""
        ...


@runtime_checkable
class HasQDropout(Protocol):
    """A policy whose Q-functions can drop units at random while they learn, and while an actor learns from them (DroQ)."""

    def dropped_q_values(self, env_obs: Tree[Any], action: Any, *, generator: Any = None) -> Any:
        """`[B, N]`, as `HasQFunctions.q_values`, with units dropped by the generator; all are there if it was built without."""
        ...


@runtime_checkable
class HasQBatchNorm(Protocol):
    """A policy whose Q-functions can normalise by the statistics of a batch, and learn without target networks (CrossQ)."""

    def batch_q_values(self, env_obs: Tree[Any], action: Any) -> Any:
        """`[B, N]`, as `HasQFunctions.q_values`, by the statistics of these rows, which those that `q_values` uses learn from."""
        ...


@runtime_checkable
class HasLatentAction(Protocol):
    """A policy that chooses something else than what is executed, such as the noise that a frozen policy makes an action of.

    `sample_action`, `q_values` and all else that learns speak of what it chose; a replay buffer keeps that.
    """

    def latent_action(self, context: Tree[Any]) -> Any:
        """`[*, K, A]`, what was chosen, from the context of decisions, whose leaves are `[*, …]`; any K and A, always the same."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a vision-language-action policy would do, and what it makes of images and prompt on the way."""

    action: Any
    """`[B, K, A]`, what it takes for the best, in the units of the environment."""
    features: Any
    """`[B, P, W]`, the last layer's states of the positions of images and prompt."""
    valid: Any
    """`[B, P]` bool, which positions there are."""


@runtime_checkable
class HasPrefixFeatures(Protocol):
    """A vision-language-action policy that shows what it makes of images and prompt before it acts (RLT)."""

    prefix_width: int
    """W."""

    def propose(self, env_obs: Tree[Any]) -> Proposal:
        """Its most likely chunk and its features, in one pass, without randomness and without a graph."""
        ...


@runtime_checkable
class DeclaresPrefixFeatures(Protocol):
    """The configuration of a policy that is `HasPrefixFeatures`."""

    prefix_features: bool
    """Whether it is."""


@runtime_checkable
class HasReplayFeatures(Protocol):
    """A policy that learns from what a part of it, which stays as it is meanwhile, makes of observations.

    A replay buffer keeps that in their place, so that an update does not ask that part again.
    """

    def feature_parameters(self) -> Sequence[str]:
        """The names of the parameters that make it, which off-policy learning leaves as they are."""
        ...

    def replay_features(self, rows: Trajectory[Any]) -> Mapping[str, Any]:
        """`[B, T + 1, *]` NumPy by key, what is kept of `rows.observation`: `q_values` and all else that learns take its rows."""
        ...


@runtime_checkable
class KeepsFeatures(Protocol):
    """The configuration of a policy that is `HasReplayFeatures`."""

    def kept_observation(self, spec: EnvSpec) -> Mapping[str, ArraySpec]:
        """What a replay buffer keeps of each observation of an environment, by key."""
        ...


@runtime_checkable
class HasReferenceAction(Protocol):
    """A policy whose actor is told the chunk that another one proposes, and changes it (RLT)."""

    def without_reference(self, env_obs: Tree[Any], hidden: Any) -> Tree[Any]:
        """Observations of which the actor is not told the proposal in the rows where `hidden` `[B]` is True."""
        ...

    def imitated_action(self, env_obs: Tree[Any]) -> Any:
        """`[B, K, A]`, what the actor should stay near to: the proposal, or what was done where somebody intervened."""
        ...


@runtime_checkable
class HasActor(Protocol):
    """A policy whose parameters that decide are apart from those that judge, and that can decide without noise."""

    def actor_parameters(self) -> Sequence[str]:
        """The names of the parameters that only decide; all others judge, or make features that the critics learn."""
        ...

    def most_likely_action(self, env_obs: Tree[Any]) -> Any:
        """`[B, K, A]`, the action without noise; differentiable."""
        ...


@runtime_checkable
class HasStateValue(Protocol):
    """A policy that says what a state is worth, and how likely it is to do what was done: what offline algorithms learn from."""

    def value_parameters(self) -> Sequence[str]:
        """The names of the parameters that only value states; () without a value function."""
        ...

    def state_value(self, env_obs: Tree[Any]) -> Any:
        """`[B]`; differentiable in `value_parameters`, and in nothing that makes features."""
        ...

    def action_logprob(self, env_obs: Tree[Any], action: Any) -> Any:
        """`[B]`, the log-probability of whole chunks `[B, K, A]` in units of the environment; differentiable in what decides."""
        ...


@runtime_checkable
class HasActionValues(Protocol):
    """A policy of one numbered action whose scores of the choices can be learned as their values (Q-learning)."""

    def action_values(self, env_obs: Tree[Any]) -> Any:
        """`[B, n]`, what each choice is worth, of which the policy takes the best one; differentiable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What an objective is given to compute a loss with."""

    policy: Any
    """The policy under the weights that are trained."""
    target: Any
    """The same policy under target weights, which need no gradient."""
    parameters: Mapping[str, Any]
    """The free parameters of the objective, each a tensor `[]`."""
    action: ArraySpec
    """One control step."""
    shared: dict[tuple[str, int], Any] = field(default_factory=dict[tuple[str, int], Any])
    """What the loss of one part leaves for that of a later part of the same update: by name and by the `id` of its batch."""


class Objective(Protocol):
    """An off-policy algorithm: the losses of several parts of a policy, each with an optimizer of its own.

    An update goes through the parts that `due` names, in that order: the loss of the first is stepped on before that of the second
    is computed. Then the target weights move.
    """

    @property
    def judges(self) -> Judges:
        """What the policy must have."""
        ...

    def parameters(self) -> Mapping[str, float]:
        """Free parameters that are trained beside the policy, such as a temperature: each is a part, with its initial value."""
        ...

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        """The parameters of a policy that each part trains, by their names."""
        ...

    def due(self, update: int) -> Sequence[str]:
        """The parts that update number `update`, counted from 1, trains."""
        ...

    def loss(self, part: str, learner: Learner, batch: Transitions[Any], *, generator: Any) -> LossOutput[Any]:
        """What a part minimises; differentiable in what it trains.

        Args:
            part: one of those that `due` names.
            learner: policy and target.
            batch: transitions.
            generator: the source of all randomness.
        """
        ...

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """The target weights after an update; None if they stay."""
        ...


@runtime_checkable
class Explores(Protocol):
    """An objective whose policy does not explore by itself: what is executed in training is not just what it decides."""

    def explored(self, action: Any, spec: ArraySpec, *, decisions: int, generator: Any) -> Any:
        """The actions to execute.

        Args:
            action: `[B, K, A]` or `[B, K]`, what the policy takes for the best.
            spec: one control step.
            decisions: how many were made in the run before this iteration.
            generator: the source of randomness.
        """
        ...


@runtime_checkable
class LearnsFromReference(Protocol):
    """An objective of policies that are `HasReferenceAction`."""

    reference_dropout: float
    """The share of transitions in which the actor is not told what is proposed."""


class OffPolicyTrainer(Protocol):
    """Owns the weights of a policy, target weights, free parameters and their optimizers."""

    @property
    def version(self) -> int:
        """How many updates made these weights."""
        ...

    @property
    def td_error(self) -> Any:
        """`[B]` NumPy float32, |δ| of each row of the last update in the order of its micro-batches.

        Prioritised replay draws by it; None before an update, and of an objective that compares no values.
        """
        ...

    def update(self, micro_batches: Sequence[Transitions[Any]]) -> Mapping[str, Statistic]:
        """One update of every part that is due, over micro-batches; every rank calls it."""
        ...

    def weights(self) -> Weights[Any]:
        """All weights of the policy, on the CPU."""
        ...

    def save(self, folder: Path) -> None:
        """Writes everything below `folder`; every rank calls it."""
        ...

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        ...

    def close(self) -> None:
        """Leaves the other ranks."""
        ...


@runtime_checkable
class TrainsOffPolicy(Protocol):
    """A trainer's configuration that can build an `OffPolicyTrainer`."""

    def check_off_policy(self) -> None:
        """Refuses what it is told and does not do in off-policy training.

        Raises:
            ConfigError: the message names the key.
        """
        ...

    def build_off_policy(
        self,
        policy: Any,
        objective: Objective,
        spec: EnvSpec,
        *,
        seed: int,
        rank: int,
        world_size: int,
        rendezvous: str,
        training_steps: int | None = None,
    ) -> OffPolicyTrainer:
        """A trainer of `policy` as one of `world_size` ranks that meet at `rendezvous`; every rank calls it.

        Args:
            policy: what is trained; the trainer owns it from now on.
            objective: the algorithm.
            spec: of the environment.
            seed: of what the losses draw.
            rank: 0 … world_size − 1.
            world_size: how many ranks train together.
            rendezvous: where they meet; "" for one rank.
            training_steps: updates of the whole run, over which schedules span.
        """
        ...
