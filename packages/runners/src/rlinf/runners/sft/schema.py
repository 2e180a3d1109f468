"""The configuration of supervised fine-tuning, section by section; YAML holds only what a run changes.

`FineTuningConfig` is what runs on texts (`SFTConfig`) and on demonstrations of robots (`rlinf.runners.embodied_sft`) share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import TaskConfig
from rlinf.core.protocols import Placement
from rlinf.core.registry import TASKS
from rlinf.runners.config.schema import RunConfig, RunnerConfig, TrainingConfig, chosen, positive, ranks_of
from rlinf.runners.conversations.tool_use import ToolUseConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningRunnerConfig(RunnerConfig):
    """`runner`; an iteration is `steps_per_iteration` optimizer steps."""

    steps_per_iteration: int = 10
    """Optimizer steps in one iteration."""
    until_loss: float | None = None
    """Ends the run before `max_steps`, once the loss of the examples held out is at most this; `val_check_interval` says how often
    that is looked at. null: never. A learning rate that falls does so over `max_steps` all the same."""

    def __post_init__(self) -> None:
        RunnerConfig.__post_init__(self)
        positive(steps_per_iteration=self.steps_per_iteration)
        if self.until_loss is not None and not self.val_check_interval:
            problem = f"expected null where val_check_interval is 0, found {self.until_loss:g}: no loss is measured during the run"
            raise ConfigError("until_loss", problem, "Set val_check_interval.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTRunnerConfig(FineTuningRunnerConfig):
    """`runner`; an iteration is `steps_per_iteration` optimizer steps."""

    export: bool = True
    """Whether the folder `huggingface` is written at the end, which transformers, vLLM and SGLang read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTDataConfig:
    """`data`; its section also holds the fields of the task, of which the problems with solutions are used."""

    type: str
    """A registered task."""
    task: TaskConfig = field(metadata=chosen(TASKS, "type"))
    """The task's own fields."""
    val_problems: int = 128
    """Problems on which the validation loss is measured, the first of the validation split."""
    max_length: int = 512
    """Tokens of the longest example, prompt and solution; a longer one is left out, and counted."""
    packing: bool = True
    """Whether several examples share a row of `max_length` tokens, in which they don't see each other. The loss is the same."""
    mask_history: bool = False
    """Whether the assistant's earlier replies in a recorded conversation are only read and its last one is learned alone. By
    default all are learned, each up to and with the token that ends it."""
    agent: ToolUseConfig | None = None
    """The tools of worked examples that use some, and how they are called; null where none does. What tools answer is not
    learned."""

    def __post_init__(self) -> None:
        positive(val_problems=self.val_problems, max_length=self.max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsDataConfig:
    """`data` of `task_type: reward_model`; its section also holds the fields of the task, whose rows hold pairs of responses."""

    type: str = "dataset"
    """A registered task."""
    task: TaskConfig = field(metadata=chosen(TASKS, "type"))
    """The task's own fields."""
    chosen_key: str = "chosen"
    """The field of the response that was preferred: a text, or messages that end with it, alone or after those of the prompt."""
    rejected_key: str = "rejected"
    """The field of the response that it was preferred to, in the same forms."""
    val_problems: int = 128
    """Pairs on which the validation loss is measured, the first of the validation split."""
    max_length: int = 512
    """Tokens of the longest prompt with a response; a pair with a longer one is left out."""

    def __post_init__(self) -> None:
        positive(val_problems=self.val_problems, max_length=self.max_length)
        if self.chosen_key == self.rejected_key:
            raise ConfigError("rejected_key", f"expected another field than chosen_key, found '{self.rejected_key}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTActorConfig(TrainingConfig):
    """`actor`; its section also holds the fields of the trainer. `global_batch_size` counts examples, `micro_batch_size` rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningConfig(RunConfig):
    """What all runs share that learn from examples, of texts or of robots."""

    runner: FineTuningRunnerConfig
    actor: SFTActorConfig

    def check_placement(self, placement: Placement) -> None:
        """Refuses a step with fewer examples than actors."""
        self.check_actors(ranks_of(placement, "actor"))

    def check_actors(self, ranks: int) -> None:
        """Refuses a step with fewer examples than so many actors.

        Raises:
            ConfigError: it has.
        """
        batch = self.actor.global_batch_size
        if batch < ranks:
            problem = f"{batch} examples can't be parted over {ranks} ranks"
            raise ConfigError("actor.global_batch_size", problem, "Raise it.")

    @property
    def optimizer_steps_per_iteration(self) -> int:
        return self.runner.steps_per_iteration

    @property
    def exports(self) -> bool:
        """Whether a folder for other programs is written at the end."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportingConfig(FineTuningConfig):
    """A run on texts, whose model other programs read."""

    runner: SFTRunnerConfig

    @property
    def exports(self) -> bool:
        """Whether the folder `huggingface` is written at the end; `reward.model.model_path` takes that of a reward model."""
        return self.runner.export


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig(_ExportingConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    data: SFTDataConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig(_ExportingConfig):
    """A run that trains a reward model on pairs; `global_batch_size` and `micro_batch_size` count pairs."""

    data: PairsDataConfig
