"""The configuration of an embodied run, section by section; YAML holds only what a run changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from rlinf.core.config import expect_range
from rlinf.core.declarations import action_size_of, success_only_of, texts_of, traits_of
from rlinf.core.errors import ConfigError, refuse
from rlinf.core.evaluation.protocol import RealTimeChunking, expect_numbers
from rlinf.core.protocols import EnvConfig, Placement
from rlinf.core.registry import ENVS
from rlinf.runners.config.schema import (
    ActorConfig,
    PublishingConfig,
    ReferenceConfig,
    RunConfig,
    RunnerConfig,
    chosen,
    like,
    not_negative,
    positive,
    ranks_of,
)
from rlinf.runners.embodied.algorithm import EmbodiedAlgorithmConfig
from rlinf.runners.embodied.films import VideoConfig, check_films
from rlinf.runners.embodied.wrapping import DataCollectionConfig, Wrapped, WrapperSection, fit_wrappers

TRAINS = {"trains": True}
"""Metadata of what an evaluation does without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEnvConfig(Wrapped):
    """`env.train`."""

    place: ClassVar[str] = "env.train"
    trains: ClassVar[bool] = True
    env_type: str
    """A registered environment."""
    init_params: EnvConfig = field(metadata=chosen(ENVS, "env_type", merged=False, trains=True))
    """The environment of that type with its own parameters."""
    total_num_envs: int
    """Environments over all env workers."""
    max_steps_per_rollout_epoch: int
    """Decisions of each environment in one rollout epoch (T)."""
    rollout_epoch: int = 1
    """Rollout epochs in one iteration."""
    group_size: int = 1
    """How many consecutive environments form a group, in which the k-th episode of each starts from the same state."""
    max_episode_steps: int | None = None
    """Control steps until truncation; null takes the task's own."""
    ignore_terminations: bool = False
    """Whether an episode continues to its step limit after the task has ended it."""
    auto_reset: bool = True
    """Whether an unfinished episode continues in the next rollout epoch; false resets all environments at its start."""
    use_fixed_reset_state_ids: bool = False
    """Whether all episodes that a group begins in one rollout epoch start from the same state, and so can be compared."""
    use_ordered_reset_state_ids: bool = False
    """Whether the environment's numbered states are used in order, one for each group and rollout epoch, and not drawn."""
    bootstrap_truncated: bool | None = None
    """Whether a truncated episode bootstraps from the critic's value of its final observation; set it to false if the limit
    belongs to the task, so that being slow costs something. Null: true, except where a policy's own actions are learned from
    (`embodied`) and the environment is known to reward success alone, such as LIBERO: there a failure would be worth what the
    critic expects, and so its values, and `rollout/returns_mean`, would grow to 1 whatever succeeds."""
    wrappers: tuple[WrapperSection, ...] = field(default=(), metadata=TRAINS)
    """The wrappers of environments, the first nearest to the simulator: `[{type: latency, steps: 1}]`."""
    data_collection: DataCollectionConfig | None = field(default=None, metadata=TRAINS)
    """Records the episodes of training."""

    @property
    def groups(self) -> int:
        """Groups of environments over all env workers."""
        return self.total_num_envs // self.group_size

    def __post_init__(self) -> None:
        fit_wrappers(self)
        positive(
            total_num_envs=self.total_num_envs,
            max_steps_per_rollout_epoch=self.max_steps_per_rollout_epoch,
            rollout_epoch=self.rollout_epoch,
            group_size=self.group_size,
            max_episode_steps=self.max_episode_steps,
        )
        if self.total_num_envs % self.group_size:
            problem = f"{self.total_num_envs} environments can't be parted into groups of {self.group_size}"
            raise ConfigError("total_num_envs", problem, "Use a multiple of group_size.")
        for name in ("use_fixed_reset_state_ids", "use_ordered_reset_state_ids"):
            if getattr(self, name) and self.auto_reset:
                problem = "initial states belong to a rollout epoch, and with auto_reset episodes go on over its end"
                raise ConfigError(name, problem, "Set auto_reset: false.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEnvConfig(Wrapped):
    """`env.eval`; what it does not say is as in `env.train`."""

    place: ClassVar[str] = "env.eval"
    env_type: str
    """A registered environment."""
    init_params: EnvConfig = field(metadata=chosen(ENVS, "env_type", merged=False))
    """The environment of that type with its own parameters."""
    total_num_envs: int = 16
    """Environments over all env workers."""
    tasks: int | tuple[int | str, ...] | None = None
    """Which tasks are played, by number or name; a number n stands for 0 … n − 1, and null leaves the choice to the seed."""
    episodes: int = 64
    """Episodes of one evaluation, each from a different initial state; if there are several tasks or seeds, for each of them."""
    final_episodes: int | None = None
    """Episodes of the last evaluation, which the summary reports; null takes `episodes`."""
    init_ids: tuple[int, ...] | None = None
    """The initial states of the last evaluation by number; `episodes` is of those before it. Null takes the first ones."""
    initial_states: Literal["seed", "id"] = "seed"
    """"seed" draws initial states; "id" takes those that the environment numbers, such as the 50 of each task of LIBERO."""
    seeds: tuple[int, ...] | None = None
    """Each plays all episodes once more, with another noise and, for `initial_states: seed`, from other states; null takes that
    of the run."""
    success: Literal["once", "at_end"] = "once"
    """Whether an episode counts as solved if it was solved at any step, or only if it is solved at its last."""
    max_episode_steps: int | None = None
    """Control steps until truncation; null takes the task's own."""
    ignore_terminations: bool = False
    """Whether an episode continues to its step limit after the task has ended it."""
    mode: Literal["eval", "train"] = "eval"
    """"eval" takes the most likely action, "train" samples as in training."""
    real_time_chunking: RealTimeChunking | None = None
    """Lets the policy decide while its last chunk is still executed, as on a robot that does not wait: `{delay: 1,
    execution_horizon: 2}`. Null: the environment waits while the policy decides."""
    wrappers: tuple[WrapperSection, ...] = ()
    """The wrappers of environments; those of training, without the ones that are for training only, if the key is left out."""
    data_collection: DataCollectionConfig | None = None
    """Records the episodes of evaluations."""
    video_cfg: VideoConfig = field(default_factory=VideoConfig)

    @property
    def task_ids(self) -> tuple[int | str, ...]:
        """The tasks that are played, one by one; none where the seed chooses."""
        return tuple(range(self.tasks)) if isinstance(self.tasks, int) else self.tasks or ()

    def __post_init__(self) -> None:
        fit_wrappers(self)
        if isinstance(self.tasks, int):
            positive(tasks=self.tasks)
        positive(total_num_envs=self.total_num_envs, episodes=self.episodes)
        positive(final_episodes=self.final_episodes, max_episode_steps=self.max_episode_steps)
        for name in ("tasks", "init_ids", "seeds"):
            entries = getattr(self, name)
            if isinstance(entries, tuple):
                expect_numbers(name, cast("tuple[int | str, ...]", entries))
        if self.init_ids is not None and self.final_episodes not in (None, len(self.init_ids)):
            problem = (
                f"it names {len(self.init_ids)} initial states of the last evaluation, and final_episodes is {self.final_episodes}"
            )
            raise ConfigError("init_ids", problem, "Leave out final_episodes, or set it to null.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSection:
    """`env`."""

    max_restarts: int = 3
    """How often each env worker whose process ends unexpectedly in training is restarted, with the same seeds; its unfinished
    episodes are dropped, and the part of the iteration that it had not sent is played again. 0: it ends the run."""
    offload: bool = False
    """Whether environments leave their devices and memory to others while they are not used: they are closed after each rollout
    and each evaluation, and built again before the next, which takes time."""
    train: TrainEnvConfig
    eval: EvalEnvConfig = field(
        metadata=like("train", "env_type", "init_params", "max_episode_steps", "ignore_terminations", "wrappers")
    )

    @property
    def same(self) -> bool:
        """Whether a policy meets in evaluations what it is trained in."""
        return (self.train.init_params, self.train.wrappers) == (self.eval.init_params, self.eval.wrappers)

    def __post_init__(self) -> None:
        not_negative(max_restarts=self.max_restarts)


def refuse_idle_workers(section: str, envs: int, group_size: int, ranks: int) -> None:
    """Refuses, by a `ConfigError`, more env workers than a section of `env` has groups of environments, which are never parted."""
    if envs // group_size < ranks:
        problem = f"{envs} environments in groups of {group_size} can't occupy {ranks} env workers"
        raise ConfigError(f"{section}.total_num_envs", problem, "Raise it, or place fewer env workers.")


def refuse_idle_rollout(ranks: int, *, env_ranks: int, slots: int, stages: int) -> None:
    """Refuses, by a `ConfigError`, more rollout workers than there are slots of environments to decide for."""
    if slots < ranks:
        problem = f"{ranks} rollout workers for {slots} slots ({env_ranks} env workers × at most {stages} stages); one has none"
        remedy = "Place fewer, or place more env workers, or raise rollout.pipeline_stage_num."
        raise ConfigError("cluster.component_placement.rollout", problem, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """`rollout`."""

    pipeline_stage_num: int = 1
    """Into how many stages an env worker divides its environments, so that one is simulated while the policy decides for
    another."""
    offload: bool = False
    """Whether the policy leaves its devices to others while it does not decide: its weights are kept, and received, in host
    memory, and loaded again for each rollout and each evaluation."""
    batching: Literal["none", "stage", "waiting"] = "none"
    """Which requests a rollout worker decides for in one pass of the policy. `none`: each by itself. `stage`: those of the same
    pipeline stage of all env workers that it serves; it waits for the last one, and a run can be repeated. `waiting`: those that
    wait when it is free; which ones depends on the clock, so that two runs may differ in the last digits."""
    max_batched_requests: int | None = None
    """The most requests in one pass; null for any number. A request has a row for each environment of its slot."""
    batch_wait_ms: float = 0.0
    """How long `waiting` waits for more requests, from the first one on, before the policy decides for those that are there."""
    enable_torch_compile: bool = False
    """Whether the denoising step of a π0 or a GR00T is compiled by `torch.compile`: at its first use, which takes a minute or
    more, and again for each number of rows."""
    enable_cuda_graph: bool = False
    """Whether what is compiled is also captured as a CUDA graph (`reduce-overhead`); without a GPU nothing is."""
    max_lag: int = 0
    """By how many weight updates a decision may be older than the weights that it trains. That many iterations are played ahead,
    with new weights as soon as they arrive. 0 is synchronous: environments wait while the actor trains."""

    def __post_init__(self) -> None:
        positive(pipeline_stage_num=self.pipeline_stage_num, max_batched_requests=self.max_batched_requests)
        not_negative(max_lag=self.max_lag)
        if self.enable_cuda_graph and not self.enable_torch_compile:
            raise ConfigError("enable_cuda_graph", "only what is compiled is captured", "Set enable_torch_compile: true, too.")
        expect_range("batch_wait_ms", self.batch_wait_ms, 0.0, open_high=True)
        if self.batch_wait_ms and self.batching != "waiting":
            problem = f"{self.batch_wait_ms:g} ms, and batching: {self.batching} does not follow the clock"
            raise ConfigError("batch_wait_ms", problem, "Set batching: waiting, or leave it out.")
        if self.max_batched_requests is not None and self.batching == "none":
            raise ConfigError("max_batched_requests", "nothing is batched with batching: none", "Set batching: stage, or waiting.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedConfig(RunConfig):
    """What env and rollout workers read of a run, however it learns."""

    keeps_observations: ClassVar[bool] = False
    """Whether trajectories carry what was seen (`Trajectory.observation`), beside what the policy keeps to score a decision."""
    env: EnvSection
    rollout: RolloutConfig
    actor: PublishingConfig

    @property
    def trains_on_arrival(self) -> bool:
        """Whether the actor also trains while trajectories arrive."""
        return False

    @property
    def max_lag(self) -> int:
        """How many iterations are played ahead of the one that is trained on."""
        return self.rollout.max_lag

    @property
    def bootstraps_truncated(self) -> bool:
        """Whether what follows a cut episode has a value."""
        return self.env.train.bootstrap_truncated is not False

    def plays(self, step: int) -> bool:
        """Whether iteration `step` collects anything; otherwise it learns from what was recorded before the run."""
        return True

    @property
    def env_supervisor(self) -> dict[str, Any]:
        """What becomes of an env worker whose process ends unexpectedly."""
        return {"policy": "restart", "max_restarts": self.env.max_restarts} if self.env.max_restarts else {"policy": "fail"}

    def check_installed(self) -> None:
        """Refuses films of evaluations without what makes them."""
        check_films(self.env.eval.video_cfg, self.env.eval.init_params)

    def check_placement(self, placement: Placement) -> None:
        """Refuses workers that would have nothing to do, and more stages than an env worker has groups of environments."""
        ranks = ranks_of(placement, "env")
        train, stages, groups = self.env.train, self.rollout.pipeline_stage_num, self.env.train.groups // ranks
        refuse_idle_workers("env.train", train.total_num_envs, train.group_size, ranks)
        refuse_idle_workers("env.eval", self.env.eval.total_num_envs, 1, ranks)
        if groups < stages:
            of = f"env.train.total_num_envs {train.total_num_envs}, group_size {train.group_size}, {ranks} env workers"
            problem = f"{stages} stages, and an env worker has {groups} of the {train.groups} groups ({of})"
            remedy = f"Set it to at most {groups}, or raise env.train.total_num_envs."
            raise ConfigError("rollout.pipeline_stage_num", problem, remedy)
        refuse_idle_rollout(ranks_of(placement, "rollout"), env_ranks=ranks, slots=ranks * stages, stages=stages)
        refuse(list(self.unparted(ranks_of(placement, "actor"))))

    def unparted(self, ranks: int) -> Iterator[ConfigError]:
        """What can't be parted over so many actors."""
        groups = self.env.train.groups
        if groups < ranks:
            problem = f"{groups} groups of environments are fewer than {ranks} actors"
            yield ConfigError("env.train.total_num_envs", problem, "Raise it, or place fewer actors.")

    @property
    def task_texts(self) -> tuple[str, ...] | None:
        needed = "task_descriptions" in (traits_of(self.actor.model.config).observations or ())
        told = [texts_of(env.init_params, needed=needed) for env in (self.env.train, self.env.eval)]
        # A wrapper may tell tasks of which the environment itself says nothing.
        return sum(filter(None, told), ()) or (None if None in told or self.env.train.wrappers else ())

    @property
    def decisions_per_rollout_epoch(self) -> int:
        """Decisions in one rollout epoch, over all environments."""
        return self.env.train.total_num_envs * self.env.train.max_steps_per_rollout_epoch

    @property
    def decisions_per_iteration(self) -> int:
        """Decisions in one iteration, over all environments."""
        return self.decisions_per_rollout_epoch * self.env.train.rollout_epoch

    @property
    def action_size(self) -> int | None:
        # A wrapper may change actions.
        return None if self.env.train.wrappers else action_size_of(self.env.train.init_params)

    @property
    def inexact_resume(self) -> str:
        """Why a run that resumes a checkpoint does not repeat the numbers of one without a break; "" where it does."""
        if self.max_lag and self.cluster.get("backend") != "local":
            return (
                f"which weights decide depends on the clock (rollout.max_lag {self.max_lag}), so that no two runs have the same "
                "numbers. rollout.max_lag=0 or cluster.backend=local give the same ones"
            )
        # Where episodes under way can't be played again, the env worker says so, which knows the simulator.
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedRunnerConfig(RunnerConfig):
    """`runner`."""

    use_training_pipeline: bool = False
    """Whether the actor makes the first update epoch of an iteration during its rollout: on each rollout epoch as soon as that is
    played, with the advantages of that rollout epoch alone. Later update epochs use the whole iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedConfig(PlayedConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    runner: EmbodiedRunnerConfig
    actor: ActorConfig
    algorithm: EmbodiedAlgorithmConfig
    reference: ReferenceConfig

    @property
    def trains_on_arrival(self) -> bool:
        """Whether the actor also trains while trajectories arrive."""
        return self.runner.use_training_pipeline

    @property
    def bootstraps_truncated(self) -> bool:
        train = self.env.train
        return not success_only_of(train.init_params) if train.bootstrap_truncated is None else train.bootstrap_truncated

    @property
    def demonstrations_per_step(self) -> int:
        """Examples of `algorithm.co_training` in one optimizer step, over all ranks; 0 without."""
        co_training = self.algorithm.co_training
        return 0 if co_training is None else co_training.batch_size or self.actor.global_batch_size

    def check_placement(self, placement: Placement) -> None:
        """Also refuses fewer demonstrations than ranks that learn from them, each from its own episodes."""
        PlayedConfig.check_placement(self, placement)
        if self.algorithm.co_training is not None:
            self.algorithm.co_training.check_ranks(self.demonstrations_per_step, ranks_of(placement, "actor"))

    @property
    def optimizer_steps_per_iteration(self) -> int:
        return self.algorithm.update_epoch * math.ceil(self.decisions_per_iteration / self.actor.global_batch_size)
