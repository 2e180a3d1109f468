"""The command line of an evaluation: a checkpoint or a recipe, and what is changed of its configuration."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.evaluation import EvalReport
from rlinf.core.weight_files import find_weights
from rlinf.runners.checkpoints.checkpoint import Checkpoint, hold_checkpoint, read_checkpoint
from rlinf.runners.config.choices import replace_parameters
from rlinf.runners.config.composition import compose_recipe, recipes
from rlinf.runners.config.paths import moved_paths
from rlinf.runners.config.schema import RunnerConfig
from rlinf.runners.evaluation.policy import EvaluatedPolicy

_WAYS = "Name a global_step_N folder or the folder of a run; or --config-name RECIPE, with runner.ckpt_path=… for its weights."

_OVERRIDE = "Write key=value, such as runner.seed=2."


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCommand:
    """What the user of an evaluation typed."""

    checkpoint: Checkpoint | None
    """What is evaluated; None for what a recipe starts from."""
    data: Mapping[str, Any]
    """The configuration of the checkpoint or of the recipe with the changes, not yet read into types."""
    started: float = field(default_factory=time.monotonic)
    """When the evaluation began, on the clock of `time.monotonic`."""

    def policy(self, runner: RunnerConfig) -> EvaluatedPolicy:
        """Which weights are evaluated, and where the results go: beside a checkpoint, or below `runner.logger.log_path`.

        Raises:
            CheckpointError: there are no weights where `runner.ckpt_path` says, or nothing can be written beside them.
        """
        if self.checkpoint is not None:
            folder, state = self.checkpoint.folder, self.checkpoint.state
            name, file, parent = str(folder), str(self.checkpoint.model_file), folder.with_name(f"{folder.name}_eval")
        else:
            path, state, file = runner.ckpt_path, dict[str, Any](), None
            if path is not None:
                find_weights(path, place="runner.ckpt_path")
            name = "actor.model as it is, without runner.ckpt_path" if path is None else str(Path(path).expanduser().absolute())
            # Two files of one name are two policies, whose results must not meet.
            weights = "model" if path is None else f"{Path(path).stem}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
            logs = Path(runner.logger.log_path).expanduser().absolute()
            parent = logs / f"{runner.experiment_name}_eval" / weights
        _make(parent)
        sys.stderr.write(f"evaluating {name}; starting workers\n")
        return EvaluatedPolicy(name=name, checkpoint_file=file, state=state, parent=parent, started=self.started)


def parse_evaluation(argv: Sequence[str], *, config_dir: Path, description: str) -> EvaluationCommand:
    """Reads the arguments of an evaluation: a checkpoint or the name of a recipe, then overrides.

    Args:
        argv: the arguments.
        config_dir: where recipes are looked for.
        description: of the app.

    Raises:
        ConfigError: neither or both are named, or an override can't be read.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    parser = argparse.ArgumentParser(description=description, epilog=f"recipes: {', '.join(recipes(config_dir))}")
    parser.add_argument("checkpoint", nargs="?", help="a global_step_N folder, or the folder of a run")
    parser.add_argument(
        "--config-name", help="the recipe to evaluate, in place of a checkpoint; runner.ckpt_path names its weights"
    )
    parser.add_argument("--config-dir", type=Path, default=config_dir, help="where recipes are looked for")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help="changes to the configuration: key=value")
    args = parser.parse_intermixed_args(list(argv))
    started, overrides = time.monotonic(), cast("list[str]", args.overrides)
    named: str | None = args.checkpoint
    if args.config_name is not None:
        # argparse takes the first override for the checkpoint.
        overrides = overrides if named is None else [named, *overrides]
        data = compose_recipe(args.config_dir, args.config_name, overrides).data
        return EvaluationCommand(checkpoint=None, data=_without_resuming(data), started=started)
    # Without a checkpoint, argparse takes the first override for one.
    if named is None or ("=" in named and not Path(named).exists()):
        raise ConfigError("CHECKPOINT", "expected a checkpoint or a recipe, found neither", _WAYS)
    path = Path(named).expanduser().absolute()
    if not path.exists():
        raise CheckpointError("CHECKPOINT", f"there is nothing at '{path}'", _WAYS)
    checkpoint = read_checkpoint(path)
    hold_checkpoint(checkpoint)  # from here on, as a run that goes on may remove it at any time
    return EvaluationCommand(checkpoint=checkpoint, data=_changed(checkpoint, overrides), started=started)


def told(report: EvalReport[Any], policy: EvaluatedPolicy) -> str:
    """An evaluation in a few lines: the rates with what they are of, those of each task, and the files."""
    rates = [f"{name} {value:.1%}" for name, value in report.means.items() if name.startswith("pass@")]
    tasks = [f"{task} {rate.rate:.1%}" for task, rate in report.per_task.items() if rate is not None and task is not None]
    lines = [f"eval/{report}", *("  ".join(each) for each in (rates, tasks) if len(each) > 1)]
    folder = policy.folder(report.protocol)
    lines += [str(path) for path in (folder.transcripts, folder.video, folder.summary) if path.exists()]
    return "\n".join(lines) + "\n"


def _changed(checkpoint: Checkpoint, overrides: Sequence[str]) -> Mapping[str, Any]:
    """The configuration of a checkpoint as it holds here and now, with overrides."""
    for override in overrides:
        if "=" not in override:
            raise ConfigError(override, "not an override", _OVERRIDE)
    try:
        before, changes = OmegaConf.create(_own_configuration(checkpoint)), OmegaConf.from_dotlist(list(overrides))
        merged = cast("Mapping[str, Any]", OmegaConf.to_container(OmegaConf.merge(before, changes)))
        explicit = flatten(OmegaConf.to_container(changes))
        data, _ = replace_parameters(_own_configuration(checkpoint), merged, explicit=explicit)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(" ".join(overrides), " ".join(str(error).split()), _OVERRIDE) from error
    if data["runner"].get("ckpt_path") is not None:
        raise ConfigError("runner.ckpt_path", "a checkpoint is evaluated with its own weights", "Name a recipe with --config-name.")
    return _without_resuming(data)


def _own_configuration(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint was trained with; its weights come from nowhere else."""
    config = moved_paths(checkpoint.config, checkpoint.folder.parent.parent)
    runner = {key: value for key, value in config.get("runner", {}).items() if key not in ("resume_dir", "ckpt_path")}
    return {**config, "runner": runner}


def _without_resuming(data: Mapping[str, Any]) -> Mapping[str, Any]:
    if data.get("runner", {}).get("resume_dir") is not None:
        raise ConfigError("runner.resume_dir", "an evaluation does not go on from a checkpoint", f"Leave it out. {_WAYS}")
    return data


def _make(folder: Path) -> None:
    """Refuses before the work what would fail after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        problem = f"the evaluation can't be written there ({error.strerror})"
        remedy = "Copy the run to a folder that you may write to, or set runner.logger.log_path for a recipe."
        raise CheckpointError(str(folder), problem, remedy) from error
