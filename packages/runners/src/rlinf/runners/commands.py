"""The commands that this part brings to `rlinf`, and what every app that trains or evaluates does."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.errors import ConfigError, MissingExtra, RefusedByWorker, UnknownName, each_fault, refuse
from rlinf.core.evaluation import EvalReport
from rlinf.core.installing import install_command
from rlinf.core.protocols import Placement
from rlinf.core.registry import CLUSTERS
from rlinf.runners.checkpoints.run_folder import open_run_folder, run_folder
from rlinf.runners.config.checks import check_chosen, check_evaluation, check_ranks, check_run
from rlinf.runners.config.composition import Composition, compose_file, parse_command_line
from rlinf.runners.config.rules import AUTO
from rlinf.runners.config.schema import RunConfig, TrainingConfig
from rlinf.runners.config.sections import section_of
from rlinf.runners.entry import run_app
from rlinf.runners.evaluation.command import EvaluationCommand, parse_evaluation, told
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.evaluation.tables import PolicyComparison, SuiteReport, table
from rlinf.runners.reporting.progress import NAME_WIDTH
from rlinf.runners.reporting.report.page import write_page
from rlinf.runners.task_types import CheckedEvaluation, StartEvaluation, explain_run, task_type_of


def config(args: Sequence[str]) -> int:
    """Validates a recipe and says where each value comes from: `rlinf config <recipe.yaml> [key=value …] [--explain KEY]`.

    With `--memory` it says instead what weights, gradients and optimizer take on each device.
    """
    parser = _recipe_parser("config", config.__doc__)
    parser.add_argument("--explain", default="", metavar="KEY", help="of this key alone, or of all below it, such as actor.model")
    parser.add_argument("--memory", action="store_true", help="say what weights, gradients and optimizer take on each device")
    given = parser.parse_intermixed_args(list(args))
    composition = compose_file(given.recipe, given.overrides)
    cfg = composition.task_type.read(composition.data)
    said = _memory(cfg) if given.memory else explain_run(cfg, composition.provenance, given.explain)
    sys.stdout.write(said + "\n")
    return 0


def _memory(cfg: RunConfig) -> str:
    from rlinf.runners.config.memory import memory_table

    actor = section_of(cfg, "actor", TrainingConfig)
    if actor is None:
        raise ConfigError("rlinf config --memory", "the recipe trains nothing", "Name one with an actor.")
    with _cluster(cfg.cluster) as cluster:
        placement: Placement = cluster.placement
        return memory_table(actor, {name: placement.get_world_size(name) for name in placement.components})


def train(args: Sequence[str]) -> int:
    """Runs a recipe, of whichever task type it is: `rlinf train <recipe.yaml> [key=value …]`."""
    parser = _recipe_parser("train", train.__doc__)
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    given = parser.parse_intermixed_args(list(args))
    run_app(lambda argv: run_recipe(compose_file(given.recipe, argv)), given.overrides)
    return 0


def train_app(argv: Sequence[str], *, config_dir: Path, default: str, description: str) -> int:
    """What a training app does with its arguments: options, then overrides such as `runner.max_steps=20`.

    Args:
        argv: the arguments.
        config_dir: where recipes are looked for.
        default: the recipe if none is named.
        description: of the app.
    """
    composition, key = parse_command_line(argv, config_dir=config_dir, default=default, description=description)
    if key is None:
        return run_recipe(composition)
    cfg = composition.task_type.read(composition.data)
    sys.stdout.write(explain_run(cfg, composition.provenance, key) + "\n")
    return 0


def evaluate(args: Sequence[str]) -> int:
    """Evaluates a checkpoint or a recipe, without training: `rlinf eval <checkpoint or recipe.yaml> [key=value …]`."""
    named = Path(args[0]) if args else Path()
    recipe = named.suffix == ".yaml"
    if recipe and not named.is_file():
        raise ConfigError("recipe", f"there is no file '{named}'", "Name the file of a recipe, or a checkpoint.")
    argv = ["--config-dir", str(named.parent), "--config-name", named.stem, *args[1:]] if recipe else args
    run_app(lambda argv: eval_app(argv, config_dir=named.parent, description=evaluate.__doc__ or "", prog="rlinf eval"), argv)
    return 0


def eval_app(argv: Sequence[str], *, config_dir: Path, description: str, prog: str | None = None) -> int:
    """What an evaluating app does with its arguments, which are those of `parse_evaluation`.

    Raises:
        ConfigError: see there; or the task type is not evaluated without training.
    """
    command = parse_evaluation(argv, config_dir=config_dir, description=description, prog=prog)
    # All are read before the first begins, so that a fault of the last one costs nothing.
    entries = _entries(command)
    for other in command.others:
        _entries(other)
    policy, reports = _evaluated(command, entries, named=bool(command.others))
    if command.suite:
        suite = SuiteReport(reports=reports)
        sys.stdout.write(f"suite {suite.hash}\n{table(suite.rows, next(iter(reports.values())).metric)}\n{suite.write(policy)}\n")
    if command.others:
        measured = [(policy, reports[""])]
        for other in (each.under(reports[""].protocol) for each in command.others):
            its, found = _evaluated(other, _entries(other), named=True)
            measured.append((its, found[""]))
        compared = PolicyComparison(measured=measured)
        sys.stdout.write(f"{compared}\n{compared.write()}\n")
    return 0


def _evaluated(
    command: EvaluationCommand, entries: Mapping[str, tuple[StartEvaluation, Any]], *, named: bool
) -> tuple[EvaluatedPolicy, dict[str, EvalReport[Any]]]:
    """Evaluates one policy: which it is, and the report of each entry; with `named` what is printed says which it is, too."""
    policy = command.policy(next(iter(entries.values()))[1].runner)
    reports: dict[str, EvalReport[Any]] = {}
    for name, (start, cfg) in entries.items():
        with _cluster(cfg.cluster) as cluster:
            evaluation = start(cfg, cluster, policy)
            evaluation.init_workers()
            reports[name] = evaluation.run()
        whose = policy.name if named else name
        sys.stdout.write((f"{whose}: " if whose else "") + told(reports[name], policy))
    return policy, reports


def _entries(command: EvaluationCommand) -> dict[str, tuple[StartEvaluation, Any]]:
    """What is evaluated, by the name of its entry in a suite, or by ""; refused together, each fault with its entry."""
    ours, faults = command.checkpoint is not None, list[ConfigError]()
    found: dict[str, tuple[StartEvaluation, Any]] = {}
    for name, data in (command.suite or {"": command.data}).items():
        try:
            found[name] = _evaluable(data, command.own, ours)
        except ConfigError as error:
            named = f"{name}: " if name else ""
            faults += [type(fault)(f"{named}{fault.place}", fault.problem, fault.remedy) for fault in each_fault(error)]
    refuse(faults)
    first, *others = found
    for name in others:
        path, named = found[first][1].runner.ckpt_path, found[name][1].runner.ckpt_path
        if named != path:
            problem = f"a suite is of one policy: '{first}' evaluates {path}, found {named}"
            raise ConfigError(
                f"{name}: runner.ckpt_path", problem, "Evaluate each by itself, the second with --protocol of the first."
            )
    return found


def _evaluable(data: Mapping[str, Any], own: Mapping[str, Any] | None, of_checkpoint: bool) -> tuple[StartEvaluation, Any]:
    """What starts an evaluation, and its typed configuration."""
    task_type = task_type_of(data, own)
    if task_type.evaluation is None:
        raise ConfigError("runner.task_type", f"'{task_type.name}' is evaluated by training only", "Train it for its numbers.")
    cfg = task_type.read(data)
    check_evaluation(cfg, of_checkpoint=of_checkpoint)
    if isinstance(task_type.evaluation, CheckedEvaluation):
        return task_type.evaluation.start, task_type.evaluation.configured(cfg)
    return task_type.evaluation, cfg


def run_recipe(composition: Composition) -> int:
    """Reads a recipe as its task type says, refuses what could not begin, and runs the loop on a cluster."""
    task_type = composition.task_type
    cfg = task_type.read(composition.data)
    check_run(cfg)
    planned = run_folder(cfg)
    with _cluster({**cfg.cluster, "log_dir": str(planned.path)}) as cluster:
        if cfg.cluster.get("component_placement") == AUTO:
            check_chosen(task_type.read, composition.data, cluster.config.component_placement)
        check_ranks(cfg, cluster.placement)
        # Last, as it reads all problems, or starts a simulator.
        if task_type.check is not None:
            task_type.check(cfg)
        # Only here, so that what is refused above leaves no folder behind.
        folder = open_run_folder(cfg, planned)
        sys.stderr.write(f"{cluster.placement.describe()}\nwriting to {folder.path}; starting workers\n")
        try:
            loop = task_type.start(cfg, cluster, folder)
            loop.init_workers()
        except (ConfigError, RefusedByWorker):
            folder.discard()
            raise
        loop.run()
    # Loops of others may log nothing.
    if folder.metrics.is_file():
        write_page([folder.path], folder.report)
        sys.stderr.write(f"{'report':{NAME_WIDTH}}{folder.report}\n")
    return 0


def _cluster(section: Mapping[str, Any]) -> Any:
    """The cluster of a run.

    Raises:
        MissingExtra: nobody has installed what starts workers, of which only this part is sure that a run needs it.
    """
    try:
        made = CLUSTERS.get("scheduler", place="cluster")
    except UnknownName as error:
        remedy = f"Install rlinf-scheduler: {install_command('rlinf-scheduler')}."
        raise MissingExtra("cluster", "nothing that is installed starts workers", remedy) from error
    return made(cluster_cfg=section)


def _recipe_parser(command: str, description: str | None) -> ArgumentParser:
    """Of a command that names a recipe first."""
    parser = ArgumentParser(prog=f"rlinf {command}", description=description)
    parser.add_argument("recipe", type=Path, help="the file of a recipe")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="changes to it, such as runner.max_steps=20")
    return parser
