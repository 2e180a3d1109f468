"""The warm start of a reasoning run: supervised fine-tuning of the same model on the same task, done once and kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlinf.core.config.reading import field_names
from rlinf.core.errors import CheckpointError
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
_NOT_OF_SFT: Final = ("temperature", "add_value_head")
"""What the model of a reasoning run may have that learning from examples has no use for."""


def warm_start(source: Section, launch: Callable[[SFTConfig], WorkerGroup[SFTActor]]) -> Path:
    """The checkpoint to start from, which `runner.ckpt_path` can name; made if it is not there yet.

    Args:
        source: the configuration of a reasoning run with a section `sft`.
        launch: starts a group of `SFTActor` where the run's actors will be; not called if the warm start is there.

    Raises:
        ConfigError: the section `sft` has faults.
    """
    cfg = warm_start_config(source)
    made = finished(cfg)
    if made is not None:
        sys.stderr.write(f"warm start: taken from {made}\n")
        return made
    sys.stderr.write(f"warm start: {cfg.optimizer_steps:,} steps of supervised fine-tuning, kept in {run_folder(cfg).path}\n")
    runner = SFTRunner(cfg=cfg, actor=launch(cfg), folder=open_run_folder(cfg))
    runner.init_workers()
    return runner.run()


def warm_start_config(source: Section) -> SFTConfig:
    """The configuration of a run's warm start: its model, task and seed, and what the section `sft` says.

    The section is laid out as a recipe of supervised fine-tuning (`runner`, `data`, `actor`) and may leave out what the run says.
    The folder is named after everything that the weights depend on.
    """
    own = subsection(source, "sft")
    run, data, actor = (subsection(source, name) for name in ("runner", "data", "actor"))
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
    digest = _digest(read_sft(merged))
    return read_sft({**merged, "runner": {**merged["runner"], "experiment_name": digest}})


def _of_task(data: Section, own: Section) -> dict[str, Any]:
    """What a run says of its task, as far as the task of the warm start knows it."""
    kind = own.get("type", data.get("type"))
    known = keys(TASKS.get(kind, place="data.type")) if kind is not None else []
    return {key: value for key, value in {**data, "type": kind}.items() if key in ("type", *known)}


def _tools(source: Section) -> dict[str, Any]:
    """The tools of an agent's run, with which its examples were worked."""
    agent = subsection(source, "agent")
    return {"agent": {key: agent[key] for key in field_names(ToolUseConfig) if key in agent}} if agent else {}


def _digest(cfg: SFTConfig) -> str:
    """Twelve digits that differ where the weights may differ; values that nobody wrote down count, too."""
    plain = resolved(cfg)
    where = ("experiment_name", "logger", "timeout_s", "interrupt_timeout_s")
    saving = ("save_interval", "save_minutes", "keep_checkpoints", "keep_best")
    runner = {key: value for key, value in plain["runner"].items() if key not in (*where, *saving)}
    data = by_content(plain["data"], cfg.data.task, "train")
    return canonical_hash({"runner": runner, "data": data, "actor": plain["actor"], "versions": versions()})


def finished(cfg: SFTConfig) -> Path | None:
    """The last checkpoint of a warm start that ran to its end; None if it did not, or is damaged."""
    try:
        checkpoint = read_checkpoint(run_folder(cfg).checkpoints / f"global_step_{cfg.runner.max_steps}")
    except CheckpointError:
        return None
    return checkpoint.folder
