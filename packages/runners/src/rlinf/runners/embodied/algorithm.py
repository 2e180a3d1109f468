"""The section `algorithm` of an embodied run."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.core.config import expect_range
from rlinf.core.data.offline import OfflineConfig
from rlinf.core.errors import ConfigError
from rlinf.core.registry import DATASETS
from rlinf.runners.config.schema import AlgorithmConfig, chosen, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CoTrainingConfig:
    """`algorithm.co_training`: demonstrations whose supervised loss is added to that of reinforcement learning.

    In each optimizer step L = L_RL + `weight` · L_SFT, each a mean over what counts of its own batch, over all ranks. L_SFT is the
    policy's own, as in `embodied_sft`. States and actions are normalised as the policy does, by the statistics of the weights that
    the run starts from. The section also holds a dataset's fields.
    """

    type: str = "lerobot"
    """A registered dataset of episodes."""
    dataset: OfflineConfig = field(metadata=chosen(DATASETS, "type", trains=True))
    """The dataset's own fields."""
    weight: float = 0.1
    """By what the mean supervised loss is multiplied; 0 only measures `train/sft_loss`, and trains as without the section."""
    batch_size: int | None = None
    """Examples in one optimizer step, over all ranks; null: as many as `actor.global_batch_size`. `actor.micro_batch_size` parts
    them as it parts decisions."""
    chunk_length: int | None = None
    """Actions that follow an observation and are learned with it; null: as many as the policy decides at once."""

    def __post_init__(self) -> None:
        expect_range("weight", self.weight, 0.0, 1e3)
        positive(batch_size=self.batch_size, chunk_length=self.chunk_length)

    def check_ranks(self, examples: int, ranks: int) -> None:
        """Refuses to part demonstrations over more ranks than there are.

        Args:
            examples: of one optimizer step.
            ranks: that train.

        Raises:
            ConfigError: a rank would have no example in a step, or no episode.
        """
        if examples < ranks:
            problem = f"{examples} examples can't be parted over {ranks} ranks"
            raise ConfigError("algorithm.co_training.batch_size", problem, f"Use at least {ranks}.")
        source = self.dataset.open()
        if len(source) < ranks:
            problem = f"the {len(source)} episodes of '{source.name}' can't be parted over {ranks} ranks"
            raise ConfigError("algorithm.co_training", problem, "Record more, or place actor on fewer devices.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedAlgorithmConfig(AlgorithmConfig):
    """`algorithm`; its section also holds the fields of the advantage and of the loss."""

    filter_rewards: bool = False
    """Whether groups whose mean return is outside the two bounds below are left out of training: if all episodes of a group
    succeed, or all fail, comparing them teaches nothing. `rollout/filtered_groups` is their share."""
    rewards_lower_bound: float | None = None
    """The least mean return of a group that is trained on; null for any. Where success is the only reward and pays 1, it is the
    success rate of the group."""
    rewards_upper_bound: float | None = None
    """The greatest mean return of a group that is trained on; null for any."""

    co_training: CoTrainingConfig | None = None
    """Imitates demonstrations in each update, too, so that they are not forgotten; null for none."""

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        lower, upper = self.rewards_lower_bound, self.rewards_upper_bound
        if self.filter_rewards == (lower is None and upper is None):
            problem = f"{str(self.filter_rewards).lower()} with rewards_lower_bound {lower} and rewards_upper_bound {upper}"
            raise ConfigError("filter_rewards", problem, "Set it to true together with one of the bounds, or none of the three.")
        if lower is not None and upper is not None and lower > upper:
            raise ConfigError("rewards_lower_bound", f"expected at most rewards_upper_bound = {upper:g}, found {lower:g}")
