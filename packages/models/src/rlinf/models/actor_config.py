"""What the configurations of small actor-critics have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import HOTTEST
from rlinf.core.registry import require_modules
from rlinf.models.flow.sampling import FlowSampling

STATES = "states"
MISSING_STATISTICS: Final = (
    "'{model}' acts in the units of a robot only by them: put them there, or start from demonstrations (apps/embodied/sft.py, "
    "data.statistics: dataset), whose checkpoint has them."
)
"""What to do about a folder without statistics."""
MOST_LOG_STD: Final = 20.0
"""Beyond which a standard deviation, or the square of its inverse, leaves float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticConfig:
    """How actions are drawn, and what judges them."""

    num_action_chunks: int = 1
    """K, control steps in one decision."""
    distribution: Literal["gaussian", "tanh_gaussian"] = "gaussian"
    """`gaussian`: not clipped, bounds belong to the environment. `tanh_gaussian`: squashed to the bounds of the actions."""
    logprob_type: Granularity = "chunk_level"
    """One log-probability for the whole chunk, for each step, or for each dimension of each step."""
    logstd_init: float = -0.5
    """The logarithm of each action's standard deviation at the start (before squashing, in units of the squashed Gaussian)."""
    state_dependent_std: bool = False
    """Whether the standard deviation depends on the state; otherwise it is learned once for all."""
    logstd_range: tuple[float, float] = (-5.0, 2.0)
    """The bounds of a state-dependent logarithm of the standard deviation."""
    add_value_head: bool = True
    """Whether there is a value function, as PPO needs it."""
    num_q_heads: int = 0
    """N, how many Q-functions there are, as soft actor-critic needs them; none if 0."""
    q_head: Literal["multi", "crossq"] = "multi"
    """Ordinary critics, which need target networks, or those of CrossQ with batch renormalisation, which don't."""
    q_hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of a Q-function."""
    q_layer_norm: bool = False
    """Whether the hidden layers of ordinary critics are normalised, which keeps their values bounded (RLPD)."""
    q_dropout: float = 0.0
    """The share of hidden units of ordinary critics that are dropped at random in training (DroQ: 0.01, with `q_layer_norm`)."""

    def __post_init__(self) -> None:
        for name, least in (("num_action_chunks", 1), ("num_q_heads", 0)):
            expect_at_least(name, getattr(self, name), least)
        expect_sizes("q_hidden_sizes", self.q_hidden_sizes)
        check_log_std(self.logstd_init, self.logstd_range)
        low, high = self.logstd_range
        if self.state_dependent_std and not low < self.logstd_init < high:
            found = f"expected to lie inside logstd_range {(low, high)}, found {self.logstd_init}"
            raise ConfigError("logstd_init", found, "Move it, or widen the range.")
        if self.q_layer_norm and self.q_head == "crossq":
            raise ConfigError("q_layer_norm", "critics of CrossQ are normalised already", "Set q_layer_norm: false.")
        expect_range("q_dropout", self.q_dropout, 0.0, 1.0, open_high=True)
        if self.q_dropout and self.q_head == "crossq":
            raise ConfigError("q_dropout", "critics of CrossQ have no dropout", "Set q_dropout: 0, or q_head: multi.")

    @property
    def traits(self) -> PolicyTraits:
        return acting(
            critic=self.add_value_head,
            entropy=self.distribution == "gaussian",
            q_functions=self.num_q_heads > 0,
            q_batch_norm=self.q_head == "crossq",
            chunk=self.num_action_chunks,
        )


def acting(
    *,
    critic: bool,
    entropy: bool = True,
    discrete_actions: bool = False,
    q_functions: bool | None = None,
    q_batch_norm: bool | None = None,
    observations: tuple[str, ...] | None = None,
    any_observation: tuple[str, ...] = (),
    optional_observations: tuple[str, ...] = (),
    chunk: int | None = None,
    largest_action: int | None = None,
    largest_action_key: str = "",
    sampling: FlowSampling | None = None,
    compiled: bool = False,
    blocks: bool | None = None,
) -> PolicyTraits:
    """The traits of a policy of control steps, whose `add_value_head` decides whether it has a critic; a flow has `sampling`."""
    return PolicyTraits(
        critic=critic,
        critic_key="add_value_head",
        entropy=entropy,
        recurrent=False,
        discrete_actions=discrete_actions,
        q_functions=q_functions,
        q_batch_norm=q_batch_norm,
        language=False,
        observations=observations,
        any_observation=any_observation,
        optional_observations=optional_observations,
        chunk=chunk,
        largest_action=largest_action,
        largest_action_key=largest_action_key,
        # Steps of the ODE have no density; with `matching` something else stands for the log-probability.
        scored=sampling is None or sampling.noise_method != "flow_ode" or sampling.likelihood == "matching",
        flow_regression=sampling is not None and sampling.likelihood == "matching",
        flow_regression_key="" if sampling is None else "sampling.likelihood: matching",
        # All that act here draw by `flow.draws`, which takes a generator for each run of rows.
        row_generators=True,
        real_time_chunking=sampling is not None,
        compiled=compiled,
        blocks=blocks,
    )


def is_numbered(action: ArraySpec) -> bool:
    """Whether an action is a number out of several, or several such numbers, rather than a vector."""
    return np.issubdtype(np.dtype(action.dtype), np.integer)


def expect_source(preset: str | None, model_path: str | None) -> None:
    """Refuses a model that is to be made at random and read from a folder, or neither.

    Raises:
        ConfigError: with both values.
    """
    if (preset is None) == (model_path is None):
        found = f"expected exactly one of preset and model_path, found {preset!r} and {model_path!r}"
        raise ConfigError("preset", found, "Set preset: tiny to try it, or model_path to the folder of a checkpoint.")
    if preset not in (None, "tiny", "base"):
        raise ConfigError("preset", f"expected tiny or base, found '{preset}'")


def folder_of(path: str | None) -> Path | None:
    """The folder that a configuration names, which may begin with `~`; None for none."""
    return None if path is None else Path(path).expanduser()


def check_model_path(path: str | None, place: str) -> None:
    """Refuses the folder of a model that is not there, or not described; None passes.

    Raises:
        ConfigError: it has no `config.json`.
    """
    folder = folder_of(path)
    if folder is not None and not (folder / "config.json").is_file():
        found = "a folder without config.json" if folder.is_dir() else "none"
        raise ConfigError(f"{place}.model_path", f"expected the folder of a model at '{path}', found {found}", "Download it first.")


def check_vla(path: str | None, place: str, **of_folder: object) -> None:
    """Refuses what every vision-language-action model does before it is built; loads none.

    Args:
        path: of its folder; None: its weights are random.
        place: of its configuration.
        **of_folder: the values of keys that say what of the folder is used.

    Raises:
        MissingExtra: transformers is not installed.
        ConfigError: there is no such folder; or none is named, and such a key is set.
    """
    require_modules("transformers", "tokenizers", place=f"{place}.model_type", extra="rlinf-models[vla]")
    check_model_path(path, place)
    for key, value in of_folder.items():
        if path is None and value:
            raise ConfigError(f"{place}.{key}", f"{value!r} is of a folder, and none is read", "Leave it out, or set model_path.")


def check_log_std(init: float | None, bounds: tuple[float, float] | None = None) -> None:
    """Refuses logarithms of a standard deviation that float32 does not have, and bounds that contain nothing.

    Raises:
        ConfigError: one of them, `logstd_init` or `logstd_range`.
    """
    expect_range("logstd_init", init, -MOST_LOG_STD, MOST_LOG_STD)
    for bound in bounds or ():
        expect_range("logstd_range", bound, -MOST_LOG_STD, MOST_LOG_STD)
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ConfigError("logstd_range", f"expected low < high, found {list(bounds)}")


def check_sampling(temperature: float, temperature_eval: float, top_k: int) -> None:
    """Refuses settings of drawn action tokens that no distribution has.

    Raises:
        ConfigError: one of them.
    """
    expect_range("temperature", temperature, 0.0, HOTTEST, open_low=True)
    expect_range("temperature_eval", temperature_eval, 0.0, HOTTEST)
    expect_at_least("top_k", top_k, 0, "0 is all bins.")


def expect_sizes(place: str, sizes: tuple[int, ...]) -> None:
    """Refuses layers without units.

    Raises:
        ConfigError: there is one; the message has all sizes.
    """
    if any(size < 1 for size in sizes):
        raise ConfigError(place, f"expected sizes of at least 1, found {list(sizes)}")


def expect_action(place: str, spec: EnvSpec) -> ArraySpec:
    """The action of an environment, which must be a vector.

    Raises:
        ConfigError: it isn't.
    """
    if len(spec.action.shape) != 1:
        raise ConfigError(place, f"expected an action [A], found {spec.action.shape}", "Flatten it in the environment.")
    return spec.action


def finite_bounds(spec: ArraySpec) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """The least and the greatest of each number; None if they are not known, or farther apart than float32 counts."""
    if spec.low is None or spec.high is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(as_numpy(bound), np.float32) for bound in (spec.low, spec.high))
        return (low, high) if np.isfinite(high - low).all() else None
