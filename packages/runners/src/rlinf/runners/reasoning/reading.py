"""From a composed mapping to a `ReasoningConfig`: choices are made by name, and all faults are reported together."""

from __future__ import annotations

from rlinf.core.config import Provenance, explain
from rlinf.core.config.reading import read
from rlinf.core.errors import ConfigError
from rlinf.core.registry import GENERATORS, REWARDS, TASKS
from rlinf.runners.config.rules import apply, below
from rlinf.runners.config.sections import (
    Section,
    expect_task_type,
    read_actor,
    read_algorithm,
    read_all,
    read_merged,
    resolved,
    subsection,
)
from rlinf.runners.reasoning.rules import REASONING
from rlinf.runners.reasoning.schema import (
    DataConfig,
    GenerationConfig,
    ReasoningActorConfig,
    ReasoningAlgorithmConfig,
    ReasoningConfig,
    ReasoningEvalConfig,
    ReasoningRunnerConfig,
    ReferenceConfig,
    RewardConfig,
)


def read_reasoning(data: Section) -> ReasoningConfig:
    """The typed configuration of a reasoning run.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    expect_task_type(data, "reasoning")
    parts = read_all(
        data,
        {
            "runner": lambda s: read(ReasoningRunnerConfig, s, place="runner"),
            "data": _read_data,
            "rollout": _read_rollout,
            "reward": _read_reward,
            "reference": lambda s: read(ReferenceConfig, s, place="reference"),
            "actor": lambda s: read_actor(s, ReasoningActorConfig),
            "algorithm": lambda s: read_algorithm(s, ReasoningAlgorithmConfig, adv_type="grpo", loss_type="ppo_clip"),
            "eval": lambda s: read(ReasoningEvalConfig, s, place="eval"),
        },
        ["cluster", "sft"],
    )
    sft = None if data.get("sft") is None else subsection(data, "sft")
    config = ReasoningConfig(cluster=subsection(data, "cluster"), sft=sft, source=dict(data), **parts)
    apply(config, [*REASONING, _warm_start, _gate])
    return config


def explain_reasoning(cfg: ReasoningConfig, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`, with where it came from; "" explains all."""
    return explain(resolved(cfg), provenance, key)


def _read_data(section: Section) -> DataConfig:
    return read_merged(DataConfig, section, registry=TASKS, key="type", default=None, into="task", place="data")


def _read_rollout(section: Section) -> GenerationConfig:
    return read_merged(
        GenerationConfig,
        section,
        registry=GENERATORS,
        key="rollout_backend",
        default="hf",
        into="generator",
        place="rollout",
    )


def _read_reward(section: Section) -> RewardConfig:
    return read_merged(
        RewardConfig, section, registry=REWARDS, key="reward_type", default="exact_match", into="reward", place="reward"
    )


def _warm_start(config: ReasoningConfig) -> ConfigError | None:
    """The section `sft` is a configuration of its own, which would otherwise be read when the cluster is up."""
    from rlinf.runners.sft.warm_start import warm_start_config  # imports this package

    try:
        if config.sft is not None:
            warm_start_config(config.source)
    except ConfigError as error:
        return below("sft", error)
    return None


def _gate(config: ReasoningConfig) -> ConfigError | None:
    try:
        config.actor.build_gate()
    except ConfigError as error:
        return error
    return None
