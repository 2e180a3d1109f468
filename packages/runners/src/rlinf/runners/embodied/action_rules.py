"""Rules about what becomes of a policy's actions: wrappers that convert them, the time of decisions, and compiling."""

from __future__ import annotations

from itertools import takewhile
from typing import cast

from rlinf.core.declarations import ConvertsActions, MadeForSimulators, action_size_of, traits_of
from rlinf.core.errors import ConfigError
from rlinf.runners.config.rules import together
from rlinf.runners.config.schema import ModelSection
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.wrapping import simulator_of


def formats(cfg: PlayedConfig) -> ConfigError | None:
    """Wrappers that convert actions, nearest to the simulator; one that does not say what it does to them is the last looked at."""
    faults: list[ConfigError] = []
    for env in (cfg.env.train, cfg.env.eval):
        size = action_size_of(env.init_params)
        converting = takewhile(lambda entry: isinstance(entry[1], ConvertsActions), env.wrapping)
        try:
            for place, wrapper in converting if size is not None else ():
                size = cast("ConvertsActions", wrapper).taken_size(cast("int", size), place)
        except ConfigError as error:
            # What evaluations take over from training is told once.
            faults += [] if [error.problem] == [fault.problem for fault in faults] else [error]
    return together(faults)


def large_actions(model: ModelSection, size: int | None, whose: str) -> ConfigError | None:
    """Actions of more numbers than the model makes.

    Args:
        model: the section of the model.
        size: numbers of an action; None if nobody knows.
        whose: what has such actions, and the verb, for the message.
    """
    traits = traits_of(model.config)
    if traits.largest_action is None or size is None or size <= traits.largest_action:
        return None
    problem = f"'{model.model_type}' makes actions of at most {traits.largest_action} numbers, and {whose} {size}"
    remedy = f"Set it to {size} or more." if traits.largest_action_key else "Choose a larger model."
    return ConfigError(f"actor.model.{traits.largest_action_key or 'model_type'}", problem, remedy)


def made_for(cfg: PlayedConfig) -> ConfigError | None:
    """Wrappers that are made for another simulator, as those of a recipe are that stay where its environment is replaced."""
    faults: list[ConfigError] = []
    for env in (cfg.env.train, cfg.env.eval):
        for place, wrapper in env.wrapping:
            try:
                if isinstance(wrapper, MadeForSimulators):
                    wrapper.expect_simulator(simulator_of(env), place)
            except ConfigError as error:
                # What evaluations take over from training is told once.
                faults += [] if error.problem in [fault.problem for fault in faults] else [error]
    return together(faults)


def real_time(cfg: PlayedConfig) -> ConfigError | None:
    """What a policy must have that decides while its last chunk is executed."""
    key, timing = "env.eval.real_time_chunking", cfg.env.eval.real_time_chunking
    if timing is None:
        return None
    model, traits, faults = f"'{cfg.actor.model.model_type}'", traits_of(cfg.actor.model.config), list[ConfigError]()
    if traits.recurrent:
        problem = (
            f"{model} has a memory, which moves on once for each chunk that is executed, and here two are decided at the start"
        )
        faults.append(ConfigError(key, problem, "Leave it out, or choose a policy without one."))
    if timing.guidance and not traits.real_time_chunking:
        problem = f"{model} does not say that it can go on from a chunk in execution (traits.real_time_chunking)"
        remedy = "Set it to false, which lets it decide as if nothing were executed meanwhile, or choose a flow policy."
        faults.append(ConfigError(f"{key}.guidance", problem, remedy))
    elif timing.guidance and cfg.env.eval.mode == "train":
        problem = f"train samples decisions, and with {key}.guidance a chunk goes on from the one before it without sampling"
        faults.append(ConfigError("env.eval.mode", problem, f"Set it to eval, or {key}.guidance to false."))
    if traits.chunk is not None:
        try:
            timing.expect_fitting(traits.chunk, key)
        except ConfigError as error:
            faults.append(error)
    return together(faults)


def compiled(cfg: PlayedConfig) -> ConfigError | None:
    """What a policy must have that is compiled."""
    if not cfg.rollout.enable_torch_compile or traits_of(cfg.actor.model.config).compiled:
        return None
    problem = f"'{cfg.actor.model.model_type}' does not say that anything of it can be compiled (traits.compiled)"
    return ConfigError("rollout.enable_torch_compile", problem, "Set it to false, or choose pi0, pi05 or gr00t.")
