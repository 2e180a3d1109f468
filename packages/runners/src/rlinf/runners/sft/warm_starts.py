"""The warm start of a reasoning run: supervised fine-tuning of the same model on the same task, done once and kept.

It may have stages, easy examples first: `sft.before` comes before it, and takes what it does not say from what follows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.config.reading import field_names
from rlinf.core.errors import CheckpointError, ConfigError, below
from rlinf.core.evaluation import canonical_hash
from rlinf.core.protocols import WorkerGroup
from rlinf.core.registry import TASKS
from rlinf.runners.checkpoints.checkpoint import read_checkpoint
from rlinf.runners.checkpoints.run_folder import open_run_folder, run_folder
from rlinf.runners.config.schema import LoggerConfig
from rlinf.runners.config.sections import Section, keys, resolved, subsection
from rlinf.runners.conversations.tool_use import ToolUseConfig
from rlinf.runners.reasoning.evaluation import by_content
from rlinf.runners.reporting.summary import versions
from rlinf.runners.sft.rules import read_sft
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import SFTConfig

if TYPE_CHECKING:
    from rlinf.runners.sft.actor_worker import SFTActor

FOLDER: Final = "warm_starts"
"""Below `runner.logger.log_path`, holds a folder for each warm start that was ever made there."""
BEFORE: Final = "before"
"""The section of the stage before."""
_SECTIONS: Final = ("runner", "data", "actor")
_NOT_OF_SFT: Final = ("temperature", "add_value_head")
"""What the model of a reasoning run may have that learning from examples has no use for."""


def warm_start(source: Section, launch: Callable[[SFTConfig], WorkerGroup[SFTActor]]) -> Path:
    """The checkpoint to start from, which `runner.ckpt_path` can name; made if it is not there yet.

    Args:
        source: the configuration of a reasoning run with a section `sft`.
        launch: starts a group of `SFTActor` where the run's actors will be; called for each stage that is not there.

    Raises:
        ConfigError: the section `sft` has faults.
    """
    cfg = warm_start_config(source)
    made = finished(cfg)
    if made is not None:
        sys.stderr.write(f"warm start: taken from {made}\n")
        return made
    earlier = _before(source)
    if earlier is not None:
        cfg = replace(cfg, runner=replace(cfg.runner, ckpt_path=str(warm_start(earlier, launch))))
    most = "" if cfg.runner.until_loss is None else "at most "
    sys.stderr.write(f"warm start: {most}{cfg.optimizer_steps:,} steps of supervised fine-tuning, kept in {run_folder(cfg).path}\n")
    actors = launch(cfg)
    runner = SFTRunner(cfg=cfg, actor=actors, folder=open_run_folder(cfg))
    runner.init_workers()
    made = runner.run()
    # The actors of the run come to the same devices.
    actors.shutdown()
    return made


def warm_start_config(source: Section) -> SFTConfig:
    """The configuration of a run's warm start: its model, task and seed, and what the section `sft` says.

    The section is laid out as a recipe of supervised fine-tuning (`runner`, `data`, `actor`) and may leave out what the run says.
    The folder is named after everything that the weights depend on, the stages before this one, too.

    Raises:
        ConfigError: the section has faults, or a stage before it; those of stages begin with `before`.
    """
    own = {key: value for key, value in subsection(source, "sft").items() if key != BEFORE}
    run, data, actor = (subsection(source, name) for name in _SECTIONS)
    model = {key: value for key, value in subsection(actor, "model", "actor").items() if key not in _NOT_OF_SFT}
    logger = subsection(run, "logger", "runner")
    log_path = Path(logger.get("log_path", LoggerConfig().log_path)) / FOLDER
    common = {"seed": run.get("seed", 1), "export": False, "logger": {**logger, "log_path": str(log_path)}}
    merged: dict[str, Any] = {
        **own,
        "runner": {"experiment_name": FOLDER, **common, **subsection(own, "runner")},
        "cluster": {},  # where the run's actors are
        "data": {**_of_task(data, subsection(own, "data")), **_tools(source), **subsection(own, "data")},
        "actor": {"model": model, **subsection(own, "actor")},
    }
    # Read twice, as the name of the folder follows from all values, defaults among them.
    digest = _digest(read_sft(merged), earlier=_name_of_stage_before(source))
    return read_sft({**merged, "runner": {**merged["runner"], "experiment_name": digest}})


def _before(source: Section) -> Section | None:
    """The same run, whose warm start is the stage before this one's; None if this is the first."""
    later = subsection(source, "sft")
    if later.get(BEFORE) is None:
        return None
    earlier = subsection(later, BEFORE, "sft")
    inherited = {name: {**subsection(later, name), **subsection(earlier, name)} for name in _SECTIONS}
    return {**source, "sft": {**earlier, **inherited}}


def _name_of_stage_before(source: Section) -> str | None:
    earlier = _before(source)
    if earlier is None:
        return None
    try:
        return warm_start_config(earlier).runner.experiment_name
    except ConfigError as error:
        raise below(BEFORE, error) from error


def _of_task(data: Section, own: Section) -> dict[str, Any]:
    """What a run says of its task, as far as the task of the warm start knows it."""
    kind = own.get("type", data.get("type"))
    known = keys(TASKS.get(kind, place="data.type")) if kind is not None else []
    return {key: value for key, value in {**data, "type": kind}.items() if key in ("type", *known)}


def _tools(source: Section) -> dict[str, Any]:
    """The tools of an agent's run, with which its examples were worked."""
    agent = subsection(source, "agent")
    return {"agent": {key: agent[key] for key in field_names(ToolUseConfig) if key in agent}} if agent else {}


def _digest(cfg: SFTConfig, *, earlier: str | None) -> str:
    """Twelve digits that differ where the weights may differ; values that nobody wrote down count, too."""
    plain = resolved(cfg)
    where = ("experiment_name", "logger", "timeout_s", "interrupt_timeout_s")
    saving = ("save_interval", "save_minutes", "keep_checkpoints", "keep_best")
    runner = {key: value for key, value in plain["runner"].items() if key not in (*where, *saving)}
    data = by_content(plain["data"], cfg.data.task, "train")
    stage = {} if earlier is None else {BEFORE: earlier}
    return canonical_hash({"runner": runner, "data": data, "actor": plain["actor"], "versions": versions(), **stage})


def finished(cfg: SFTConfig) -> Path | None:
    """The last checkpoint of a warm start that ran to its end; None if it did not, or is damaged."""
    folder = run_folder(cfg)
    last = folder.checkpoints / f"global_step_{cfg.runner.max_steps}"
    if cfg.runner.until_loss is not None and folder.summary.exists():  # it may have ended earlier; then a summary tells its end
        last = newest_checkpoint(folder.checkpoints) or last
    try:
        return read_checkpoint(last).folder
    except CheckpointError:
        return None
