"""Sections that several kinds of runs have; YAML holds only what a run changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from rlinf.core.capabilities import PolicyLoss
from rlinf.core.config import expect_at_least, expect_range, expect_seconds
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.models import Model, build_model
from rlinf.core.protocols import Advantage, Gate, Loss, Placement, TrainerConfig, WeightSync
from rlinf.core.registry import ADVANTAGES, GATES, LOSSES, MODELS, TRAINERS, WEIGHT_SYNCS, Registry
from rlinf.runners.reporting.loggers.registry import LOGGERS

_LONGEST_NAME = 200
"""Bytes: file systems take 255, and the names of locks and of earlier runs are a little longer."""
GATE_DEFAULTS = {"fp32": (1e-3, 0.0), "fp16": (0.02, 0.01), "bf16": (0.1, 0.01)}
"""By precision: how far the ratio of a decision's probabilities may be from 1, and the share of decisions that may be farther."""
_GATE_KEYS = {"tolerance": "actor.logprob_tolerance", "allowed_share": "actor.logprob_outliers"}
DERIVED = {"derived": True}
"""Metadata of a field that no key of YAML sets."""


def chosen(registry: Registry[Any], key: str, *, merged: bool = True, trains: bool = False) -> Mapping[str, Any]:
    """Metadata of a field that takes what its section names: `algorithm.advantage` is what `algorithm.adv_type` names.

    Args:
        registry: where the name is looked up.
        key: the field of the same section that holds the name.
        merged: whether the parameters of what was chosen stand in the section itself (`algorithm.gamma`); otherwise they have
            a section of their own, called like the field (`env.train.init_params`).
        trains: whether only training needs it, so that an evaluation does without.
    """
    return {"registry": registry, "key": key, "merged": merged, "trains": trains}


def like(section: str, *names: str) -> Mapping[str, Any]:
    """Metadata of a section that takes the keys of these names from its neighbour `section`, as far as it does not set them.

    Parameters of something chosen are taken only if the same is chosen in both.
    """
    return {"like": section, "names": names}


def positive(**values: float | None) -> None:
    """Refuses values that are 0 or less, by name."""
    for name, value in values.items():
        expect_range(name, value, 0.0, open_low=True)


def not_negative(**values: float | None) -> None:
    """Refuses values below 0, by name."""
    for name, value in values.items():
        expect_at_least(name, value, 0)


def ranks_of(placement: Placement, component: str) -> int:
    """How many processes a component has; 1 where it is not placed."""
    return placement.get_world_size(component) if component in placement.components else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerConfig:
    """`runner.logger`."""

    log_path: str = "logs"
    """The run writes to `<log_path>/<experiment_name>`."""
    logger_backends: tuple[str, ...] = ("tensorboard",)
    """Where metrics go beside the console and `metrics.jsonl`: registered loggers (tensorboard, csv, stdout, wandb, swanlab), or
    `module:Class`."""
    project_name: str = "rlinf"
    """The project of Weights & Biases or SwanLab to which the run belongs; there its name is `runner.experiment_name`."""

    def __post_init__(self) -> None:
        for name in self.logger_backends:
            LOGGERS.get(name, place="logger_backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """`runner`."""

    task_type: str = ""
    """A registered task type, which determines the sections, the workers and the loop. Without it the sections decide."""
    experiment_name: str
    """The name of the run and of its folder."""
    max_steps: int
    """How many iterations, each of a rollout and training."""
    seed: int = 1
    """The source of all randomness of the run."""
    val_check_interval: int = 10
    """Iterations between evaluations; 0 evaluates only at the end."""
    save_interval: int = 0
    """Iterations between checkpoints; 0 saves by time only (`save_minutes`). There is always one after the last iteration."""
    save_minutes: float = 10.0
    """Minutes after a checkpoint until the next one, which is written at the end of the iteration; 0 does not save by time."""
    keep_checkpoints: int | None = 3
    """How many of the last checkpoints are kept, beside the best and those that are in use; null keeps all."""
    keep_best: bool = True
    """Whether an evaluation that is better than all before is followed by a checkpoint, which is kept as `checkpoints/best`."""
    interrupt_timeout_s: float = 60.0
    """Seconds that a run has, after Ctrl-C or SIGTERM, to end its iteration and to save; after that it ends without saving."""
    resume_dir: str | None = None
    """A checkpoint folder (`…/global_step_N`), or that of a run, whose newest one it is, to go on from; `auto`: the newest
    checkpoint of this experiment's own folder, that with the most iterations, or a new start if there is none; null starts anew."""
    ckpt_path: str | None = None
    """Weights to start from: the folder of a run, a checkpoint, a `.safetensors` file, a `full_weights.pt`, or a folder of Hugging
    Face or LeRobot that the model reads; null takes the model's own."""
    timeout_s: float = 600.0
    """Seconds that one phase of an iteration may take before the run is declared stuck."""
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        expect_range("max_steps", self.max_steps, 0.0, open_low=True, remedy="Set how many iterations the run has.")
        expect_seconds("timeout_s", self.timeout_s)
        not_negative(seed=self.seed)
        expect_at_least("val_check_interval", self.val_check_interval, 0, "0 evaluates only at the end.")
        expect_at_least("save_interval", self.save_interval, 0, "0 saves by time and at the end.")
        positive(keep_checkpoints=self.keep_checkpoints)
        expect_seconds("interrupt_timeout_s", self.interrupt_timeout_s)
        expect_range("save_minutes", self.save_minutes, 0.0, 1e7)
        name = self.experiment_name
        if name.strip() in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode()) > _LONGEST_NAME:
            raise ConfigError("experiment_name", f"expected the name of a folder, found '{name}'", "Set log_path for its parent.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """`actor.model`; its section also holds the model's own fields."""

    model_type: str
    """A registered model."""
    config: Model = field(metadata=chosen(MODELS, "model_type"))
    """Its hyper-parameters, or the function that builds it."""

    def build(self, spec: EnvSpec | None = None, *, seed: int) -> Any:
        """The policy with fresh weights; a language model needs no description of an environment.

        Raises:
            ConfigError: they do not go together; the message has the key; a model knows the last part of it, or its own name.
        """
        try:
            built = build_model(self.config, spec, seed=seed, place="actor.model.model_type")
            _expect_policy(built, self.model_type, acts=spec is not None and traits_of(self.config).judges is None)
            return built
        except ConfigError as error:
            below = error.place.removeprefix(f"{self.model_type}.")
            name = below.partition(".")[0]
            if is_dataclass(self.config) and name in [field.name for field in fields(self.config)]:
                error.move(f"actor.model.{below}")
            raise


def _expect_policy(built: object, name: str, *, acts: bool) -> None:
    """Refuses what a class of one's own made if it lacks what a run calls, as a plain `torch.nn.Module` does."""
    for needed in (*(("predict_action_batch",) if acts else ()), "weights", "load"):
        if not callable(getattr(built, needed, None)):
            problem = f"'{name}' made a {type(built).__name__} that has no {needed}(…), so it is no policy"
            raise ConfigError("actor.model.model_type", problem, "Derive it from rlinf.models.BasePolicy.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSyncSection:
    """`actor.weight_syncer`; its section also holds the fields of the chosen kind."""

    type: str = "full"
    """A registered weight sync."""
    sync: WeightSync = field(metadata=chosen(WEIGHT_SYNCS, "type", trains=True))
    """Its own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """`actor` of a run that nothing but trains; its section also holds the fields of the trainer."""

    training_backend: str = "fsdp"
    """A registered trainer."""
    trainer: TrainerConfig = field(metadata=chosen(TRAINERS, "training_backend", trains=True))
    """The trainer's own fields, such as `optim`."""
    model: ModelSection
    """What is trained."""
    global_batch_size: int
    """How much one optimizer step trains on, over all ranks: decisions or transitions of robots, responses of a reasoning run,
    episodes of agents, examples of fine-tuning."""
    micro_batch_size: int | None = None
    """How much of it is in one forward pass of one rank, of agents and of fine-tuned language models in rows; null takes all that
    the rank has in a step."""

    def __post_init__(self) -> None:
        positive(global_batch_size=self.global_batch_size, micro_batch_size=self.micro_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingConfig(TrainingConfig):
    """`actor` of a run whose weights go to rollout workers; its section also holds the fields of the trainer."""

    weight_syncer: WeightSyncSection
    """How weights reach the rollout workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig(PublishingConfig):
    """`actor`; its section also holds the fields of the trainer."""

    gate: str = "step_zero"
    """A registered gate: the check that compares the trainer's log-probabilities with the rollout's before the first update, and
    names likely causes if they differ."""
    logprob_tolerance: float | None = None
    """How far the ratio of both probabilities may be from 1; null: 1e-3 in float32, 0.02 in float16, 0.1 in bfloat16, whichever is
    the coarsest of model, trainer and rollout. Engines of one kind in float32 agree to 1e-5."""
    logprob_outliers: float | None = None
    """The share of decisions that may be farther; null: 0 in float32, 0.01 otherwise."""
    offload: bool = False
    """Whether the actor leaves its devices to others while it does not train: weights, gradients and optimizer state are kept in
    host memory, and loaded again for each phase. In a reasoning run actors and rollout workers also take turns by the lock of
    their devices."""

    def __post_init__(self) -> None:
        TrainingConfig.__post_init__(self)
        if self.logprob_tolerance is not None:
            expect_range("logprob_tolerance", self.logprob_tolerance, 0.0, 1e3, open_low=True)
        expect_range("logprob_outliers", self.logprob_outliers, 0.0, 1.0, open_high=True)

    def build_gate(self, precision: str = "fp32") -> Gate:
        """The gate with its parameters.

        Args:
            precision: the coarsest in which something computes log-probabilities.
        """
        tolerance, share = GATE_DEFAULTS[precision]
        params = {
            "tolerance": tolerance if self.logprob_tolerance is None else self.logprob_tolerance,
            "allowed_share": share if self.logprob_outliers is None else self.logprob_outliers,
        }
        try:
            return GATES.build(self.gate, params, place="actor.gate")
        except ConfigError as error:
            key = _GATE_KEYS.get(error.place.removeprefix("actor.gate."))
            if key is None:
                raise
            raise type(error)(key, error.problem, error.remedy) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """`reference`: the policy from which `algorithm.kl_beta` keeps the trained one near, or with 0 measures how far it is."""

    source: Literal["none", "initial", "path"] = "none"
    """"none"; "initial", the weights that the run starts from; or those at `ckpt_path`. The actor scores them, or
    in a reasoning run `inference` where it is placed."""
    ckpt_path: str | None = None
    """The weights of "path"."""

    def __post_init__(self) -> None:
        if self.source == "path" and self.ckpt_path is None:
            raise ConfigError("ckpt_path", "missing, and source: path takes the weights from there", "Name a file or a folder.")
        if self.source != "path" and self.ckpt_path is not None:
            raise ConfigError("ckpt_path", f"is not read with source: {self.source}", "Set source: path, or leave it out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """`algorithm`; its section also holds the fields of the advantage and of the loss."""

    adv_type: str = "gae"
    """A registered advantage."""
    advantage: Advantage = field(metadata=chosen(ADVANTAGES, "adv_type", trains=True))
    """Its own fields."""
    loss_type: str = "actor_critic"
    """A registered policy loss."""
    loss: Loss | PolicyLoss = field(metadata=chosen(LOSSES, "loss_type", trains=True))
    """Its own fields."""
    update_epoch: int = 4
    """How often each decision is used in one iteration."""
    recompute_logprobs: bool = False
    """Whether the trainer scores every decision once more before the update (`Trajectory.proximal`), which decoupled losses and
    corrections need."""

    def __post_init__(self) -> None:
        positive(update_epoch=self.update_epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run; every choice by name is already made and its parameters are checked. Each task type adds its own sections."""

    runner: RunnerConfig
    """How long, how often, and where."""
    cluster: Mapping[str, Any]
    """Read by the cluster that is given it."""
    source: Mapping[str, Any] = field(metadata=DERIVED)
    """The mapping that all this was read from; a checkpoint carries it, so that an evaluation needs nothing else."""

    @property
    def optimizer_steps_per_iteration(self) -> int:
        """Optimizer steps in one iteration."""
        return 1

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run, over which schedules span."""
        return self.runner.max_steps * self.optimizer_steps_per_iteration

    @property
    def action_size(self) -> int | None:
        """The numbers of an action where that is known before a simulator is built."""
        return None

    def check_installed(self) -> None:
        """Refuses what is not installed and a section needs; what it chooses by name checks itself.

        Raises:
            MissingExtra: the message has the key.
        """

    def check_placement(self, placement: Placement) -> None:
        """Refuses what can't be parted over the processes of a component; called before any of them starts.

        Raises:
            ConfigError: the message has the key.
        """

    @property
    def task_texts(self) -> tuple[str, ...] | None:
        """What a policy is told to do; () if it is told nothing, None where only a simulator knows."""
        return None

    @property
    def can_move_work(self) -> bool:
        """Whether a worker can go on with what another one has begun, so that `cluster.auto_scheduler` has something to move."""
        return False

    @property
    def fits_statistics(self) -> bool:
        """Whether the statistics that normalise come from data, and not with the weights that the run starts from."""
        return False

    @property
    def content(self) -> Mapping[str, str]:
        """What is in files that the run reads, by the dotted path of the key that names each; equal for equal contents."""
        return {}

    @property
    def inexact_resume(self) -> str:
        """Why a run that resumes a checkpoint does not repeat the numbers of one without a break; "" where it does."""
        return ""
