"""The configuration of supervised fine-tuning on demonstrations; YAML holds only what a run changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf.core.config import expect_range
from rlinf.core.data.offline import OfflineConfig
from rlinf.core.errors import ConfigError
from rlinf.core.registry import DATASETS
from rlinf.runners.config.schema import chosen, positive
from rlinf.runners.embodied.films import check_films
from rlinf.runners.embodied.schema import EvalEnvConfig
from rlinf.runners.sft.schema import FineTuningConfig, FineTuningRunnerConfig, SFTActorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationsConfig:
    """`data`; its section also holds the fields of the dataset."""

    type: str = "lerobot"
    """A registered dataset of episodes."""
    dataset: OfflineConfig = field(metadata=chosen(DATASETS, "type", trains=True))
    """The dataset's own fields."""
    val_episodes: int | None = None
    """How many episodes, the last ones, are held out for `eval/loss`; null: a tenth, at least one."""
    chunk_length: int | None = None
    """Actions that follow an observation and are learned with it; those behind the end of an episode don't count. null: as many as
    the policy decides at once. A flow policy learns all of its `horizon` if this is as long."""
    statistics: Literal["dataset", "model"] = "dataset"
    """What normalises states and actions: the statistics of the episodes that are learned, or those that the model has from
    `actor.model.model_path` or `runner.ckpt_path`. They are part of the weights, so that what starts from them needs no file."""

    labels: str | None = None
    """The file of `apps/embodied/label_advantages.py` that says which actions were good, for a policy that can be told; null: all
    that is recorded is learned alike."""
    failure_penalty: float = 1.0
    """What a failure costs a `recap_value_model`, in units of the longest episode of the task; where something else is trained it
    says nothing."""

    def __post_init__(self) -> None:
        positive(val_episodes=self.val_episodes, chunk_length=self.chunk_length)
        expect_range("failure_penalty", self.failure_penalty, 0.0, 1000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DAggerConfig:
    """`dagger`: DAgger, which adds what the policy visits to the dataset, with what a scripted expert would do there.

    The first iteration learns from `data` alone. Each one after it begins with episodes of `env.eval`, in which in every control
    step the expert acts with probability β and the policy otherwise; all that is learned is in `dataset`, in the folder of the run.
    In the i-th of these rounds, from 0, βᵢ = max(`min_beta`, `init_beta` · `beta_decay`ⁱ).
    """

    episodes: int
    """Episodes of one round (of each task in `env.eval.tasks`), from initial states of their own, unlike those of evaluations."""
    init_beta: float = 0.5
    """β of the first round, in [0, 1]."""
    beta_decay: float = 0.5
    """By what β is multiplied after each round, in [0, 1]; 0 leaves all rounds but the first to the policy, 1 keeps β."""
    min_beta: float = 0.0
    """What β does not fall below, in [0, 1]."""
    learn: Literal["visited", "interventions"] = "visited"
    """Which steps count: all that were visited, labelled with what the expert would have done (DAgger), or only those in which the
    expert acted (HG-DAgger). Those of `data` always count."""

    def __post_init__(self) -> None:
        positive(episodes=self.episodes)
        for name in ("init_beta", "beta_decay", "min_beta"):
            expect_range(name, getattr(self, name), 0.0, 1.0)
        if self.learn == "interventions" and not self.init_beta and not self.min_beta:
            problem = "'interventions' with init_beta 0 and min_beta 0, so that the expert never acts"
            raise ConfigError("learn", problem, "Raise one of them, or learn what is visited.")

    def beta(self, number: int) -> float:
        """The expert's share of the steps in a round.

        Ross, Gordon & Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning" (2011),
        section 3, arXiv:1011.0686: βᵢ = pⁱ, or β₀ = 1 and 0 from then on.

        Args:
            number: of the round, from 0.
        """
        return max(self.min_beta, self.init_beta * self.beta_decay**number)


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTEnvSection:
    """`env`."""

    eval: EvalEnvConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedSFTConfig(FineTuningConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    runner: FineTuningRunnerConfig
    data: DemonstrationsConfig
    env: SFTEnvSection | None
    """Where the last checkpoint is evaluated; without it, the loss of held out episodes is all that is measured."""
    dagger: DAggerConfig | None
    """What the policy visits is learned, too, as a scripted expert would act there; without it, only `data` is."""
    actor: SFTActorConfig

    @property
    def fits_statistics(self) -> bool:
        return self.data.statistics == "dataset"

    def check_installed(self) -> None:
        """Refuses films of evaluations without what makes them."""
        if self.env is not None:
            check_films(self.env.eval.video_cfg, self.env.eval.init_params)
