"""Keys that users of other systems write, and what stands for them here: an unknown key of these is told with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rlinf.core.errors import ConfigError

_SHAPED = "Set env.train.wrappers: [{type: shaped_reward, %s: …}]; an evaluation reports the task's own rewards."
_STATES = (
    "Leave it out: an evaluation plays each initial state of its protocol once; env.eval.initial_states, init_ids, tasks and seeds "
    "say which."
)
_BATCHING = (
    "Leave it out: each slot goes on as soon as it is answered. To decide in one pass for those that have asked meanwhile, set "
    "rollout.batching: waiting, with rollout.batch_wait_ms: 20."
)
_FORMAT = "Set env.train.wrappers: [{type: action_format, format: …}], which evaluations take over."
_STAYS = (
    "Leave it out: a simulator keeps its devices, as none here can free their memory and go on. Let the others make room "
    "(actor.offload, rollout.offload), or give env devices of its own (cluster.component_placement)."
)
_ENV: Final[Mapping[str, str]] = {
    **{name: _SHAPED % name for name in ("reward_coef", "use_rel_reward", "use_step_penalty")},
    "action_format": _FORMAT,
    "seed": "Set runner.seed, from which all randomness comes.",
    "delay_sampler": "Set env.train.wrappers: [{type: latency, steps: [least, most]}].",
    "is_eval": "Leave it out: env.eval is what evaluations use.",
}
"""Keys of `env.train` and `env.eval`."""
ELSEWHERE: Final[Mapping[str, str]] = {
    **{f"env.{section}.{name}": remedy for section in ("train", "eval") for name, remedy in _ENV.items()},
    "env.eval.use_fixed_reset_state_ids": _STATES,
    "env.eval.use_ordered_reset_state_ids": _STATES,
    "runner.max_epochs": (
        "Runs are counted in iterations: set runner.max_steps. An epoch is one iteration of an embodied run; of a reasoning run it "
        "is as many as there are training problems, divided by data.rollout_batch_size."
    ),
    "runner.seq_length": "Set rollout.sampling_params.max_new_tokens and data.max_prompt_length.",
    "runner.logger.experiment_name": "Set runner.experiment_name.",
    "actor.seed": "Set runner.seed, from which all randomness comes.",
    "actor.enable_offload": "Set actor.offload.",
    "runner.enable_decoupled_mode": _BATCHING,
    "rollout.enable_decoupled_mode": _BATCHING,
    "rollout.rollout_queue_size": "Set rollout.batching: waiting, with rollout.max_batched_requests.",
    "runner.rollout_queue_size": "Set rollout.batching: waiting, with rollout.max_batched_requests.",
    "rollout.enable_offload": "Set rollout.offload; a reasoning run has actor.offload alone.",
    "env.train.enable_offload": _STAYS,
    "env.eval.enable_offload": _STAYS,
    "algorithm.group_size": "Set env.train.group_size, or rollout.group_size of a reasoning run.",
    "algorithm.reward_type": (
        "Leave it out: a chunk of actions is one decision, with one reward (the sum over the steps that were executed), one value "
        "and one share of credit, as chunk_level elsewhere."
    ),
    "algorithm.rollout_epoch": "Set env.train.rollout_epoch.",
}
"""By dotted path."""


def with_remedies(faults: Iterable[ConfigError]) -> list[ConfigError]:
    """The same faults; an unknown key that has another name here says which."""
    return [_told(fault) for fault in faults]


def _told(fault: ConfigError) -> ConfigError:
    remedy = ELSEWHERE.get(fault.place) if fault.problem == "unknown key" else None
    return fault if remedy is None else type(fault)(fault.place, fault.problem, remedy)
