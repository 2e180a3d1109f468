"""From a mapping to a `ReasoningConfig`, and the rules across its sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Final

from rlinf.core.capabilities import HasCasting, HasPrecision
from rlinf.core.declarations import HasContextLength, Need, traits_of
from rlinf.core.errors import ConfigError, below, did_you_mean
from rlinf.core.rewards import HasOpinion, HasParts, SampleReward
from rlinf.runners.config.rules import (
    Rule,
    cannot_call,
    fault_of,
    moves_work,
    needs_met,
    no_idle_reference,
    placed_components,
    placement,
    whole_batches,
)
from rlinf.runners.config.sections import Section, subsection
from rlinf.runners.reasoning.language import HasTokenizer
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.sft.warm_starts import warm_start_config
from rlinf.runners.task_types import read_run

_SAMPLING: Final = "rollout.sampling_params"
_REWARD: Final = "Let it take the two lists alone, or decorate a function of samples with rlinf.core.rewards.sample_reward."


def _placement(cfg: ReasoningConfig) -> ConfigError | None:
    return placement(cfg.cluster, ("actor", "rollout", "reward"), cfg.optional_components, max_lag=cfg.rollout.max_lag)


def _batches(cfg: ReasoningConfig) -> ConfigError | None:
    made = f"{cfg.data.rollout_batch_size} problems × {cfg.rollout.group_size} responses"
    return whole_batches(cfg.actor.global_batch_size, cfg.responses_per_iteration, of="responses", made=made)


def _explores(cfg: ReasoningConfig) -> ConfigError | None:
    if cfg.rollout.sampling_params.temperature > 0:
        return None
    problem = "expected more than 0, found 0: greedy responses explore nothing"
    return ConfigError(f"{_SAMPLING}.temperature", problem, "Set eval.temperature for greedy evaluations.")


def _one_temperature(cfg: ReasoningConfig) -> ConfigError | None:
    """A model that scores at another temperature than that of sampling gets no ratio right."""
    scored, sampled = traits_of(cfg.actor.model.config).temperature, cfg.rollout.sampling_params.temperature
    # Sampling at 0 is what `_explores` refuses.
    if scored is None or scored == sampled or sampled == 0:
        return None
    found = f"expected {sampled:g} as in {_SAMPLING}.temperature, found {scored:g}"
    return ConfigError("actor.model.temperature", found, "Set both to the same value.")


def _writes(cfg: ReasoningConfig) -> ConfigError | None:
    model = cfg.actor.model
    if isinstance(model.config, HasTokenizer) and traits_of(model.config).language is not False:
        return None
    return ConfigError("actor.model.model_type", f"'{model.model_type}' has no tokenizer", "Choose a language model.")


def _overlong_in_reach(cfg: ReasoningConfig) -> ConfigError | None:
    overlong, longest = cfg.reward.overlong, cfg.rollout.sampling_params.max_new_tokens
    if overlong is None or overlong.max_length <= longest:
        return None
    problem = f"expected at most {_SAMPLING}.max_new_tokens = {longest}, found {overlong.max_length}: no response is so long"
    return ConfigError("reward.overlong.max_length", problem, "Lower it, or allow longer responses.")


def _scores_texts(cfg: ReasoningConfig) -> ConfigError | None:
    """A function of one's own is called with completions and answers; what calls it otherwise would fail in a worker."""
    reward: object = cfg.reward.reward
    asked: dict[str, object] = {"reward.reward_type": reward}
    if isinstance(reward, HasParts):
        asked |= {f"reward.parts.{name}.reward": part for name, part in reward.rewards.items()}
    found = {place: _not_callable(each) for place, each in asked.items()}
    return next((ConfigError(place, problem, _REWARD) for place, problem in found.items() if problem), None)


def _not_callable(reward: object) -> str:
    """Why a reward can't be called; "" where it can."""
    if isinstance(reward, SampleReward) and not isinstance(reward, type):
        return ""
    only_samples = "expected no async function: only a reward that is asked about samples may wait"
    return cannot_call(reward, "completions", "answers") or (only_samples if iscoroutinefunction(reward) else "")


def _knows_what_is_right(cfg: ReasoningConfig) -> ConfigError | None:
    """Accuracy is the share of right responses: a rule says it, or the user says from which opinion on."""
    reward: object = cfg.reward.reward
    part, name = cfg.reward.success_part, cfg.reward.reward_type
    if part is not None:
        parts: Mapping[str, object] = reward.rewards if isinstance(reward, HasParts) else {}
        if part not in parts:
            hint = did_you_mean(part, list(parts), label="Parts")
            return ConfigError("reward.success_part", f"the reward '{name}' has no part '{part}'", hint)
        reward, name = parts[part], part
    if not isinstance(reward, HasOpinion) or not reward.opinion or "success" in subsection(cfg.source, "reward"):
        return None
    problem = f"missing: '{name}' has a model's opinion in it, and none of its scores is known to mean that a response is right"
    remedy = (
        "Let a rule decide what counts as right: a part of reward_type composite, of any weight, named by reward.success_part. "
        "Or set the score from which on the model's opinion counts."
    )
    return ConfigError("reward.success", problem, remedy)


def _room_for_prompts(cfg: ReasoningConfig) -> ConfigError | None:
    generator, longest = cfg.rollout.generator, cfg.rollout.sampling_params.max_new_tokens
    whole = generator.max_model_len if isinstance(generator, HasContextLength) else None
    if whole is None or whole > longest:
        return None
    problem = f"expected more than the {longest} tokens of {_SAMPLING}.max_new_tokens, so that a prompt has room, found {whole}"
    return ConfigError("rollout.max_model_len", problem, "Raise it, or allow shorter responses only.")


def _needs(cfg: ReasoningConfig) -> ConfigError | None:
    unmet: dict[Need, str] = {}
    if not cfg.can_compare_tokens:
        unmet["sum_pi_squared"] = "Choose another algorithm.adv_type."
    elif not cfg.algorithm.recompute_logprobs:
        # Both from one pass, so that 1 − 2 π(a) + Σ π² is of one policy, also where the rollout's weights are older.
        unmet["sum_pi_squared"] = "Set algorithm.recompute_logprobs: true."
    if not cfg.can_compare_with_greedy:
        unmet["baseline"] = "Choose another algorithm.adv_type."
    if cfg.rollout.group_size == 1:
        unmet["group"] = "Raise rollout.group_size."
    return needs_met(cfg.algorithm, cfg.actor.model, cfg.reference, unmet)


def _something_goes_on(cfg: ReasoningConfig) -> ConfigError | None:
    if not cfg.rollout.partial_lag or cfg.rollout.oversample > 1:
        return None
    problem = (
        f"expected 0, found {cfg.rollout.partial_lag}: with rollout.oversample 1 all groups are waited for, and none goes on later"
    )
    return ConfigError("rollout.partial_lag", problem, "Raise rollout.oversample, or leave it out.")


def _work_can_move(cfg: ReasoningConfig) -> ConfigError | None:
    if not moves_work(cfg.cluster) or cfg.rollout.oversample == 1:
        return None
    problem = "groups move while they are written where all of them are needed; with rollout.oversample the last ones are aborted"
    return ConfigError("cluster.auto_scheduler.policy", problem, "Set it to never, or rollout.oversample to 1.")


def _groups_can_differ(cfg: ReasoningConfig) -> ConfigError | None:
    if cfg.algorithm.dynamic_sampling is None or cfg.rollout.group_size > 1:
        return None
    problem = "drops groups whose responses agree, and those of one response always do"
    return ConfigError("algorithm.dynamic_sampling", problem, "Raise rollout.group_size.")


def _precision(cfg: ReasoningConfig) -> ConfigError | None:
    """A rollout in a precision of its own needs a model that has one, and weights that are cast on their way."""
    if cfg.rollout.precision is None:
        return None
    if not isinstance(cfg.actor.model.config, HasPrecision):
        problem = f"the model '{cfg.actor.model.model_type}' knows no precision, found {cfg.rollout.precision}"
        return ConfigError("rollout.precision", problem, "Leave it out.")
    if not isinstance(cfg.actor.weight_syncer.sync, HasCasting):
        problem = f"the weight syncer '{cfg.actor.weight_syncer.type}' casts no weights"
        return ConfigError("rollout.precision", problem, "Leave it out, or choose full, bucket, patch or disk.")
    return None


def _reference(cfg: ReasoningConfig) -> ConfigError | None:
    used = cfg.reference.source == "initial" and "inference" not in placed_components(cfg.cluster)
    remedy = "Set reference.source: initial and place no inference workers, or leave it out."
    return no_idle_reference(cfg.actor, used=used, remedy=remedy)


def _warm_start(cfg: ReasoningConfig) -> ConfigError | None:
    """The section `sft` is a configuration of its own, which would otherwise be read when the cluster is up."""
    try:
        if cfg.sft is not None:
            warm_start_config(cfg.source)
    except ConfigError as error:
        return below("sft", error)
    return None


REASONING: Final[Sequence[Rule[ReasoningConfig]]] = (
    _placement,
    _batches,
    _explores,
    _one_temperature,
    _writes,
    _overlong_in_reach,
    _scores_texts,
    _knows_what_is_right,
    _room_for_prompts,
    _needs,
    _groups_can_differ,
    _something_goes_on,
    _work_can_move,
    _precision,
    _reference,
    _warm_start,
    lambda cfg: fault_of(cfg.actor.build_gate),
)


def read_reasoning(data: Section) -> ReasoningConfig:
    """The typed configuration of a reasoning run, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(ReasoningConfig, data, task_type="reasoning", rules=REASONING)
