"""Builds the environments of slots; what one refuses is called by its key."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.core.envs.robots import at_hardware
from rlinf.core.errors import ConfigError
from rlinf.runners.embodied.films import FILMED
from rlinf.runners.embodied.playing.env_slot import EnvSlot
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.schema import EvalEnvConfig, TrainEnvConfig


def build_slots(
    config: TrainEnvConfig | EvalEnvConfig, slots: Sequence[Slot], hardware: Any, *, render: bool
) -> tuple[list[EnvSlot], EnvSpec]:
    """Builds the environments of slots, at least one, and says what a policy must know of them.

    Args:
        config: which environments.
        slots: of one worker.
        hardware: what the worker's place has, such as robots.
        render: whether those of slot 0 are filmed.

    Raises:
        ConfigError: an environment or a wrapper refuses its configuration; the error names the key.
    """
    env_slots: list[EnvSlot] = []
    for slot in slots:
        with _keyed(config):
            env = at_hardware(config.init_params, hardware).make(
                slot.num_envs,
                max_episode_steps=config.max_episode_steps,
                ignore_terminations=config.ignore_terminations,
                render=render and slot.index == 0,
            )
        for place, wrapper in config.wrapping:
            with _placed(place):
                env = wrapper.wrap(env, f"{config.place.removeprefix('env.')}_{slot.index}")
        env_slots.append(EnvSlot(slot, env, config.init_params.describe(env), partial(_keyed, config)))
    return env_slots, env_slots[-1].spec


@contextmanager
def _keyed(config: TrainEnvConfig | EvalEnvConfig) -> Generator[None]:
    """What an environment refuses inside, which it calls `env.…` as it knows no run, is called by its key outside."""
    try:
        yield
    except ConfigError as error:
        env, _, name = error.place.partition(".")
        # No key is called so: what asks an environment for pictures is the film.
        if isinstance(config, EvalEnvConfig) and config.video_cfg.save_video and name == "render":
            name = FILMED.removeprefix("env.eval.")
        for part, prefix in ((config, config.place), (config.init_params, f"{config.place}.init_params")):
            if env == "env" and is_dataclass(part) and name.partition(".")[0] in [field.name for field in fields(part)]:
                error.move(f"{prefix}.{name}")
                break
        raise


@contextmanager
def _placed(place: str) -> Generator[None]:
    """What a wrapper refuses inside is called by its key outside."""
    try:
        yield
    except ConfigError as error:
        _, _, name = error.place.partition(".")
        error.move(f"{place}.{name}" if name else place)
        raise
