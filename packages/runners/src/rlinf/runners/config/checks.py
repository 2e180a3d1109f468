"""What a run lacks on this machine: files, and what has to be installed. Looked at before anything starts, and told together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlinf.core.checkpoints.weight_files import expect_whole, find_weights
from rlinf.core.config.provenance import flatten
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import Checks, ChecksRanks, ChecksTasks
from rlinf.core.errors import CheckpointError, ConfigError, each_fault, refuse
from rlinf.core.protocols import Placement
from rlinf.core.registry import MODELS
from rlinf.runners.checkpoints.checkpoint import model_of, peek_checkpoint
from rlinf.runners.checkpoints.public_folders import check_folder, policy_of
from rlinf.runners.checkpoints.resuming import check_resume
from rlinf.runners.checkpoints.run_folder import expect_writable, resume_folder
from rlinf.runners.config.schema import RunConfig, TrainingConfig, ranks_of
from rlinf.runners.config.sections import chosen_parts, keyed_fields, resolved, section_of
from rlinf.runners.config.statistics import lacking_statistics
from rlinf.runners.reporting.loggers.registry import KEY, check_logger

_START: Final = "runner.ckpt_path"
_OF_ACTOR: Final = (_START, "reference.ckpt_path")
"""Keys of weights that `actor.model` describes; others have a model of their own."""


def check_run(cfg: RunConfig) -> None:
    """Refuses a run that could not begin: a simulator, an engine, a file or a checkpoint that is not there.

    Raises:
        ConfigError: one line for each of them, with its key.
    """
    faults = _lacking(cfg, training=True)
    # Only if nothing is missing, as the policy's tokenizer says how much room a text takes.
    faults += [] if faults else lacking_room(cfg)
    if not cfg.fits_statistics:
        _add_statistics(faults, cfg)
    for key, path in _weights(cfg):
        _collect(faults, key, lambda path=path, key=key: _check_weights(cfg, key, path))
    _collect(faults, "runner.resume_dir", lambda: _check_resumed(cfg))
    faults += _unwritable(cfg)
    for name in cfg.runner.logger.logger_backends:
        _collect(faults, KEY, lambda name=name: check_logger(name))
    refuse(faults)


def check_ranks(cfg: RunConfig, placement: Placement) -> None:
    """Refuses what can't be parted over the processes that a component has.

    Args:
        cfg: the run.
        placement: of its components.

    Raises:
        ConfigError: one line for each key that does not go with them.
    """
    cfg.check_placement(placement)
    actor = section_of(cfg, "actor", TrainingConfig)
    if actor is None or not isinstance(actor.trainer, ChecksRanks):
        return
    actor.trainer.check_ranks(ranks_of(placement, "actor"), one_process=cfg.cluster.get("backend") == "local")


def check_chosen(read: Callable[[Mapping[str, Any]], object], data: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """Refuses a placement that the planner chose if the run would not have been read with it, such as by a profile of another run.

    Args:
        read: reads a configuration, and refuses it.
        data: the configuration, without a placement.
        chosen: the placement.

    Raises:
        ConfigError: one line for each fault.
    """
    try:
        read({**data, "cluster": {**data["cluster"], "component_placement": dict(chosen)}})
    except ConfigError as error:
        remedy = "Profile this recipe, or say where the component stays: cluster.planner.pinned."
        told = f"by cluster.planner.profile auto placed {', '.join(chosen)}"
        refuse([type(fault)(fault.place, f"{told}: {fault.problem}", remedy) for fault in each_fault(error)])


def check_evaluation(cfg: RunConfig, *, of_checkpoint: bool = False) -> None:
    """Refuses an evaluation that could not begin, in which nothing trains.

    Args:
        cfg: what is evaluated.
        of_checkpoint: whether its weights are those of a checkpoint of ours.

    Raises:
        ConfigError: one line for each thing that is not there, with its key.
    """
    faults = _lacking(cfg, training=False)
    faults += [] if faults else lacking_room(cfg)
    faults += _unwritable(cfg, "env.eval.")
    if not of_checkpoint:
        _add_statistics(faults, cfg)
        path = cfg.runner.ckpt_path
        if path is not None:
            _collect(faults, _START, lambda: _check_weights(cfg, _START, path))
    refuse(faults)


def lacking_room(cfg: RunConfig, spec: EnvSpec | None = None) -> list[ConfigError]:
    """What tasks ask for and a policy has no room for; the tokenizer of that policy must be there.

    Args:
        cfg: the run.
        spec: of the environment; None before a simulator is built.
    """
    faults, texts = list[ConfigError](), cfg.task_texts
    for place, _, part in () if texts is None and spec is None else chosen_parts(cfg):
        if isinstance(part, ChecksTasks):
            _collect(faults, place, lambda part=part, place=place: part.check_tasks(texts or (), place, spec))
    return faults


def _weights(config: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Every `ckpt_path` that is set, by its dotted path."""
    for field in keyed_fields(type(config)):
        value, key = getattr(config, field.name), f"{place}{field.name}"
        if field.name == "ckpt_path" and value is not None:
            yield key, value
        elif "registry" not in field.metadata and dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _weights(value, f"{key}.")


def _check_weights(cfg: RunConfig, key: str, path: str) -> None:
    """Refuses weights that are not there, were cut, or are of a run, or in a public folder, of another model.

    Raises:
        CheckpointError: the first two, and files of the folder that can't be used.
        ConfigError: the third; of runs only what both name by a registered name is compared.
    """
    file = find_weights(path, place=key)
    expect_whole(file, place=key)
    actor = section_of(cfg, "actor", TrainingConfig)
    if key in _OF_ACTOR and actor is not None:
        _refuse_other_model(actor, key, file)
        check_folder(actor.model, file.parent, key, cfg.task_texts or ())


def _check_resumed(cfg: RunConfig) -> None:
    check_resume(cfg)
    actor, folder = section_of(cfg, "actor", TrainingConfig), resume_folder(cfg)
    if actor is not None and folder is not None:
        _refuse_other_model(actor, "runner.resume_dir", peek_checkpoint(folder).model_file)


def _refuse_other_model(actor: TrainingConfig, key: str, file: Path) -> None:
    made, wanted = model_of(file) or policy_of(file.parent), actor.model.model_type
    if made is not None and made != wanted and {made, wanted} <= set(MODELS.names()):
        remedy = "Name weights of this model, or set actor.model as in their run."
        raise ConfigError(key, f"the weights in '{file}' are of a '{made}', and actor.model.model_type is '{wanted}'", remedy)


def _unwritable(cfg: RunConfig, within: str = "") -> Iterator[ConfigError]:
    """Folders of recordings that nothing can be written to; where workers are on other nodes, only these know.

    Args:
        cfg: the run.
        within: how the keys begin that are looked at.
    """
    if cfg.cluster.get("num_nodes", 1) != 1:
        return
    known = flatten(resolved(cfg))
    for key, path in known.items():
        section, _, name = key.rpartition(".")
        asked = name == "save_dir" and key.startswith(within) and known.get(f"{section}.enabled", True)
        if asked and isinstance(path, str) and path:
            try:
                expect_writable(Path(path))
            except OSError as error:
                problem = f"can't write to '{path}' ({error.strerror})"
                yield ConfigError(key, problem, "Name a folder that you may write to.")


def _lacking(cfg: RunConfig, *, training: bool) -> list[ConfigError]:
    faults: list[ConfigError] = []
    checked: list[object] = []
    for place, trains, part in chosen_parts(cfg):
        # What evaluations take over from training lacks the same.
        if isinstance(part, Checks) and (training or not trains) and part not in checked:
            checked.append(part)
            _collect(faults, place, lambda part=part, place=place: part.check(place))
    _collect(faults, "", cfg.check_installed)
    return faults


def _add_statistics(faults: list[ConfigError], cfg: RunConfig) -> None:
    """Adds what is wrong with statistics, but for keys that are refused already, such as a folder that is not there."""
    places = [fault.place for fault in faults]
    faults += [fault for fault in lacking_statistics(cfg, cfg.action_size) if fault.place not in places]


def _collect(faults: list[ConfigError], key: str, look: Callable[[], object]) -> None:
    """Adds what is refused; what is said of a file is said of the key that names it. One thing is missing only once."""
    try:
        look()
    except ConfigError as error:
        if all((error.problem, error.remedy) != (fault.problem, fault.remedy) for fault in faults):
            faults.append(error)
    except CheckpointError as error:
        if f"{error.place}.".startswith(f"{key}."):
            faults.append(ConfigError(error.place, error.problem, error.remedy))
        else:
            faults.append(ConfigError(key, f"'{error.place}': {error.problem}", error.remedy))
