"""Who simulates what: environments are parted over env workers, and each worker's over pipeline stages.

A slot is one stage of one env worker. Randomness is keyed by slot, so a run depends on the number of env workers and
stages, but not on where anything is placed or how many rollout workers serve the slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlinf.core.protocols import Mode
from rlinf.runners.embodied.schema import PlayedConfig, refuse_idle_rollout, refuse_idle_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Consecutive environments that are stepped together."""

    index: int
    """Global number of the slot."""
    env_rank: int
    """The env worker that holds it."""
    stage: int
    """Which of that worker's pipeline stages it is."""
    first_env: int
    """Global number of its first environment."""
    num_envs: int
    """How many environments it has."""


def layout(total_envs: int, *, ranks: int, stages: int, group_size: int = 1, place: str = "env.train") -> list[Slot]:
    """All slots, ordered by index; groups are never parted, sizes differ by at most one group.

    Raises:
        ConfigError: there are more env workers than groups.
    """
    refuse_idle_workers(place, total_envs, group_size, ranks)
    slots: list[Slot] = []
    first = 0
    for rank, of_rank in enumerate(_shares(total_envs // group_size, ranks)):
        # No more stages than groups, so that no slot is empty.
        for stage, of_stage in enumerate(_shares(of_rank, min(stages, of_rank))):
            size = of_stage * group_size
            slots.append(Slot(index=len(slots), env_rank=rank, stage=stage, first_env=first, num_envs=size))
            first += size
    return slots


def _shares(total: int, parts: int) -> list[int]:
    """`total` parted into nearly equal whole numbers, the larger ones first."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]


def slot_layout(cfg: PlayedConfig, env_ranks: int, rollout_ranks: int = 1) -> Mapping[Mode, tuple[Slot, ...]]:
    """The slots of training and of evaluation, parted over the env workers.

    Raises:
        ConfigError: there are more env workers than groups, or more rollout workers than slots.
    """
    train, stages = cfg.env.train, cfg.rollout.pipeline_stage_num
    trained = tuple(layout(train.total_num_envs, ranks=env_ranks, stages=stages, group_size=train.group_size))
    refuse_idle_rollout(rollout_ranks, env_ranks=env_ranks, slots=len(trained), stages=stages)
    return {"train": trained, "eval": evaluation_slots(cfg, env_ranks)}


def evaluation_slots(cfg: PlayedConfig, env_ranks: int) -> tuple[Slot, ...]:
    """The slots of evaluation, which are there without training, too."""
    stages = cfg.rollout.pipeline_stage_num
    return tuple(layout(cfg.env.eval.total_num_envs, ranks=env_ranks, stages=stages, place="env.eval"))
