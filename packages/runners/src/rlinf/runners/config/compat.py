"""Keys that users of other systems write, and what stands for them here: an unknown key of these is told with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rlinf.core.errors import ConfigError

ELSEWHERE: Final[Mapping[str, str]] = {
    "runner.max_epochs": (
        "Runs are counted in iterations: set runner.max_steps. An epoch of an embodied run is an iteration; one of a reasoning run is "
        "as many as there are training problems, divided by data.rollout_batch_size."
    ),
    "runner.seq_length": "Set rollout.sampling_params.max_new_tokens and data.max_prompt_length.",
    "runner.logger.experiment_name": "Set runner.experiment_name.",
    "actor.seed": "Set runner.seed, from which all randomness comes.",
    "algorithm.group_size": "Set env.train.group_size, or rollout.group_size of a reasoning run.",
    "algorithm.rollout_epoch": "Set env.train.rollout_epoch.",
}
"""By dotted path."""


def with_remedies(faults: Iterable[ConfigError]) -> list[ConfigError]:
    """The same faults; an unknown key that has another name here says which."""
    return [_told(fault) for fault in faults]


def _told(fault: ConfigError) -> ConfigError:
    remedy = ELSEWHERE.get(fault.place) if fault.problem == "unknown key" else None
    return fault if remedy is None else type(fault)(fault.place, fault.problem, remedy)
