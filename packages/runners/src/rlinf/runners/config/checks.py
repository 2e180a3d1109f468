"""What a run lacks on this machine: files, and what has to be installed. Looked at before anything starts, and told together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf.core.declarations import Checks
from rlinf.core.errors import CheckpointError, ConfigError, refuse
from rlinf.runners.checkpoints.resuming import check_resume
from rlinf.runners.checkpoints.starting_weights import find_weights
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.sft.schema import SFTConfig

Trained = EmbodiedConfig | ReasoningConfig | SFTConfig


def check_run(cfg: Trained) -> None:
    """Refuses a run that could not begin: a simulator, an engine, a file or a checkpoint that is not there.

    Raises:
        ConfigError: one line for each of them, with its key.
    """
    weights = {"runner.ckpt_path": cfg.runner.ckpt_path}
    if isinstance(cfg, ReasoningConfig):
        weights["reference.ckpt_path"] = cfg.reference.ckpt_path
    faults = _lacking({**_evaluated(cfg), **_trained(cfg)})
    for key, path in weights.items():
        if path is not None:
            _collect(faults, key, lambda path=path, key=key: find_weights(path, key))
    _collect(faults, "runner.resume_dir", lambda: check_resume(cfg))
    refuse(faults)


def check_evaluation(cfg: EmbodiedConfig | ReasoningConfig) -> None:
    """Refuses the evaluation of a checkpoint that could not begin.

    Raises:
        ConfigError: one line for each thing that is not there, with its key.
    """
    refuse(_lacking(_evaluated(cfg)))


def _evaluated(cfg: Trained) -> Mapping[str, Any]:
    """What an evaluation needs, by its place."""
    if isinstance(cfg, EmbodiedConfig):
        return {"env.eval.init_params": cfg.env.eval.init_params, "actor.model": cfg.actor.model.config}
    generator = {"rollout": cfg.rollout.generator} if isinstance(cfg, ReasoningConfig) else {}
    return {"data": cfg.data.task, **generator, "actor.model": cfg.actor.model.config}


def _trained(cfg: Trained) -> Mapping[str, Any]:
    """What training needs beside that."""
    simulator = {"env.train.init_params": cfg.env.train.init_params} if isinstance(cfg, EmbodiedConfig) else {}
    return {**simulator, "actor": cfg.actor.trainer}


def _lacking(parts: Mapping[str, Any]) -> list[ConfigError]:
    faults: list[ConfigError] = []
    for place, part in parts.items():
        if isinstance(part, Checks):
            _collect(faults, place, lambda part=part, place=place: part.check(place))
    return faults


def _collect(faults: list[ConfigError], key: str, look: Callable[[], object]) -> None:
    """Adds what is refused; what is said of a file is said of the key that names it. One thing is missing only once."""
    try:
        look()
    except ConfigError as error:
        if all((error.problem, error.remedy) != (fault.problem, fault.remedy) for fault in faults):
            faults.append(error)
    except CheckpointError as error:
        problem = error.problem if error.place == key else f"'{error.place}': {error.problem}"
        faults.append(ConfigError(key, problem, error.remedy))
