"""What a policy must know of an environment, where none is running."""

from __future__ import annotations

from rlinf.core.data import EnvSpec
from rlinf.runners.embodied.schema import EvalEnvConfig, TrainEnvConfig


def described(config: TrainEnvConfig | EvalEnvConfig) -> EnvSpec:
    """What a policy must know of an environment, of which one is built with its wrappers, and closed."""
    env = config.init_params.make(
        1, max_episode_steps=config.max_episode_steps, ignore_terminations=config.ignore_terminations, render=False
    )
    try:
        for section in config.wrappers:
            if not section.wrapper.training_only:
                env = section.wrapper.wrap(env, "description")
        return config.init_params.describe(env)
    finally:
        env.close()
