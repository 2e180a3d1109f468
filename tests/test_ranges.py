"""Every number of every configuration has a range: NaN, −1 and absurd values are refused by name, or listed here with the reason.

Whatever is registered is found by itself, so that a new field without a range fails here.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union

import pytest

from rlinf.core.config import read
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.registry import ADVANTAGES, GATES, GENERATORS, LOSSES, MODELS, OBJECTIVES, REWARDS, TASKS, TRAINERS, WEIGHT_SYNCS
from rlinf.runners.config import schema
from rlinf.runners.embodied import algorithm as embodied_algorithm
from rlinf.runners.embodied import schema as embodied
from rlinf.runners.embodied_sft import schema as embodied_sft
from rlinf.runners.off_policy import schema as off_policy
from rlinf.runners.reasoning import schema as reasoning
from rlinf.runners.sft import schema as sft

TINY = {"preset": "tiny"}
TRAINS = {"trainer": None, "model": schema.ModelSection(model_type="x", config=typing.cast("Any", None)), "global_batch_size": 4}
SYNCS = {"weight_syncer": schema.WeightSyncSection(sync=typing.cast("Any", None))}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("pi0", "pi05", "openvla", "openvla_oft", "gr00t", "causal_lm", "vlm", "sequence_reward"), TINY),
    **dict.fromkeys(("CausalLMConfig", "SequenceRewardConfig"), TINY),
    "reward_model": {"model": TINY},
    "yes_no": {"model": TINY},
    "grpo_video": {"advantage_mode": "frame"},
    "disk": {"folder": "weights"},
    "openai": {"base_url": "http://127.0.0.1/v1", "model": "m"},
    "dataset": {"path": "problems.jsonl"},
    "reasoning_gym": {"dataset": "chain_sum"},
    "verifiers": {"taskset": "mine"},
    "composite": {"parts": {"right": {"reward": "exact_match"}}},
    "overlong": {"max_length": 8, "cache": 4},
    "RunnerConfig": {"experiment_name": "x", "max_steps": 2},
    "ReasoningRunnerConfig": {"experiment_name": "x", "max_steps": 2},
    "EmbodiedRunnerConfig": {"experiment_name": "x", "max_steps": 2},
    "SFTRunnerConfig": {"experiment_name": "x", "max_steps": 2},
    "FineTuningRunnerConfig": {"experiment_name": "x", "max_steps": 2},
    "DataCollectionConfig": {"recorder": None},
    "DemonstrationsConfig": {"dataset": None},
    "DemoBufferConfig": {"dataset": None},
    "CoTrainingConfig": {"dataset": None},
    "TrainEnvConfig": {"env_type": "x", "init_params": None, "total_num_envs": 1, "max_steps_per_rollout_epoch": 1},
    "EvalEnvConfig": {"env_type": "x", "init_params": None, "total_num_envs": 1},
    "PublishingConfig": {**TRAINS, **SYNCS},
    "ActorConfig": {**TRAINS, **SYNCS},
    "SFTActorConfig": TRAINS,
    "ReasoningActorConfig": {**TRAINS, **SYNCS},
    "AlgorithmConfig": {"advantage": None, "loss": None},
    "OffPolicyAlgorithmConfig": {"objective": None},
    "ReasoningAlgorithmConfig": {"advantage": None, "loss": None},
    "EmbodiedAlgorithmConfig": {"advantage": None, "loss": None, "filter_rewards": True, "rewards_lower_bound": -5.0},
    "DataConfig": {"type": "x", "task": None, "rollout_batch_size": 4},
    "SFTDataConfig": {"type": "x", "task": None},
    "PairsDataConfig": {"type": "x", "task": None},
    "GenerationConfig": {"generator": None, "sampling_params": {"max_new_tokens": 4}},
    "RewardConfig": {"reward": None},
    "OverlongConfig": {"max_length": 8, "cache": 4},
    "SamplingConfig": {"max_new_tokens": 4},
    "DAggerConfig": {"episodes": 4},
    "RealTimeChunking": {"delay": 0, "execution_horizon": 2},
    "CorrectionConfig": {"geometric_low": 0.5, "geometric_high": 2.0},
}
"""What has no default, or none that goes with the others."""

REWARD = "a reward may be any number, and below 0 a penalty"
REWARDED = (
    "correct",
    "incorrect",
    "format_score",
    "min_val",
    "max_val",
    "reward_scale",
    "success",
    "rewards_lower_bound",
    "rewards_upper_bound",
)
BELOW_ZERO = {
    "seed": "any whole number names a stream of random numbers",
    "logstd_init": "a logarithm",
    "target_entropy": "the entropy of a density may be below 0",
    "logstd_range": "logarithms",
    "clip_log_ratio_min": "a logarithm",
    "max_penalty": "the least reward, so that it is below 0",
    "until_loss": "the loss of a density may be below 0",
    **dict.fromkeys(REWARDED, REWARD),
}
"""Why −1 may be accepted, by the last part of the key."""

ABSURD = 1e30
BOUND = "a bound so far away is none"
WEIGHT = "the weight of a term against others; a loss that overflows is reported by the trainer"
LARGE = {
    **dict.fromkeys(("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "clip_log_ratio_low", "clip_log_ratio_high"), BOUND),
    **dict.fromkeys(("clip_rho", "clip_c", "clip_pg_rho", "value_clip", "huber_delta", "behave_weight_threshold"), BOUND),
    **dict.fromkeys(("high", "geometric_high", "clip_grad", "opsm_delta", "until_loss"), BOUND),
    **dict.fromkeys(("entropy_bonus", "kl_beta", "reinpp_kl_beta", "value_loss_coef", "tau_pos", "tau_neg"), WEIGHT),
    **dict.fromkeys(("tau", "c1_pos", "c1_neg", "c2_pos", "c2_neg"), WEIGHT),
    **dict.fromkeys(("qa_accuracy", "think_format", "answer_format", "divisor"), WEIGHT),
    "eps": "added to a deviation: so much of it makes all advantages 0, which the metrics show",
    **dict.fromkeys(REWARDED, REWARD),
}
"""Why 10³⁰ may be accepted, by the last part of the key. Whole numbers are below 2⁶³, and count what takes time or memory."""


WHOLE = (
    *("RunConfig", "_ExportingConfig", "PlayedConfig", "EmbodiedConfig", "EmbodiedSFTConfig", "OffPolicyConfig", "ReasoningConfig"),
    *("FineTuningConfig", "SFTConfig", "RewardModelConfig", "TrainingConfig"),
)


def registered() -> Iterator[tuple[str, type[Any]]]:
    for registry in (ADVANTAGES, LOSSES, OBJECTIVES, REWARDS, MODELS, TRAINERS, WEIGHT_SYNCS, GENERATORS, TASKS, GATES):
        for name in registry.names():
            item = registry.get(name)
            if registry.owner(name).startswith("rlinf.") and dataclasses.is_dataclass(item):
                yield name, typing.cast("type[Any]", item)


def sections() -> Iterator[tuple[str, type[Any]]]:
    for module in (schema, embodied_algorithm, embodied, embodied_sft, off_policy, reasoning, sft):
        for name, item in vars(module).items():
            ours = dataclasses.is_dataclass(item) and item.__module__ == module.__name__
            if ours and not name.endswith("Section") and name not in WHOLE:
                yield name, typing.cast("type[Any]", item)
    yield "SamplingConfig", SamplingConfig


CONFIGS = {**dict(registered()), **dict(sections())}


def numbers(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of each number of a dataclass, in sections within it, too; with one for the entries of a tuple."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        for hint in members(hints[field.name]):
            if hint in (int, float):
                yield (*path, field.name), hint
            elif typing.get_origin(hint) is tuple and typing.get_args(hint)[0] in (int, float):
                yield (*path, field.name, "0"), typing.get_args(hint)[0]
            elif dataclasses.is_dataclass(hint):
                yield from numbers(typing.cast("type[Any]", hint), (*path, field.name))


def members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def with_value(cls: type[Any], name: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The configuration with one number changed; of a tuple with a fixed length, all entries but the first keep their default."""
    data: dict[str, Any] = dict(NEEDED.get(name, {}))
    section, kind = data, cls
    *parents, last = path
    if last == "0":
        *parents, last = parents
        default = next(f.default for f in dataclasses.fields(inner(cls, parents)) if f.name == last)
        value = [value, *default[1:]] if isinstance(default, tuple) else [value]
    for parent in parents:
        section[parent] = dict(NEEDED.get(inner(kind, [parent]).__name__, {}))
        section, kind = section[parent], inner(kind, [parent])
    section[last] = value
    return data


def inner(cls: type[Any], path: list[str] | tuple[str, ...]) -> type[Any]:
    for name in path:
        found = next(hint for hint in members(typing.get_type_hints(cls)[name]) if dataclasses.is_dataclass(hint))
        cls = typing.cast("type[Any]", found)
    return cls


def key_of(path: tuple[str, ...]) -> str:
    return ".".join(part for part in path if part != "0")


CASES = [(name, path, hint) for name, cls in CONFIGS.items() for path, hint in numbers(cls)]


def fault(name: str, path: tuple[str, ...], value: Any) -> str:
    """What is said about a value; "" if it is accepted."""
    try:
        read(CONFIGS[name], with_value(CONFIGS[name], name, path, value), place=name)
    except ConfigError as error:
        return str(error)
    return ""


def accepted(value: float, kinds: tuple[type, ...] = (int, float)) -> list[str]:
    """The keys that take a value."""
    return [f"{name}.{key_of(path)}" for name, path, hint in CASES if hint in kinds and not fault(name, path, value)]


def test_there_are_many_numbers() -> None:
    assert len(CASES) > 300
    assert len(CONFIGS) > 60


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_needed_can_be_read(name: str) -> None:
    assert isinstance(read(CONFIGS[name], NEEDED.get(name, {}), place=name), CONFIGS[name])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**63])
def test_no_number_is_infinite_or_none(value: float) -> None:
    assert accepted(value) == []


def test_numbers_below_zero() -> None:
    assert [key for key in accepted(-1) if key.rpartition(".")[2] not in BELOW_ZERO] == []


def test_absurd_numbers() -> None:
    assert [key for key in accepted(ABSURD, (float,)) if key.rpartition(".")[2] not in LARGE] == []


@pytest.mark.parametrize("value", [math.nan, -1, ABSURD])
def test_who_refuses_names_the_key(value: float) -> None:
    told = [(f"{name}.{key_of(path)}", fault(name, path, value)) for name, path, _ in CASES]
    # Of two bounds, one stands for both.
    assert [(key, text) for key, text in told if text and key.rpartition(".")[2].removesuffix("_high") not in text] == []


def test_no_exception_is_idle() -> None:
    assert set(BELOW_ZERO) == {key.rpartition(".")[2] for key in accepted(-1)}
    assert set(LARGE) == {key.rpartition(".")[2] for key in accepted(ABSURD, (float,))}
