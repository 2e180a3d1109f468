"""The rules across the sections of an off-policy run, and what only the simulators can tell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.core.data.arrays import as_numpy
from rlinf.core.declarations import needs_of, traits_of
from rlinf.core.envs.robots import LetsHumansAct
from rlinf.core.errors import ConfigError, refuse
from rlinf.core.off_policy import Explores, LearnsFromReference, TrainsOffPolicy
from rlinf.core.replay import available_memory, bytes_of_observation
from rlinf.runners.checkpoints.run_folder import run_folder
from rlinf.runners.config.rules import Rule, fault_of
from rlinf.runners.config.sections import Section, resolved
from rlinf.runners.embodied.rules import PLAYED
from rlinf.runners.off_policy.demo_buffer import PLACE, recorded_slots, unfit_demonstrations
from rlinf.runners.off_policy.interventions import intervention_capacity
from rlinf.runners.off_policy.schema import GIB, OffPolicyConfig
from rlinf.runners.task_types import read_run

TASK_TYPE: Final = "embodied_off_policy"
_LOSS: Final = "algorithm.loss_type"
_HEAD: Final = "actor.model.q_head"
_BUFFER: Final = "algorithm.replay_buffer"


def _judged(cfg: OffPolicyConfig) -> ConfigError | None:
    traits, model, loss = traits_of(cfg.actor.model.config), f"'{cfg.actor.model.model_type}'", f"'{cfg.algorithm.loss_type}'"
    judges = cfg.algorithm.objective.judges
    if judges != "action_values" and traits.q_functions is False:
        return ConfigError("actor.model.num_q_heads", f"{loss} learns Q-functions, and {model} has none", "Set it to 2.")
    if judges == "q_functions" and traits.q_batch_norm:
        problem = f"{loss} learns from target networks, and these critics are made to learn without"
        return ConfigError(_HEAD, problem, f"Set it to multi, or {_LOSS}: crossq.")
    if judges == "batch_normalized_q_functions" and traits.q_batch_norm is False:
        problem = f"{loss} learns without target networks, which critics without the statistics of batches can't"
        return ConfigError(_HEAD, problem, f"Set it to crossq, or {_LOSS}: sac.")
    if judges == "action_values" and traits.discrete_actions is False:
        problem = f"{loss} chooses among numbered actions, and {model} makes vectors of numbers"
        return ConfigError(_LOSS, problem, "Choose sac or td3, or actor.model.model_type mlp_policy.")
    return None


def _remembers(cfg: OffPolicyConfig) -> ConfigError | None:
    if not traits_of(cfg.actor.model.config).recurrent:
        return None
    problem = f"'{cfg.actor.model.model_type}' has a memory, and a replay buffer draws single transitions"
    return ConfigError("actor.model.model_type", problem, "Choose a policy without, such as mlp_policy or cnn_policy.")


def _normalized(cfg: OffPolicyConfig) -> ConfigError | None:
    if not resolved(cfg.actor.model).get("normalize_observations"):
        return None
    problem = "statistics of observations change with each rollout, and with them what a replay buffer keeps would mean"
    return ConfigError(
        "actor.model.normalize_observations", problem, "Set it to false; critics have q_layer_norm, or q_head: crossq."
    )


def _whole_batches(cfg: OffPolicyConfig) -> ConfigError | None:
    size, batch = cfg.actor.micro_batch_size, cfg.actor.global_batch_size
    if cfg.algorithm.objective.judges != "batch_normalized_q_functions" or size is None or size >= batch:
        return None
    problem = (
        f"{size} of {batch} transitions, and critics of '{cfg.algorithm.loss_type}' normalise by the statistics of a whole batch"
    )
    return ConfigError("actor.micro_batch_size", problem, "Leave it out.")


def _latent(cfg: OffPolicyConfig) -> ConfigError | None:
    if not traits_of(cfg.actor.model.config).latent_action:
        return None
    chosen = f"'{cfg.actor.model.model_type}' learns of what it chose, which another policy made an action of"
    if isinstance(cfg.algorithm.objective, Explores):
        return ConfigError(_LOSS, f"{chosen}, and '{cfg.algorithm.loss_type}' adds noise to actions", "Choose sac.")
    if cfg.algorithm.start_steps:
        problem = f"{chosen}, and {cfg.algorithm.start_steps} actions are to be drawn"
        return ConfigError("algorithm.start_steps", problem, f"Set it to 0, and {_BUFFER}.min_buffer_size.")
    if cfg.algorithm.demo_buffer is not None:
        return ConfigError(PLACE, f"{chosen}, and a dataset records actions alone", "Set it to null.")
    if any(isinstance(wrapper, LetsHumansAct) for _, wrapper in cfg.env.train.wrapping):
        return ConfigError("env.train.wrappers", f"{chosen}, and somebody else acts in its place", "Leave that wrapper out.")
    return None


def _refers(cfg: OffPolicyConfig) -> ConfigError | None:
    """An algorithm that changes what another policy proposes goes with such a policy, and that with such an algorithm."""
    loss, model, proposes = f"'{cfg.algorithm.loss_type}'", f"'{cfg.actor.model.model_type}'", "what another policy proposes"
    refers = traits_of(cfg.actor.model.config).reference_action
    if isinstance(cfg.algorithm.objective, LearnsFromReference) and not refers:
        return ConfigError("actor.model.model_type", f"{loss} changes {proposes}, and {model} knows of none", "Set it to rlt.")
    if refers and cfg.algorithm.demo_buffer is not None:
        problem = f"{model} learns from {proposes}, and a dataset records none"
        return ConfigError(PLACE, problem, "Set it to null; what people do in place of the policy is imitated without.")
    if refers and cfg.algorithm.start_steps:
        problem = f"{model} begins as what another policy proposes, and {cfg.algorithm.start_steps} actions are to be drawn"
        return ConfigError("algorithm.start_steps", problem, f"Set it to 0, and {_BUFFER}.min_buffer_size.")
    return None


def _trains(cfg: OffPolicyConfig) -> ConfigError | None:
    if isinstance(cfg.actor.trainer, TrainsOffPolicy):
        return fault_of(cfg.actor.trainer.check_off_policy)
    return ConfigError("actor.training_backend", f"'{cfg.actor.training_backend}' does not train off-policy", "Use fsdp.")


def _held(cfg: OffPolicyConfig) -> ConfigError | None:
    capacity, least, envs = cfg.algorithm.replay_buffer.capacity, cfg.min_transitions, cfg.env.train.total_num_envs
    if capacity < least:
        problem = f"{capacity} transitions are fewer than the {least} that the first update needs"
        return ConfigError(f"{_BUFFER}.capacity", problem, f"Raise it, or lower {_BUFFER}.min_buffer_size.")
    if capacity < 2 * envs:
        problem = f"{capacity} transitions can't be parted over {envs} environments with two each"
        return ConfigError(f"{_BUFFER}.capacity", problem, f"Use at least {2 * envs}.")
    return None


def _recorded(cfg: OffPolicyConfig) -> ConfigError | None:
    if not cfg.algorithm.offline_steps or cfg.algorithm.demo_buffer is not None:
        return None
    problem = f"{cfg.algorithm.offline_steps} iterations are to learn from a dataset, and there is none"
    return ConfigError("algorithm.offline_steps", problem, "Set algorithm.demo_buffer.type and the fields of the dataset.")


def _valued(cfg: OffPolicyConfig) -> ConfigError | None:
    if "value" not in needs_of(cfg.algorithm.objective) or traits_of(cfg.actor.model.config).critic is not False:
        return None
    problem = f"'{cfg.algorithm.loss_type}' learns what a state is worth, and '{cfg.actor.model.model_type}' has no value function"
    return ConfigError("actor.model.add_value_head", problem, "Set it to true.")


def _updated(cfg: OffPolicyConfig) -> ConfigError | None:
    offline = cfg.algorithm.offline_steps
    if offline > cfg.runner.max_steps:
        problem = f"{offline} iterations at the start are more than the {cfg.runner.max_steps} of the run (runner.max_steps)"
        return ConfigError("algorithm.offline_steps", problem, "Lower it, or raise runner.max_steps.")
    made = cfg.decisions_per_iteration * (cfg.runner.max_steps - offline)
    if made >= cfg.min_transitions or offline == cfg.runner.max_steps:
        return None
    problem = f"the run collects {made} transitions, and the first update needs {cfg.min_transitions}: nothing would be learned"
    return ConfigError("runner.max_steps", problem, f"Raise it, or lower {_BUFFER}.min_buffer_size or algorithm.start_steps.")


OFF_POLICY: Final[Sequence[Rule[OffPolicyConfig]]] = (
    *PLAYED,
    _judged,
    _normalized,
    _whole_batches,
    _remembers,
    _latent,
    _refers,
    _trains,
    _held,
    _recorded,
    _valued,
    _updated,
)


def check_actions(cfg: OffPolicyConfig, spec: EnvSpec) -> None:
    """Refuses an algorithm that can't learn what an environment takes, demonstrations of another one, and too large a buffer.

    Raises:
        ConfigError: one line for each of them, with its key.
    """
    own = (_numbered(cfg, spec), _unbounded(cfg, spec), _too_large(cfg, spec), _too_large_for_disk(cfg, spec))
    refuse([*(fault for fault in own if fault is not None), *unfit_demonstrations(cfg, spec)])


def _numbered(cfg: OffPolicyConfig, spec: EnvSpec) -> ConfigError | None:
    env, loss = f"env.train.env_type '{cfg.env.train.env_type}'", f"'{cfg.algorithm.loss_type}'"
    numbered = np.issubdtype(np.dtype(spec.action.dtype), np.integer)
    single = numbered and not spec.action.shape and traits_of(cfg.actor.model.config).chunk in (None, 1)
    if cfg.algorithm.objective.judges != "action_values" and numbered:
        return ConfigError(_LOSS, f"{loss} learns vectors of numbers, and {env} takes numbered actions", "Choose dqn.")
    if cfg.algorithm.objective.judges == "action_values" and not single:
        found = "several numbers" if numbered else "vectors of numbers"
        return ConfigError(_LOSS, f"{loss} chooses one numbered action, and {env} takes {found}", "Choose sac or td3.")
    return None


def _unbounded(cfg: OffPolicyConfig, spec: EnvSpec) -> ConfigError | None:
    if not cfg.algorithm.start_steps or _bounded(spec.action.low, spec.action.high):
        return None
    problem = f"{cfg.algorithm.start_steps} decisions are to be drawn within the bounds of actions, which have none"
    return ConfigError("algorithm.start_steps", problem, "Set it to 0, and algorithm.replay_buffer.min_buffer_size.")


def _too_large(cfg: OffPolicyConfig, spec: EnvSpec) -> ConfigError | None:
    """The replay buffer, and what is kept beside it: decisions of people, and demonstrations."""
    on_disk = bytes_of_observation(cfg.kept_observation(spec)) if cfg.replay_folder is not None else 0
    capacity, size, free = cfg.capacity(spec), cfg.transition_bytes(spec) - on_disk, available_memory()
    acted, slots, each = intervention_capacity(cfg, spec), recorded_slots(cfg), cfg.demonstrated_bytes(spec)
    if capacity * size + (acted + slots) * each <= free:
        return None
    taken = [f"{capacity:,} transitions of {size:,} bytes take {capacity * size / GIB:.1f} GiB"]
    taken += [f"{acted:,} that people make (interventions) {acted * each / GIB:.1f} GiB"] if acted else []
    taken += [f"{slots:,} demonstrated ones {slots * each / GIB:.1f} GiB"] if slots else []
    problem = f"{', '.join(taken)}, and {free / GIB:.1f} GiB are free"
    # One that people make for `capacity / acted` of the policy.
    fit = (free * 9 // 10 - slots * each) * capacity // (capacity * size + acted * each)
    if fit < max(2 * cfg.env.train.total_num_envs, cfg.min_transitions):
        remedy = "Use fewer episodes." if slots else "Use another machine, or smaller observations."
        return ConfigError(PLACE if slots else f"{_BUFFER}.capacity", problem, remedy)
    remedy = f"Use at most {fit:,}, or set {_BUFFER}.max_gib{'' if on_disk else ' or .storage: disk'}."
    return ConfigError(f"{_BUFFER}.capacity", problem, remedy)


def _too_large_for_disk(cfg: OffPolicyConfig, spec: EnvSpec) -> ConfigError | None:
    """What lies on the disk during the run, and the checkpoints: two, while one replaces the other, of what was collected."""
    # The folder of the run is made later.
    path = next(each for each in run_folder(cfg).path.parents if each.exists())
    capacity, size, free = cfg.capacity(spec), cfg.transition_bytes(spec), shutil.disk_usage(path).free
    used = capacity * bytes_of_observation(cfg.kept_observation(spec)) if cfg.replay_folder is not None else 0
    # Each decision may end an episode, whose final observation takes a slot, too.
    filled = min(capacity, 2 * cfg.decisions_per_iteration * cfg.runner.max_steps)
    checkpoints = 2 if 0 < cfg.runner.save_interval < cfg.runner.max_steps else 1
    acted = min(intervention_capacity(cfg, spec), filled) * cfg.demonstrated_bytes(spec)
    needed = used + checkpoints * (filled * size + acted)
    if needed <= free:
        return None
    found = f"{needed / GIB:.1f} GiB of the disk of '{path}', and {free / GIB:.1f} GiB are free"
    problem = f"{capacity:,} transitions and their checkpoints take {found}"
    return ConfigError(f"{_BUFFER}.capacity", problem, f"Lower it, set {_BUFFER}.max_gib, or name another runner.logger.log_path.")


def _bounded(low: Any, high: Any) -> bool:
    return low is not None and high is not None and bool(np.isfinite(as_numpy(low)).all() and np.isfinite(as_numpy(high)).all())


def read_off_policy(data: Section) -> OffPolicyConfig:
    """The typed configuration of an off-policy run, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(OffPolicyConfig, data, task_type=TASK_TYPE, rules=OFF_POLICY)
