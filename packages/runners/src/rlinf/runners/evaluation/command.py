"""The command line of an evaluation: a checkpoint or a recipe, and what is changed of its configuration."""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.checkpoints.weight_files import has_weights
from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.config.provenance import flatten
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.evaluation import EpisodeProtocol, EvalProtocol, EvalReport
from rlinf.runners.checkpoints.checkpoint import Checkpoint, hold_checkpoint, read_checkpoint
from rlinf.runners.checkpoints.run_folder import make_writable
from rlinf.runners.config.choices import replace_parameters
from rlinf.runners.config.composition import compose_app_recipe, recipes
from rlinf.runners.config.paths import moved_paths
from rlinf.runners.config.schema import RunnerConfig
from rlinf.runners.evaluation.policy import EvaluatedPolicy, weight_sums
from rlinf.runners.evaluation.published import read_protocol, repeated_episodes
from rlinf.runners.evaluation.suites import read_suite
from rlinf.runners.evaluation.tables import table
from rlinf.runners.task_types import task_type_of

_WAYS = "Name a global_step_N folder or the folder of a run; or --config-name RECIPE, with runner.ckpt_path=… for its weights."

_Configured = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A configuration, and what it was before it was changed."""

_OVERRIDE = "Write key=value, such as runner.seed=2."


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCommand:
    """What the user of an evaluation typed."""

    checkpoint: Checkpoint | None
    """What is evaluated; None for what a recipe starts from."""
    data: Mapping[str, Any]
    """The configuration of the checkpoint or of the recipe with the changes, not yet read into types."""
    own: Mapping[str, Any] | None = None
    """The same without the changes, of a recipe its sections and their keys; None where nothing is changed."""
    suite: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """The same for each entry of a suite; none without one."""
    published: EvalProtocol | None = None
    """The protocol that is repeated, if one is."""
    others: Sequence[EvaluationCommand] = ()
    """Of further checkpoints, which are measured under the protocol of this one."""
    line: str = ""
    """The command line."""
    started: float = field(default_factory=time.monotonic)
    """When the evaluation began, on the clock of `time.monotonic`."""

    def under(self, protocol: EvalProtocol) -> EvaluationCommand:
        """The same, measured under a protocol."""
        data = repeated_episodes(self.data, protocol, ()) if protocol.kind == EpisodeProtocol.kind else self.data
        return replace(self, data=data, published=protocol)

    def policy(self, runner: RunnerConfig) -> EvaluatedPolicy:
        """Which weights are evaluated, and where the results go: beside a checkpoint, or below `runner.logger.log_path`.

        Raises:
            ConfigError: there are no weights where `runner.ckpt_path` says.
            CheckpointError: nothing can be written beside them.
        """
        path = runner.ckpt_path
        if self.checkpoint is not None:
            path, policy = str(self.checkpoint.model_file), EvaluatedPolicy.of(self.checkpoint)
        else:
            name = "actor.model as it is, without runner.ckpt_path" if path is None else str(Path(path).expanduser().absolute())
            # Two files of one name are two policies, whose results must not meet.
            weights = "model" if path is None else f"{Path(path).stem}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
            logs = Path(runner.logger.log_path).expanduser().absolute()
            parent = logs / f"{runner.experiment_name}_eval" / weights
            policy = EvaluatedPolicy(name=name, checkpoint_file=None, state={}, parent=parent)
        try:
            files = {} if path is None else weight_sums(path)
        except CheckpointError as error:
            # As in training, a wrong path is a mistake in the configuration.
            raise ConfigError(error.place, error.problem, error.remedy) from error
        _make(policy.parent)
        sys.stderr.write(f"evaluating {policy.name}; starting workers\n")
        model = None if self.checkpoint is None else _own_configuration(self.checkpoint).get("actor", {}).get("model")
        return replace(policy, started=self.started, files=files, command=self.line, published=self.published, model=model)


def parse_evaluation(argv: Sequence[str], *, config_dir: Path, description: str, prog: str | None = None) -> EvaluationCommand:
    """Reads the arguments of an evaluation: a checkpoint or the name of a recipe, then overrides.

    Args:
        argv: the arguments.
        config_dir: where recipes are looked for.
        description: of the app.
        prog: the command as it is typed; None for the name of the script.

    Raises:
        ConfigError: neither or both are named, there is no such checkpoint, or it is damaged, or an override can't be read.
    """
    args = _parser(config_dir, description, prog).parse_intermixed_args(list(argv))
    if args.protocol is not None and args.suite is not None:
        raise ConfigError("--protocol", "a suite has protocols of its own", "Leave out --protocol or --suite.")
    line, started = shlex.join([sys.argv[0], *argv]), time.monotonic()
    published = None if args.protocol is None else read_protocol(args.protocol)
    entries = {} if args.suite is None else read_suite(args.suite)
    checkpoints, overrides = _checkpoints_of(args)
    checkpoint, further = (checkpoints[0] if checkpoints else None), checkpoints[1:]
    if further and args.suite is not None:
        raise ConfigError("--suite", "a suite is of one policy", "Leave it out, or name one checkpoint.")

    def configured(changes: Sequence[str]) -> _Configured:
        if checkpoint is not None:
            data, own = _changed(checkpoint, changes)
        else:
            data, own = _composed(args, config_dir, changes)
        return _of_as_many(data, changes), own

    data, own = configured(overrides)
    if published is not None and published.kind == EpisodeProtocol.kind:
        data = repeated_episodes(data, published, [override.lstrip("+").partition("=")[0] for override in overrides])
    return EvaluationCommand(
        checkpoint=checkpoint,
        data=data,
        own=own,
        # What the command line says holds for every entry.
        suite={name: configured([*changes, *overrides])[0] for name, changes in entries.items()},
        others=[
            EvaluationCommand(checkpoint=each, data=_of_as_many(data, overrides), own=own, line=line, started=started)
            for each, (data, own) in ((each, _changed(each, overrides)) for each in further)
        ],
        published=published,
        line=line,
        started=started,
    )


def _parser(config_dir: Path, description: str, prog: str | None) -> ArgumentParser:
    listed = ", ".join(recipes(config_dir))
    parser = ArgumentParser(prog=prog, description=description, epilog=f"recipes: {listed}" if listed else None)
    named = "a global_step_N folder, or the folder of a run; of several the further ones are compared with the first"
    parser.add_argument("words", nargs="*", metavar="CHECKPOINT|key=value", help=f"{named}; changes to the configuration")
    parser.add_argument(
        "--config-name", help="the recipe to evaluate, in place of a checkpoint; runner.ckpt_path names its weights"
    )
    parser.add_argument("--config-dir", type=Path, default=config_dir, help="where recipes are looked for")
    parser.add_argument("--protocol", type=Path, metavar="FILE", help="repeat the protocol of a summary.json exactly")
    parser.add_argument("--suite", type=Path, metavar="FILE", help="several protocols in one table: a YAML file, a name for each")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    return parser


def _checkpoints_of(args: Any) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints among the words of a command line, none of a recipe, and the overrides.

    Raises:
        ConfigError: neither or both are named, or a checkpoint twice.
    """
    words: list[str] = args.words
    if args.config_name is not None:
        first = words[0] if words else "="
        if "=" not in first and not first.startswith("~"):
            problem = f"expected a checkpoint or a recipe, found both: '{first}' and --config-name {args.config_name}"
            raise ConfigError("CHECKPOINT", problem, f"Leave one out; the weights of a recipe are runner.ckpt_path={first}.")
        return [], words
    # Without a slash a further word that is no file is rather an override without its value.
    named = [word for word in words[1:] if "=" not in word and ("/" in word or Path(word).exists())]
    named = [*(word for word in words[:1] if "=" not in word or Path(word).exists()), *named]
    if not named:
        raise ConfigError("CHECKPOINT", "expected a checkpoint or a recipe, found neither", _WAYS)
    found = [_named_checkpoint(path) for path in named]
    folders = [each.folder for each in found]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ConfigError("CHECKPOINT", f"'{twice}' is named twice", "Name each checkpoint once.")
    return found, [word for word in words if word not in named]


def _composed(args: Any, config_dir: Path, changes: Sequence[str]) -> _Configured:
    """The configuration of a recipe with changes."""
    elsewhere = None if args.config_dir == config_dir else args.config_dir
    composition = compose_app_recipe(config_dir, args.config_name, changes, elsewhere=elsewhere)
    return _without_resuming(composition.data), composition.recipe


def _named_checkpoint(named: str) -> Checkpoint:
    """The checkpoint at a path, which no other run removes from here on."""
    path = Path(named).expanduser().absolute()
    if not path.exists():
        raise ConfigError("CHECKPOINT", f"there is nothing at '{path}'", _WAYS)
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        weights = (
            f" The weights of a recipe are named by --config-name RECIPE runner.ckpt_path={named}." if has_weights(path) else ""
        )
        raise ConfigError("CHECKPOINT", f"'{error.place}': {error.problem}", f"{error.remedy or ''}{weights}".strip()) from error
    hold_checkpoint(checkpoint)
    return checkpoint


def told(report: EvalReport[Any], policy: EvaluatedPolicy) -> str:
    """An evaluation in a few lines: the rates with what they are of, a row for each task, and the files."""
    rates = [f"{name} {value:.1%}" for name, value in report.means.items() if name.startswith("pass@")]
    lines = [f"eval/{report}", *(["  ".join(rates)] if len(rates) > 1 else [])]
    if len(report.rows) > 1:
        lines.append(table(report.rows, report.metric))
    folder = policy.folder(report.protocol)
    lines += [str(path) for path in (folder.transcripts, folder.video, folder.failures, folder.summary) if path.exists()]
    return "\n".join(lines) + "\n"


def _changed(checkpoint: Checkpoint, overrides: Sequence[str]) -> _Configured:
    """The configuration of a checkpoint as it holds here and now, with overrides and without."""
    for override in overrides:
        if "=" not in override:
            raise ConfigError(override, "not an override", _OVERRIDE)
    try:
        own = _own_configuration(checkpoint)
        before, changes = OmegaConf.create(own), OmegaConf.from_dotlist(list(overrides))
        merged = cast("Mapping[str, Any]", OmegaConf.to_container(OmegaConf.merge(before, changes)))
        explicit = flatten(OmegaConf.to_container(changes))
        data, _ = replace_parameters(own, merged, explicit=explicit, schema=task_type_of(merged, own).config)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(" ".join(overrides), " ".join(str(error).split()), _OVERRIDE) from error
    if data["runner"].get("ckpt_path") is not None:
        raise ConfigError("runner.ckpt_path", "a checkpoint is evaluated with its own weights", "Name a recipe with --config-name.")
    return _without_resuming(data), own


def _of_as_many(data: Mapping[str, Any], changes: Sequence[str]) -> Mapping[str, Any]:
    """The configuration without a number for the last evaluation alone, where the changes say otherwise which episodes are played.

    Raises:
        ConfigError: the changes have a number of episodes, and initial states are named, which are another number.
    """
    changed = {change.lstrip("+").partition("=")[0] for change in changes}
    if "data.val_problems" in changed and "data.final_problems" not in changed:
        data = {**data, "data": {**data["data"], "final_problems": None}}
    if not changed & {"env.eval.episodes", "env.eval.init_ids"}:
        return data
    played = data["env"]["eval"]
    named = played.get("init_ids")
    # Not yet read into types: what is no list is refused there.
    count = len(cast("list[object]", named)) if isinstance(named, list) else 0
    if "env.eval.episodes" in changed and count not in (0, played["episodes"]):
        problem = f"{played['episodes']} episodes, and env.eval.init_ids names {count} initial states, each of which is played"
        raise ConfigError("env.eval.episodes", problem, "Leave it out, or set env.eval.init_ids to null.")
    if "env.eval.final_episodes" in changed:
        return data
    return {**data, "env": {**data["env"], "eval": {**played, "final_episodes": None}}}


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
        make_writable(folder)
    except OSError as error:
        problem = f"the evaluation can't be written there ({error.strerror})"
        remedy = "Copy the run to a folder that you may write to, or set runner.logger.log_path for a recipe."
        raise CheckpointError(str(folder), problem, remedy) from error
