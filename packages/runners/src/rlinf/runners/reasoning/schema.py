"""The configuration of a reasoning run, section by section; YAML holds only what a run changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from rlinf.core.capabilities import HasCasting, HasFingerprint, HasPrecision, PacksRows
from rlinf.core.config import expect_range, expect_seconds
from rlinf.core.declarations import needs_of
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import HOTTEST, GeneratorConfig, SamplingConfig
from rlinf.core.language.problems import Problem, TaskConfig
from rlinf.core.protocols import Advantage, Loss, Reward, WeightSync
from rlinf.core.registry import ADVANTAGES, GENERATORS, LOSSES, REWARDS, TASKS
from rlinf.core.rewards import SampleReward
from rlinf.runners.checkpoints.run_folder import resume_folder
from rlinf.runners.config.schema import (
    ActorConfig,
    AlgorithmConfig,
    ModelSection,
    ReferenceConfig,
    RunConfig,
    RunnerConfig,
    chosen,
    not_negative,
    positive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningRunnerConfig(RunnerConfig):
    """`runner`."""

    transcripts: int = 2
    """For how many problems of each iteration responses are written to `transcripts.jsonl`; those of evaluations are all
    written."""
    export: bool = True
    """Whether the last checkpoint gets `actor/huggingface`: model and tokenizer as transformers reads them, adapters merged."""

    def __post_init__(self) -> None:
        RunnerConfig.__post_init__(self)
        not_negative(transcripts=self.transcripts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """`data`; its section also holds the fields of the task."""

    type: str
    """A registered task."""
    task: TaskConfig = field(metadata=chosen(TASKS, "type"))
    """The task's own fields."""
    rollout_batch_size: int
    """Problems in one iteration."""
    val_problems: int = 128
    """Problems of one evaluation, the first of the validation split."""
    final_problems: int | None = None
    """Problems of the last evaluation, which the summary reports; null takes `val_problems`."""
    shuffle: bool = True
    """Whether each pass over the training problems has an order of its own."""
    max_prompt_length: int | None = None
    """Tokens of the longest prompt, those of pictures among them; null for as many as leave room for
    `rollout.sampling_params.max_new_tokens` in what the generator can hold."""
    filter_overlong_prompts: bool = True
    """Whether problems with longer prompts are left out, and counted as `data/overlong_prompts`; otherwise the run is refused,
    and the error names the first one with its file and line."""

    def __post_init__(self) -> None:
        positive(
            rollout_batch_size=self.rollout_batch_size,
            val_problems=self.val_problems,
            final_problems=self.final_problems,
            max_prompt_length=self.max_prompt_length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """`rollout`; its section also holds the fields of the generator."""

    rollout_backend: str = "hf"
    """A registered generator."""
    generator: GeneratorConfig = field(metadata=chosen(GENERATORS, "rollout_backend"))
    """The generator's own fields."""
    sampling_params: SamplingConfig
    """How tokens are drawn; without `stop_token_ids` a response ends with the tokenizer's end, or any that the model's
    `generation_config.json` names."""
    precision: Literal["fp32", "bf16"] | None = None
    """The type of the rollout's weights, to which the actor's are cast before they are sent; null for `actor.model.precision`, in
    which the actor computes."""
    group_size: int = 8
    """Responses to each problem; they form a group."""
    max_lag: int = 0
    """By how many weight updates a token may be older than the weights that it trains. The rollout runs ahead by that many
    iterations. 0 is synchronous."""
    oversample: float = 1.0
    """How many times as many groups are begun as are needed. When enough have ended, the rest are aborted, and come first in the
    next iteration, where they are not aborted again. Which groups end first depends on the engine: with `hf` the shorter ones,
    and the run can be repeated; with others only 1 is sure to give the same run again."""
    partial_lag: int = 0
    """By how many more weight updates than `max_lag` a token may be older in a group that was aborted (`oversample`). Such groups
    continue from the tokens that they have, unless these would be older still when they are trained on. `max_lag` + 1 is enough
    for all; with 0 they begin again (single responses only if the weights have changed). Episodes of agents are suspended: turns
    are cut and continued later, and running calls of tools continue meanwhile. After a restart from a checkpoint responses
    continue exactly, and episodes begin again; `rollout/discarded_tokens` counts the tokens that this costs."""
    max_restarts: int = 3
    """How often each rollout worker whose process ends unexpectedly is restarted; its samples are generated anew."""

    def __post_init__(self) -> None:
        positive(group_size=self.group_size)
        not_negative(max_lag=self.max_lag, partial_lag=self.partial_lag, max_restarts=self.max_restarts)
        expect_range("oversample", self.oversample, 1.0, 2.0)

    @property
    def admitted_lag(self) -> int:
        """By how many weight updates any trained token may be older than the weights that it trains."""
        return self.max_lag + self.partial_lag


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongConfig:
    """`reward.overlong`: a penalty that grows over the last tokens before a limit; `rlinf.rewards` named `overlong`, in tokens."""

    max_length: int
    """From how many tokens on the whole penalty is due."""
    cache: int
    """Over how many tokens before that the penalty grows."""
    weight: float = 1.0
    """The full penalty, which is subtracted from the reward."""

    def __post_init__(self) -> None:
        if not 1 <= self.cache <= self.max_length:
            raise ConfigError("cache", f"expected a value in [1, max_length = {self.max_length}], found {self.cache}")
        expect_range("weight", self.weight, 0.0, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """`reward`; its section also holds the fields of the reward."""

    reward_type: str = "exact_match"
    """A registered reward, or `module:attr` of a function of completions and answers, or of a `rlinf.core.rewards.SampleReward`."""
    reward: Reward | SampleReward = field(metadata=chosen(REWARDS, "reward_type"))
    """The reward's own fields."""
    success: float = 1.0
    """The reward, before the penalty of length, from which on a response counts as right; must be set if a model scores."""
    success_part: str | None = None
    """The part of a composite reward that alone decides, before its weight, whether a response is right; null for the sum. It may
    weigh 0."""
    overlong: OverlongConfig | None = None
    """The penalty of length; null for none."""
    max_concurrent: int = 64
    """For how many groups at a time each worker calls an async reward, such as a judge behind a network."""
    group_timeout_s: float = 300.0
    """Seconds that a reward may take for one group, waiting and computing."""

    def __post_init__(self) -> None:
        positive(max_concurrent=self.max_concurrent)
        expect_seconds("group_timeout_s", self.group_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningActorConfig(ActorConfig):
    """`actor`; its section also holds the fields of the trainer. Its batch sizes count responses."""

    max_tokens_per_mbs: int | None = None
    """Tokens in one forward pass of one rank, in place of `micro_batch_size`; a longer response goes alone. Trainers that pack lay
    responses side by side; for others padding counts."""

    def __post_init__(self) -> None:
        ActorConfig.__post_init__(self)
        positive(max_tokens_per_mbs=self.max_tokens_per_mbs)
        if self.max_tokens_per_mbs is not None and self.micro_batch_size is not None:
            raise ConfigError("max_tokens_per_mbs", "set together with micro_batch_size", "Set one of them.")

    @property
    def packs(self) -> bool:
        """Whether the trainer parts and packs rows itself."""
        return isinstance(self.trainer, PacksRows) and self.trainer.max_tokens_per_mbs is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingConfig:
    """`algorithm.dynamic_sampling`: groups whose responses all have the same reward are dropped, and more are drawn.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), §3.2, arXiv:2503.14476.
    """

    max_waves: int = 4
    """How often groups are drawn for one iteration; after that it trains on those that it has."""

    def __post_init__(self) -> None:
        positive(max_waves=self.max_waves)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningAlgorithmConfig(AlgorithmConfig):
    """`algorithm`; its section also holds the fields of the advantage and of the loss."""

    adv_type: str = "grpo"
    """A registered advantage."""
    advantage: Advantage = field(metadata=chosen(ADVANTAGES, "adv_type", trains=True))
    """Its own fields."""
    loss_type: str = "ppo_clip"
    """A registered policy loss."""
    loss: Loss = field(metadata=chosen(LOSSES, "loss_type", trains=True))
    """Its own fields."""
    update_epoch: int = 1
    """How often each response is used in one iteration."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Whether groups whose members all have the same reward are replaced; null keeps them. If too few are found, an iteration
    takes fewer optimizer steps, so a run may end before its learning rate has fallen as far as scheduled; set
    `actor.optim.total_training_steps` to the number of steps over which it should fall."""
    overlong_filtering: bool = False
    """Whether responses that `rollout.sampling_params.max_new_tokens` cut off are kept out of the loss (DAPO, §3.4), because
    their end is unknown. They still count in the statistics of their group; `rollout/overlong_filtered` is their share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEvalConfig:
    """`eval`: how `data.val_problems` are answered."""

    samples: int = 1
    """Responses to each problem."""
    temperature: float = 0.0
    """That of sampling; 0 takes the most likely token."""
    pass_k: tuple[int, ...] = (1,)
    """For which k the share of problems is estimated that one of k responses solves."""

    def __post_init__(self) -> None:
        positive(samples=self.samples)
        expect_range("temperature", self.temperature, 0.0, HOTTEST)
        for k in self.pass_k:
            if not 1 <= k <= self.samples:
                raise ConfigError("pass_k", f"expected values from 1 to samples = {self.samples}, found {k}", "Raise eval.samples.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningConfig(RunConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    can_compare_with_greedy: ClassVar[bool] = True
    """A response is written from its prompt alone, so that the likeliest one can be written, too."""
    can_compare_tokens: ClassVar[bool] = True
    """Responses to one problem begin in the same column, so that they can be compared token by token."""
    runner: ReasoningRunnerConfig
    data: DataConfig
    rollout: GenerationConfig
    reward: RewardConfig
    reference: ReferenceConfig
    actor: ReasoningActorConfig
    algorithm: ReasoningAlgorithmConfig
    eval: ReasoningEvalConfig
    sft: Mapping[str, Any] | None
    """The warm start that comes before the run, read by `rlinf.runners.sft`; `before` in it is an earlier stage. Null for none."""

    @property
    def optional_components(self) -> tuple[str, ...]:
        """What may be placed beside actor, rollout and reward."""
        return ("inference",)

    @property
    def can_move_work(self) -> bool:
        """A response is gone on with from its tokens."""
        return True

    @property
    def content(self) -> Mapping[str, str]:
        """The file of the problems, where they are of one."""
        task = self.data.task
        if not isinstance(task, HasFingerprint):
            return {}
        return {f"data.{name}": value for name, value in task.fingerprint("train").items() if value}

    @property
    def inexact_resume(self) -> str:
        """Why a run that resumes a checkpoint does not repeat the numbers of one without a break; "" where it does."""
        config = self.rollout
        if config.max_lag:
            return (
                f"what was written ahead (rollout.max_lag {config.max_lag}) is not saved, and is written again, by newer weights. "
                "rollout.max_lag=0 gives the same numbers as a run without a break"
            )
        if config.partial_lag and not self.can_move_work:
            return f"episodes that were suspended (rollout.partial_lag {config.partial_lag}) are not saved, and begin anew"
        return ""

    @property
    def responses_per_iteration(self) -> int:
        """Responses in one iteration."""
        return self.data.rollout_batch_size * self.rollout.group_size

    @property
    def optimizer_steps_per_iteration(self) -> int:
        return self.algorithm.update_epoch * math.ceil(self.responses_per_iteration / self.actor.global_batch_size)

    @property
    def rollout_model(self) -> ModelSection:
        """What the rollout builds: the model that is trained, in the rollout's own precision."""
        model, precision = self.actor.model, self.rollout.precision
        if precision is None or not isinstance(model.config, HasPrecision):
            return model
        return replace(model, config=replace(cast("Any", model.config), precision=precision))

    @property
    def weight_sync(self) -> WeightSync:
        """How weights travel to the rollout, cast where its precision may be another one."""
        sync = self.actor.weight_syncer.sync
        return sync.casting() if self.rollout.precision is not None and isinstance(sync, HasCasting) else sync

    @property
    def eval_sampling(self) -> SamplingConfig:
        """How the tokens of an evaluation are drawn."""
        return replace(self.rollout.sampling_params, temperature=self.eval.temperature)

    @property
    def compares_with_greedy(self) -> bool:
        """Whether the advantage compares responses with the likeliest one, which is then written and scored for each problem."""
        return "baseline" in needs_of(self.algorithm.advantage)

    @property
    def sums_squares(self) -> bool:
        """Whether the advantage asks for Σ π² of each token, which the trainer then says where it scores again."""
        return "sum_pi_squared" in needs_of(self.algorithm.advantage)

    @property
    def measured_agent(self) -> Mapping[str, Any] | None:
        """What an evaluation depends on beside problems, sampling and reward; None for single responses."""
        return None

    def prepared(self, problem: Problem) -> Problem:
        """A problem as the model is asked."""
        return problem

    @property
    def wants_warm_start(self) -> bool:
        """Whether the run starts from what the section `sft` makes: nothing else names weights, and they are still needed."""
        # With `resume_dir: auto` a run that has no checkpoint yet starts anew.
        needed = resume_folder(self) is None or self.reference.source == "initial"
        return self.sft is not None and self.runner.ckpt_path is None and needed

    def starting_from(self, weights: Path) -> Self:
        """The same run from those weights; its checkpoints still carry the configuration as it was given."""
        return replace(self, runner=replace(self.runner, ckpt_path=str(weights)))
