"""From a mapping to an `EmbodiedConfig`, and the rules across its sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import Need, action_size_of, episode_steps_of, needs_of, observed_of, tasks_of, traits_of
from rlinf.core.envs.robots import LetsHumansAct
from rlinf.core.errors import ConfigError, did_you_mean, refuse
from rlinf.core.evaluation.results import TaskId
from rlinf.core.protocols import Mode
from rlinf.runners.config.checks import lacking_room
from rlinf.runners.config.rules import (
    Rule,
    acts,
    fault_of,
    has_blocks,
    needs_met,
    no_idle_critic,
    no_idle_reference,
    packs_nothing,
    placement,
    together,
    whole_batches,
)
from rlinf.runners.config.schema import ActorConfig
from rlinf.runners.config.sections import Section, resolved, subsection
from rlinf.runners.config.statistics import lacking_statistics
from rlinf.runners.embodied.action_rules import compiled, formats, large_actions, made_for, real_time
from rlinf.runners.embodied.schema import EmbodiedConfig, PlayedConfig
from rlinf.runners.embodied_sft.co_training import co_trains
from rlinf.runners.task_types import read_run


def _intervened(cfg: EmbodiedConfig) -> ConfigError | None:
    """What somebody else did has no log-probability under the policy."""
    places = [place for place, wrapper in cfg.env.train.wrapping if isinstance(wrapper, LetsHumansAct)]
    if not places:
        return None
    problem = "somebody acts in place of the policy, and this run learns from what the policy itself does"
    return ConfigError(places[0], problem, "Use runner.task_type embodied_off_policy, or remove it.")


def _placement(cfg: PlayedConfig) -> ConfigError | None:
    return placement(cfg.cluster, ("actor", "rollout", "env"), stages=cfg.rollout.pipeline_stage_num, max_lag=cfg.max_lag)


def _batches(cfg: EmbodiedConfig) -> ConfigError | None:
    train, size = cfg.env.train, cfg.actor.global_batch_size
    of_epoch = f"{train.total_num_envs} envs × {train.max_steps_per_rollout_epoch} steps"
    if cfg.runner.use_training_pipeline:
        part = "a rollout epoch with runner.use_training_pipeline"
        return whole_batches(size, cfg.decisions_per_rollout_epoch, of="decisions", made=of_epoch, part=part)
    made = f"{of_epoch} × {train.rollout_epoch} epochs"
    return whole_batches(size, cfg.decisions_per_iteration, of="decisions", made=made)


def _pipeline(cfg: EmbodiedConfig) -> ConfigError | None:
    """What can't be known or done before the rollout is over."""
    if not cfg.runner.use_training_pipeline:
        return None
    key, remedy = "runner.use_training_pipeline", "or set runner.use_training_pipeline: false."
    faults: list[ConfigError] = []
    if cfg.env.train.rollout_epoch == 1:
        problem = f"expected at least 2 with {key}, which trains on one while the next is played, found 1"
        faults.append(ConfigError("env.train.rollout_epoch", problem, f"Raise it, {remedy}"))
    if cfg.algorithm.recompute_logprobs:
        problem = f"scores all decisions of an iteration before its first update, and {key} updates before the last is made"
        faults.append(ConfigError("algorithm.recompute_logprobs", problem, f"Set it to false, {remedy}"))
    if cfg.actor.offload:
        problem = f"leaves the devices to the rollout, during which {key} is to train on them"
        faults.append(ConfigError("actor.offload", problem, f"Set it to false, {remedy}"))
    return together(faults)


def _whole_episodes(cfg: EmbodiedConfig) -> ConfigError | None:
    """A group compares returns of episodes from one initial state; that of a part says nothing of another part."""
    compared_by = f"algorithm.adv_type '{cfg.algorithm.adv_type}'" if "group" in needs_of(cfg.algorithm.advantage) else ""
    compared_by = compared_by or ("algorithm.filter_rewards" if cfg.algorithm.filter_rewards else "")
    if not compared_by or not cfg.env.train.auto_reset:
        return None
    problem = f"true lets an episode go on in a row of the next rollout epoch, and {compared_by} compares rows as episodes"
    return ConfigError("env.train.auto_reset", problem, "Set it to false.")


def _closed_between_rollouts(cfg: PlayedConfig) -> ConfigError | None:
    """No episode goes on in an environment that has been closed."""
    if not cfg.env.offload or not cfg.env.train.auto_reset:
        return None
    problem = "closes the environments behind each rollout, and env.train.auto_reset: true lets episodes go on in the next one"
    return ConfigError("env.offload", problem, "Set env.train.auto_reset: false, or leave env.offload out.")


def _overlapped(cfg: PlayedConfig) -> ConfigError | None:
    """What takes for granted that nobody plays while the actor trains."""
    if not cfg.max_lag:
        return None
    remedy = "or set rollout.max_lag: 0."
    because = f"and with rollout.max_lag {cfg.max_lag} environments are played while the actor trains"
    problems: dict[str, str] = {}
    if cfg.rollout.offload:
        problems["rollout.offload"] = f"leaves the devices to others while nobody decides, {because}"
    if cfg.env.offload:
        problems["env.offload"] = f"closes the environments while the actor trains, {because}"
    if isinstance(cfg.actor, ActorConfig) and cfg.actor.offload:
        problems["actor.offload"] = f"leaves the devices to the rollout while nobody trains, {because}"
    if cfg.trains_on_arrival:
        problems["runner.use_training_pipeline"] = f"trains during the rollout of the same iteration, {because}: on an earlier one"
    return together(ConfigError(key, problem, f"Set it to false, {remedy}") for key, problem in problems.items())


def _needs(cfg: EmbodiedConfig) -> ConfigError | None:
    unmet: dict[Need, str] = {
        "baseline": "Choose algorithm.adv_type rloo, which compares with the other rows of a group.",
        "sum_pi_squared": "Choose another algorithm.adv_type.",
    }
    if cfg.env.train.group_size == 1:
        unmet["group"] = "Raise env.train.group_size."
    return needs_met(cfg.algorithm, cfg.actor.model, cfg.reference, unmet)


def _batching(cfg: PlayedConfig) -> ConfigError | None:
    if cfg.rollout.batching == "none" or traits_of(cfg.actor.model.config).row_generators:
        return None
    problem = f"'{cfg.actor.model.model_type}' does not say that rows of one pass can have random numbers of their own"
    remedy = "Set it to none, or let the policy take rlinf.core.random.RowGenerators and its traits say row_generators=True."
    return ConfigError("rollout.batching", f"{cfg.rollout.batching}: {problem}", remedy)


def _acts(cfg: PlayedConfig) -> ConfigError | None:
    return acts(cfg.actor.model, "Choose a policy.")


def _sequences(cfg: EmbodiedConfig) -> ConfigError | None:
    """A policy with a memory learns from whole pieces of episodes, of which every optimizer step needs one."""
    columns, size = cfg.env.train.max_steps_per_rollout_epoch, cfg.actor.global_batch_size
    if not traits_of(cfg.actor.model.config).recurrent or size >= columns:
        return None
    problem = f"'{cfg.actor.model.model_type}' has a memory and learns from pieces of {columns} decisions, found batches of {size}"
    remedy = "Raise it, or lower env.train.max_steps_per_rollout_epoch."
    return ConfigError("actor.global_batch_size", problem, remedy)


def _observed(cfg: PlayedConfig) -> ConfigError | None:
    # A wrapper may add what the environment itself does not show; `check_spec` sees the result.
    known = None if cfg.env.train.wrappers else observed_of(cfg.env.train.init_params)
    return None if known is None else _unseen(cfg, known)


def _large_actions(cfg: PlayedConfig) -> ConfigError | None:
    return large_actions(cfg.actor.model, cfg.action_size, f"{_env(cfg)} takes")


def _evaluated_actions(cfg: PlayedConfig) -> ConfigError | None:
    trained = cfg.action_size
    evaluated = None if cfg.env.eval.wrappers else action_size_of(cfg.env.eval.init_params)
    return None if trained is None or evaluated is None else _other_actions(cfg, [evaluated], [trained])


def _other_actions(cfg: PlayedConfig, evaluated: Sequence[int], trained: Sequence[int]) -> ConfigError | None:
    if list(evaluated) == list(trained):
        return None
    takes = f"'{cfg.env.eval.env_type}' takes actions {list(evaluated)}"
    return ConfigError(_EVALUATED, f"{takes}, and {_env(cfg)} {list(trained)}", _ALIKE)


def _env(cfg: PlayedConfig, within: Mode = "train") -> str:
    """The environment of a section of `env`, with its key."""
    section = cfg.env.train if within == "train" else cfg.env.eval
    return f"env.{within}.env_type '{section.env_type}'"


def _unseen(cfg: PlayedConfig, shown: Iterable[str], within: Mode = "train") -> ConfigError | None:
    shown = sorted(shown)
    traits = traits_of(cfg.actor.model.config)
    missing = [key for key in traits.observations or () if key not in shown]
    if traits.any_observation and not set(traits.any_observation) & set(shown):
        missing.append(" or ".join(traits.any_observation))
    if not missing:
        return None
    problem = f"'{cfg.actor.model.model_type}' needs {', '.join(missing)}, and {_env(cfg, within)} shows {', '.join(shown)}"
    remedy = f"Let the environment show it, as a rule by env.{within}.init_params.obs_mode, or choose another model."
    return ConfigError("actor.model.model_type", problem, remedy)


def _chunks(cfg: PlayedConfig) -> ConfigError | None:
    for place, env in (("env.train", cfg.env.train), ("env.eval", cfg.env.eval)):
        if env.max_episode_steps is not None:
            fault = _too_long(cfg, f"{place}.max_episode_steps", env.max_episode_steps)
        elif (limit := episode_steps_of(env.init_params)) == 0:
            problem = f"'{env.env_type}' has no step limit of its own"
            fault = ConfigError(f"{place}.max_episode_steps", problem, "Set it, to the steps after which an episode is cut.")
        else:
            remedy = f"Lower it, or set {place}.max_episode_steps."
            fault = _too_long(cfg, f"{place}.env_type '{env.env_type}'", limit, remedy)
        if fault is not None:
            return fault
    return None


def _too_long(
    cfg: PlayedConfig, place: str, limit: int | None, remedy: str = "Lower it, or raise the limit."
) -> ConfigError | None:
    chunk = traits_of(cfg.actor.model.config).chunk
    if chunk is None or limit is None or chunk <= limit:
        return None
    problem = f"'{cfg.actor.model.model_type}' decides for {chunk} control steps at once, and {place} ends an episode after {limit}"
    return ConfigError("actor.model.num_action_chunks", problem, remedy)


def _tasks(cfg: PlayedConfig) -> ConfigError | None:
    known = tasks_of(cfg.env.eval.init_params)
    if known is None:
        return None
    named = {name for names in known for name in names}
    asked = [task for task in cfg.env.eval.task_ids if task not in named]
    return _unknown_task(cfg, len(known), asked, named)


def _unknown_task(cfg: PlayedConfig, count: int, asked: Iterable[TaskId], names: Iterable[str] = ()) -> ConfigError | None:
    """The first task asked for that an environment with so many tasks does not have; any number beyond them, and any text."""
    wrong = next((task for task in asked if isinstance(task, str) or not 0 <= task < count), None)
    if wrong is None:
        return None
    env = f"env.eval.env_type '{cfg.env.eval.env_type}'"
    if not count:
        return ConfigError("env.eval.tasks", f"{env} can't be asked for a task, found {wrong!r}", "Leave it out.")
    label = f"Tasks, numbered 0 to {count - 1}"
    remedy = did_you_mean(str(wrong), sorted(names), label=label) if names else f"{label}."
    return ConfigError("env.eval.tasks", f"{env} has no task {wrong!r}", remedy)


def check_states(cfg: PlayedConfig, metadata: Mapping[str, Any], *, trains: bool) -> None:
    """Refuses tasks and initial states of evaluations that an environment does not have, by what it says of itself when built.

    Args:
        cfg: the run.
        metadata: of the environment that evaluations are played in.
        trains: whether there are evaluations before the last one.

    Raises:
        ConfigError: the message has the key and what there is.
    """
    config, takes = cfg.env.eval, metadata.get("reset_options")
    # An environment that does not say what a reset takes is asked at the first one.
    if takes is None:
        return
    count = max(1, len(metadata.get("tasks", ()))) if "task" in takes else 0
    # Names beside the texts are known to the environment alone, which refuses others when it is reset.
    fault = _unknown_task(cfg, count, [task for task in config.task_ids if isinstance(task, int) or not count])
    if fault is not None:
        raise fault
    if config.initial_states != "id":
        return
    env, states = f"env.eval.env_type '{config.env_type}'", metadata.get("init_ids")
    if "init_id" not in takes:
        raise ConfigError("env.eval.initial_states", f"{env} does not number its initial states", "Use seed.")
    last = {"episodes": config.episodes} if trains and cfg.runner.val_check_interval else {}
    if config.init_ids is not None:
        last["init_ids"] = max(config.init_ids) + 1
    else:
        last |= {"final_episodes": config.final_episodes} if config.final_episodes else {"episodes": config.episodes}
    for key, count in last.items():
        if states is not None and count > states:
            problem = f"{env} has no initial state {count - 1}"
            raise ConfigError(f"env.eval.{key}", problem, f"Those of a task are numbered 0 to {states - 1}.")


def check_spec(cfg: PlayedConfig, spec: EnvSpec, *, within: Mode = "train", of_checkpoint: bool = False) -> None:
    """Refuses a model that can't act in an environment; called when the simulators are up, before any model is built.

    Args:
        cfg: the run.
        spec: what is acted in.
        within: the section of `env` that it is of.
        of_checkpoint: whether the weights are those of a checkpoint of ours, which have their own statistics.

    Raises:
        ConfigError: the environment numbers its actions, and the model makes vectors of numbers; it does not show what the model
            needs; its actions have more numbers than the model makes; its episodes are shorter than a chunk of actions; the
            statistics of the weights are of other actions; or there is no room for what its tasks ask for.
    """
    model, env = f"'{cfg.actor.model.model_type}'", _env(cfg, within)
    discrete = np.issubdtype(np.dtype(spec.action.dtype), np.integer)
    if discrete and traits_of(cfg.actor.model.config).discrete_actions is False:
        remedy = "Choose an environment with continuous actions, or a model of your own that decides among numbers."
        raise ConfigError("actor.model.model_type", f"{model} makes vectors of numbers, and {env} takes numbered actions", remedy)
    actions = spec.action.shape[0] if spec.action.shape else None
    large = large_actions(cfg.actor.model, actions, f"{env} takes")
    faults = (_unseen(cfg, spec.observation, within), _too_long(cfg, env, spec.max_episode_steps), large)
    refuse([*(fault for fault in faults if fault), *(() if of_checkpoint else lacking_statistics(cfg, actions))])
    refuse(lacking_room(cfg, spec))


def check_evaluated(cfg: PlayedConfig, spec: EnvSpec, trained: EnvSpec) -> None:
    """Refuses another environment in evaluations, in which the policy of training can't act.

    Args:
        cfg: the run.
        spec: what is evaluated in.
        trained: what is trained in.

    Raises:
        ConfigError: other actions, an observation that is missing or has another shape, or episodes shorter than a chunk.
    """
    evaluated, own = f"'{cfg.env.eval.env_type}'", _env(cfg)
    other = _other_actions(cfg, spec.action.shape, trained.action.shape)
    if other is not None:
        raise other
    for key, wanted in trained.observation.items():
        found = spec.observation.get(key)
        if found is None or found.shape != wanted.shape:
            shown = "nothing" if found is None else list(found.shape)
            raise ConfigError(_EVALUATED, f"{evaluated} shows {shown} as '{key}', and {own} {list(wanted.shape)}", _ALIKE)
    fault = _too_long(cfg, _env(cfg, "eval"), spec.max_episode_steps)
    if fault is not None:
        raise fault


def _granularity(cfg: EmbodiedConfig) -> ConfigError | None:
    """A loss adds log-probabilities up; it can't part what the model has added up already."""
    declared = resolved(cfg.actor.model).get("logprob_type")
    for key in ("logprob_type", "entropy_type"):
        written = subsection(cfg.source, "algorithm").get(key)
        if declared in _FINER and written in _FINER and _FINER.index(written) < _FINER.index(declared):
            problem = f"{written} is finer than the {declared} that '{cfg.actor.model.model_type}' gives (actor.model.logprob_type)"
            return ConfigError(f"algorithm.{key}", problem, f"Set actor.model.logprob_type: {written}.")
    return None


def _scored(cfg: EmbodiedConfig) -> ConfigError | None:
    """What was not drawn has no log-probability, and its ratio is always 1."""
    if traits_of(cfg.actor.model.config).scored is not False:
        return None
    remedy = "Choose flow_sde or flow_noise, or set actor.model.sampling.likelihood: matching."
    return ConfigError("actor.model.sampling.noise_method", "decisions have no log-probability, and teach nothing", remedy)


def _reference(cfg: EmbodiedConfig) -> ConfigError | None:
    used = cfg.reference.source == "initial"
    return no_idle_reference(cfg.actor, used=used, remedy="Set reference.source: initial, or leave it out.")


_FINER: Final = get_args(Granularity)
"""From the finest to the coarsest."""
_EVALUATED: Final = "env.eval.env_type"
_ALIKE: Final = "Evaluate in what the policy is trained for, or bring env.eval.init_params and env.eval.wrappers in line."
PLAYED: Final[Sequence[Rule[PlayedConfig]]] = (
    _placement,
    _batching,
    _acts,
    _observed,
    _large_actions,
    _evaluated_actions,
    _chunks,
    formats,
    made_for,
    real_time,
    compiled,
    _tasks,
    _closed_between_rollouts,
    _overlapped,
)
"""What every run refuses that plays, however it learns."""
EMBODIED: Final[Sequence[Rule[EmbodiedConfig]]] = (
    *PLAYED,
    _intervened,
    _batches,
    _pipeline,
    _whole_episodes,
    _sequences,
    _needs,
    has_blocks,
    packs_nothing,
    _granularity,
    _scored,
    no_idle_critic,
    _reference,
    lambda cfg: fault_of(cfg.actor.build_gate),
    co_trains,
)


def read_embodied(data: Section) -> EmbodiedConfig:
    """The typed configuration of an embodied run, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(EmbodiedConfig, data, task_type="embodied", rules=EMBODIED)
