"""A task type is a kind of run: its configuration, the rules across its sections, its workers and its loop.

Ours (`embodied`, `embodied_off_policy`, `embodied_sft`, `reasoning`, `agent`, `sft`, `reward_model`) are registered as any other
package registers its own, by an entry point of the group `rlinf.runners`; a script uses the decorator:

    @register_task_type("counting", config=CountingConfig)
    def counting(cfg: CountingConfig, cluster: Cluster, folder: RunFolder) -> CountingLoop:
        return CountingLoop(cfg, launch(Counter, cfg, cluster, "counter"), folder)

`runner.task_type: counting` in a recipe then chooses it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from rlinf.core.config import Provenance, explain
from rlinf.core.errors import ConfigError, UnknownName, error_text
from rlinf.core.evaluation import EvalReport
from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.core.registry import Registry
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.rules import Rule, apply, work_can_move
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.config.sections import (
    Section,
    inherited_names,
    keyed_fields,
    meaning,
    read_sections,
    resolved,
    section_type,
    subsection,
)
from rlinf.runners.evaluation.policy import EvaluatedPolicy

C = TypeVar("C", bound=RunConfig)
W = TypeVar("W", bound=Worker)


class Loop(Protocol):
    """The loop of a run, on workers that are launched."""

    def init_workers(self) -> None:
        """Builds what the workers need, and restores the checkpoint that the run resumes from."""
        ...

    def run(self) -> object:
        """Runs to the end."""
        ...


class Evaluation(Protocol):
    """An evaluation without training, on workers that are launched."""

    def init_workers(self) -> None:
        """Builds what the workers need, and loads the weights."""
        ...

    def run(self) -> EvalReport[Any]:
        """Plays the protocol, and writes the report."""
        ...


Start = Callable[[Any, Cluster, RunFolder], Loop]
"""Launches the workers of a configuration on a cluster; the loop writes into the folder of the run."""
StartEvaluation = Callable[[Any, Cluster, EvaluatedPolicy], Evaluation]
"""Launches the workers of an evaluation on a cluster; the results go where the policy says."""


@dataclass(frozen=True, slots=True)
class CheckedEvaluation:
    """A `StartEvaluation` of which something can be refused before a cluster starts."""

    configured: Callable[[Any], Any]
    """Refuses what can be known of an evaluation, and gives its configuration from that of a run."""
    start: StartEvaluation
    """Launches the workers of that configuration."""

    def __call__(self, cfg: Any, cluster: Cluster, policy: EvaluatedPolicy) -> Evaluation:
        return self.start(self.configured(cfg), cluster, policy)


@dataclass(frozen=True)
class TaskType:
    """A kind of run."""

    name: str
    """That of `runner.task_type`."""
    config: type[RunConfig]
    """Its sections."""
    start: Start
    """Its workers and its loop."""
    rules: Sequence[Rule[Any]] = ()
    """What it refuses across sections."""
    evaluation: StartEvaluation | None = None
    """Its workers without a trainer; None where nothing but training is known."""
    check: Callable[[Any], None] | None = None
    """Refuses what can be known from files and simulators, before a cluster starts; None where parts check themselves."""
    inferred: bool = True
    """Whether a recipe that names no task type can be of this one; not where its sections are those of another one, too."""

    def __post_init__(self) -> None:
        # A registry calls an owner by these: the decorated function, to which the entry point of a package points, too.
        object.__setattr__(self, "__module__", self.start.__module__)
        object.__setattr__(self, "__qualname__", getattr(self.start, "__qualname__", self.name))

    def read(self, data: Section) -> Any:
        """The typed configuration, to which no rule objects; `ConfigError` with one line per fault otherwise."""
        return read_run(self.config, data, task_type=self.name, rules=self.rules)


TASK_TYPES: Final[Registry[TaskType]] = Registry("task type", "rlinf.runners")


def register_task_type(
    name: str,
    *,
    config: type[RunConfig],
    rules: Sequence[Rule[Any]] = (),
    evaluation: StartEvaluation | None = None,
    check: Callable[[Any], None] | None = None,
    inferred: bool = True,
) -> Callable[[Start], TaskType]:
    """The decorator of the function that launches the workers of a kind of run and returns its loop.

    Args:
        name: that of `runner.task_type`.
        config: its sections, see `rlinf.runners.config.schema`.
        rules: what it refuses across sections, see `rlinf.runners.config.rules`.
        evaluation: launches the workers of an evaluation without training; None where there is none.
        check: refuses what can be known from files and simulators, before a cluster starts; None where parts check themselves.
        inferred: whether a recipe that names no task type can be of this one.
    """

    def claim(start: Start) -> TaskType:
        return TASK_TYPES.register(name, TaskType(name, config, start, rules, evaluation, check, inferred))

    return claim


def launch(
    worker: type[W],
    cfg: object,
    cluster: Cluster,
    name: str,
    *,
    component: str = "",
    arguments: Sequence[Any] = (),
    **options: Any,
) -> WorkerGroup[W]:
    """Starts a group of workers where `cluster.component_placement` places them.

    Args:
        worker: their class, which is given the configuration.
        cfg: of the run.
        cluster: where.
        name: the group's name.
        component: under which name it is placed; by default that of the group.
        arguments: what its constructor is given after the configuration.
        options: what else the cluster's `launch` knows, such as `supervisor`.
    """
    strategy = cluster.placement.get_strategy(component or name)
    return worker.create_group(cfg, *arguments).launch(cluster, name=name, placement_strategy=strategy, **options)


def launch_all(
    cfg: object,
    cluster: Cluster,
    workers: Mapping[str, type[Worker]],
    *,
    supervisors: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Starts groups whose processes start and import at the same time, each placed as the component of its name.

    Args:
        cfg: of the run, which all workers are given.
        cluster: where.
        workers: by name, the class of each group.
        supervisors: by name, the option `supervisor` with which a group is launched; the others are without one.
        arguments: by name, what the constructors of a group are given after the configuration.

    Returns:
        The groups by name, as the runner takes them.
    """
    supervised, given = supervisors or {}, arguments or {}
    options: dict[str, Any] = {name: {"supervisor": supervised[name]} if name in supervised else {} for name in workers}
    for name, worker in workers.items():
        cluster.prepare(worker, name=name, placement_strategy=cluster.placement.get_strategy(name), **options[name])
    return {
        name: launch(worker, cfg, cluster, name, arguments=given.get(name, ()), **options[name]) for name, worker in workers.items()
    }


def read_run(cls: type[C], data: Section, *, task_type: str, rules: Sequence[Rule[C]] = ()) -> C:
    """The typed configuration of a run.

    Raises:
        ConfigError: one line per fault, each with its dotted path; or it is the configuration of another kind of run.
    """
    found = _written(data)
    if found not in (None, task_type):
        raise ConfigError(
            "runner.task_type", f"expected '{task_type}', found {found!r}", "Run it with rlinf train, or leave it out."
        )
    config = read_sections(cls, data, task_type=task_type)
    apply(config, (work_can_move, *rules))
    return config


def task_type_of(data: Section, own: Section | None = None) -> TaskType:
    """Which kind of run a configuration describes: what `runner.task_type` says, or else what its sections show.

    A task type that can't be imported is left out of the second, with a warning: it must not stop runs of other types.

    Args:
        data: the configuration.
        own: what it was before somebody changed it, whose sections count: one that was added by mistake makes no other kind of run.

    Raises:
        UnknownName: nobody registered it.
        MissingExtra: it is named, and needs a module that is not installed.
    """
    written = _written(data)
    if written is not None:
        return TASK_TYPES.get(cast("str", written), place="runner.task_type")

    shown = data if own is None else own

    def fit(task_type: TaskType) -> tuple[int, int, int]:
        known = {field.name for field in keyed_fields(task_type.config)}
        strange = sum(len(set(subsection(shown, name)) - _keys(task_type.config, name)) for name in known & set(shown))
        # A section that a task type does not know counts more than a key, and that more than a section that is left out.
        return len(set(shown) - known), strange, len(known - set(shown))

    return min((each for each in _importable() if each.inferred), key=fit)


def explain_run(cfg: RunConfig, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`, with where it came from, and what a single value means; "" explains all."""
    inherited: dict[str, str] = {}
    for field in keyed_fields(type(cfg)):
        inner, _ = section_type(type(cfg), field.name)
        if inner is not None:
            for name, (other, names) in inherited_names(inner, subsection(cfg.source, field.name), field.name).items():
                inherited |= {f"{field.name}.{name}.{each}": f"as {field.name}.{other}.{each}" for each in names}
    try:
        said, means = explain(resolved(cfg), {**inherited, **provenance}, key), meaning(cfg, key)
    except UnknownName as error:
        if not key.startswith("cluster."):
            raise
        # The cluster reads this section itself: its other keys are not known here.
        raise UnknownName(key, "the recipe does not set it", f"{error.remedy} Other keys have the cluster's defaults.") from None
    return f"{said}\n  {means}" if means and "\n" not in said else said


def _importable() -> Iterator[TaskType]:
    """The installed task types, but for those of packages that can't be imported; a warning names these."""
    for name in TASK_TYPES.names():
        try:
            yield TASK_TYPES.get(name)
        # Whatever a module of another project raises when it is imported.
        except Exception as error:  # noqa: BLE001
            problem = error_text(error)
            warnings.warn(f"the task type '{name}' ({TASK_TYPES.owner(name)}) is left out: {problem}", stacklevel=2)


def _keys(config: type[RunConfig], name: str) -> set[str]:
    """What a section of a task type may hold, as far as its fields say."""
    inner, _ = section_type(config, name)
    return {field.name for field in keyed_fields(inner)} if inner is not None else set()


def _written(data: Section) -> object:
    runner: object = data.get("runner")
    return cast("Mapping[str, object]", runner).get("task_type") if isinstance(runner, Mapping) else None
