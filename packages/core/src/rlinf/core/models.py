"""From what is registered as a model to the policy."""

from __future__ import annotations

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
        ConfigError: a model that acts in an environment has none.
    """
    # A language model has `build` too, so it is asked first.
    if isinstance(model, LanguageModelConfig):
        return model.build(seed=seed)
    if spec is None:
        problem = "a model that acts in an environment was given none"
        raise ConfigError(place, problem, "Pass spec, an EnvSpec; only language models need none.")
    return model.build(spec, seed=seed) if isinstance(model, ModelConfig) else model(spec, seed=seed)
