"""From a composed mapping to an `SFTConfig`: choices are made by name, and all faults are reported together."""

from __future__ import annotations

from rlinf.core.config import Provenance, explain
from rlinf.core.config.reading import read
from rlinf.core.registry import TASKS
from rlinf.runners.config.rules import apply
from rlinf.runners.config.sections import Section, expect_task_type, read_actor, read_all, read_merged, resolved, subsection
from rlinf.runners.sft.rules import SFT
from rlinf.runners.sft.schema import SFTActorConfig, SFTConfig, SFTDataConfig, SFTRunnerConfig


def read_sft(data: Section) -> SFTConfig:
    """The typed configuration of supervised fine-tuning.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    expect_task_type(data, "sft")
    parts = read_all(
        data,
        {
            "runner": lambda s: read(SFTRunnerConfig, s, place="runner"),
            "data": _read_data,
            "actor": lambda s: read_actor(s, SFTActorConfig),
        },
        ["cluster"],
    )
    config = SFTConfig(cluster=subsection(data, "cluster"), source=dict(data), **parts)
    apply(config, SFT)
    return config


def explain_sft(cfg: SFTConfig, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`, with where it came from; "" explains all."""
    return explain(resolved(cfg), provenance, key)


def _read_data(section: Section) -> SFTDataConfig:
    return read_merged(SFTDataConfig, section, registry=TASKS, key="type", default=None, into="task", place="data")
