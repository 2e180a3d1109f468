"""From what is registered as a model to the policy."""

from __future__ import annotations

import inspect
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import Builder, LanguageModelConfig, ModelConfig

Model = ModelConfig | LanguageModelConfig | Builder
"""What can be registered."""


def build_model(model: Model, spec: EnvSpec | None, *, seed: int, place: str) -> Any:
    """The policy, with fresh weights.

    Args:
        model: what is registered.
        spec: the environment that it acts in; a language model needs none.
        seed: decides the weights.
        place: the configuration key of the model, for messages.

    Raises:
        ConfigError: a model that acts in an environment has none, or it can't be called as a builder is.
    """
    # A language model has `build` too, so it is asked first.
    if isinstance(model, LanguageModelConfig):
        return model.build(seed=seed)
    if spec is None:
        problem = "a model that acts in an environment was given none"
        raise ConfigError(place, problem, "Pass spec, an EnvSpec; only language models need none.")
    if isinstance(model, ModelConfig):
        return model.build(spec, seed=seed)
    _expect_builder(model, spec, seed, place)
    return model(spec, seed=seed)


def _expect_builder(model: object, spec: EnvSpec, seed: int, place: str) -> None:
    """Refuses what can't be called so; calls nothing, since a TypeError from within a builder is its author's to see."""
    remedy = "Name a configuration class, or a function builder(spec, *, seed) that returns the policy."
    if not callable(model):
        raise ConfigError(place, f"expected what builds a policy, found {type(model).__name__}", remedy)
    try:
        inspect.signature(model).bind(spec, seed=seed)
    except TypeError as error:
        name = getattr(model, "__name__", type(model).__name__)
        raise ConfigError(place, f"'{name}' can't be called with a spec and a seed: {error}", remedy) from error
