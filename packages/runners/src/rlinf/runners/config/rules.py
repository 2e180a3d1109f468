"""Rules across sections: what each of them refuses is told together, before anything starts, with the keys that have to change.

A rule is a function of a whole configuration that returns a fault, or None. What an advantage, a loss, a model or a trainer can't
do without they say themselves (`rlinf.core.declarations`, `rlinf.core.capabilities`); what they don't say is not refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol, TypeVar, cast

from rlinf.core.capabilities import KeepsReference, PacksRows, PolicyLoss
from rlinf.core.declarations import HasNeeds, HasTargets, Need, needs_of, traits_of
from rlinf.core.errors import ConfigError, ConfigErrors, did_you_mean, refuse
from rlinf.runners.config.compat import COMPONENTS
from rlinf.runners.config.schema import AlgorithmConfig, ModelSection, ReferenceConfig, RunConfig, TrainingConfig
from rlinf.runners.config.sections import subsection

C = TypeVar("C")
Rule = Callable[[C], ConfigError | None]
Unmet = Mapping[Need, str]
"""What a run can't give, and what to do about each."""


class _Trained(Protocol):
    """The configuration of a run with an actor."""

    @property
    def source(self) -> Mapping[str, Any]: ...

    @property
    def actor(self) -> TrainingConfig: ...


AUTO: Final = "auto"
"""A `cluster.component_placement` that the planner chooses."""
NEEDS: Final[Mapping[Need, str]] = {
    "value": "a critic",
    "target": "targets for a critic, which the advantage does not have",
    "entropy": "the entropy of decisions, which the model does not know",
    "reference": "a reference policy",
    "proximal": "decisions that the trainer scores again before each update",
    "version": "a count of the weights' versions",
    "baseline": "the score of a greedy answer to each question, which only runs of task type reasoning make",
    "regression": "a flow whose decisions can be regressed on",
    "sum_pi_squared": "the sums of squared probabilities of each token, which only trainers of task type reasoning say",
    "group": "groups of more than one",
}


def apply(cfg: C, rules: Iterable[Rule[C]]) -> None:
    """Applies rules to a configuration.

    Raises:
        ConfigError: a rule refuses it; one line for each fault.
    """
    refuse([fault for rule in rules if (fault := rule(cfg)) is not None])


def fault_of(check: Callable[[], object]) -> ConfigError | None:
    """What a check refuses; None if nothing."""
    try:
        check()
    except ConfigError as error:
        return error
    return None


def together(faults: Iterable[ConfigError]) -> ConfigError | None:
    """Several faults of one rule as one; None without any."""
    found = list(faults)
    return ConfigErrors("configuration", found) if len(found) > 1 else next(iter(found), None)


def placed_components(cluster: Mapping[str, Any]) -> list[str]:
    """The components that `cluster.component_placement` names; a key may name several, with commas."""
    written: object = cluster.get("component_placement")
    if not isinstance(written, Mapping):
        return []
    return [name.strip() for key in cast("Mapping[object, Any]", written) for name in str(key).split(",")]


def moves_work(cluster: Mapping[str, Any]) -> bool:
    """Whether `cluster.auto_scheduler` is on."""
    written: object = cluster.get("auto_scheduler")
    return isinstance(written, Mapping) and cast("Mapping[str, Any]", written).get("policy", "never") != "never"


def work_can_move(cfg: RunConfig) -> ConfigError | None:
    """A task type whose workers can't take work over has no use for `cluster.auto_scheduler`."""
    if not moves_work(cfg.cluster) or cfg.can_move_work:
        return None
    problem = "no work of this task type can move from a worker to another while it is under way"
    return ConfigError("cluster.auto_scheduler.policy", problem, "Set it to never; reasoning runs know others.")


def placement(
    cluster: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = (), *, stages: int = 1, max_lag: int = 0
) -> ConfigError | None:
    """Every component is placed, and no other. Without the section, whoever makes the cluster places them.

    Args:
        cluster: the section.
        required: the components of the run.
        optional: those that it can do without.
        stages: `rollout.pipeline_stage_num`.
        max_lag: `rollout.max_lag`.
    """
    place = "cluster.component_placement"
    written: object = cluster.get("component_placement")
    if written is None:
        return None
    if written == AUTO:
        return together(_planned_otherwise(cluster, stages, max_lag))
    if not isinstance(written, Mapping):
        problem = f"expected a section with the components {', '.join(required)}, or auto, found {written!r}"
        return ConfigError(place, problem)
    names, known = placed_components(cluster), list(dict.fromkeys([*required, *optional]))
    unknown = [name for name in names if name not in known]
    faults = [
        ConfigError(f"{place}.{n}", "this run has no such component", COMPONENTS.get(n) or did_you_mean(n, known)) for n in unknown
    ]
    missing = [name for name in required if name not in names]
    placed = f"Placed: {', '.join(names) or 'none'}."
    faults += [ConfigError(f"{place}.{name}", "this component is not placed", placed) for name in missing]
    return together(faults)


def _planned_otherwise(cluster: Mapping[str, Any], stages: int, max_lag: int) -> Iterator[ConfigError]:
    """What the planner would simulate otherwise than the run does it: it knows its own section only."""
    planner = subsection(cluster, "planner", "cluster")
    for key, own, default, value in (("stages", "pipeline_stage_num", 1, stages), ("max_lag", "max_lag", 0, max_lag)):
        planned = planner.get(key, default)
        if planned != value:
            problem = f"the planner would place a run with {planned}, and rollout.{own} is {value}"
            yield ConfigError(f"cluster.planner.{key}", problem, f"Set it to {value}.")


def whole_batches(batch: int, total: int, *, of: str, made: str, part: str = "an iteration") -> ConfigError | None:
    """An iteration, or a part that is trained on by itself, is a whole number of optimizer steps of the size that was asked for.

    Where an iteration turns out smaller (padding, groups that were dropped), the steps share what there is as evenly as they can.

    Args:
        batch: `actor.global_batch_size`.
        total: what it makes.
        of: what is counted.
        made: how the total comes about.
        part: of what this is the total.
    """
    key = "actor.global_batch_size"
    if batch > total:
        return ConfigError(key, f"{batch} {of} in an optimizer step, but {part} makes only {total} ({made})", f"Use {total}.")
    if total % batch:
        problem = f"{batch} {of} in an optimizer step can't part the {total} of {part} ({made}) into whole steps"
        smaller, greater = _divisor(total, range(batch, 0, -1), 1), _divisor(total, range(batch, total), total)
        return ConfigError(key, problem, f"Use a divisor, such as {smaller} or {greater}.")
    return None


def _divisor(total: int, sizes: Iterable[int], otherwise: int) -> int:
    """The first of some sizes that divides a total; of very many only so many are tried."""
    return next((size for size in islice(sizes, 100_000) if total % size == 0), otherwise)


def needs_met(algorithm: AlgorithmConfig, model: ModelSection, reference: ReferenceConfig, unmet: Unmet) -> ConfigError | None:
    """Advantage and loss get what they can't do without; `unmet` is what this kind of run can't give."""
    unmet = {**unmet, **_unmet_by_model(model, algorithm)}
    if reference.source == "none":
        unmet["reference"] = "Set reference.source."
    if not algorithm.recompute_logprobs:
        unmet["proximal"] = "Set algorithm.recompute_logprobs: true."

    credit, loss = algorithm.advantage, algorithm.loss
    declared = isinstance(credit, HasNeeds) and isinstance(loss, HasNeeds)

    def faults() -> Iterator[ConfigError]:
        # Other losses at least measure how far the policy has gone from its reference.
        unread = declared and isinstance(loss, PolicyLoss) and "reference" not in {**needs_of(credit), **needs_of(loss)}
        if unread and reference.source != "none":
            problem = f"nothing reads the reference policy: '{algorithm.loss_type}' and '{algorithm.adv_type}' have no term for it"
            yield ConfigError("reference.source", problem, "Set it to none.")
        for key, item in (("adv_type", credit), ("loss_type", loss)):
            for need, parameter in needs_of(item).items():
                if need in unmet:
                    subject = "" if parameter else f"'{getattr(algorithm, key)}' "
                    remedy = unmet[need] + (f" Or leave {parameter} out." if parameter else "")
                    yield ConfigError(f"algorithm.{parameter or key}", f"{subject}needs {NEEDS[need]}", remedy)

    return together(faults())


def _unmet_by_model(model: ModelSection, algorithm: AlgorithmConfig) -> dict[Need, str]:
    """What a model, and an advantage for its loss, are known not to give."""
    traits, unmet = traits_of(model.config), dict[Need, str]()
    if traits.critic is False:
        key = traits.critic_key
        unmet["value"] = f"Set actor.model.{key}: true." if key else "Choose an actor.model.model_type that has one."
    if traits.entropy is False:
        unmet["entropy"] = "Choose another actor.model, or leave the bonus out."
    if traits.flow_regression is False or traits.language:
        key = traits.flow_regression_key
        unmet["regression"] = f"Set actor.model.{key}." if key else "Choose an actor.model.model_type that is a flow."
    if isinstance(algorithm.advantage, HasTargets) and not algorithm.advantage.has_targets:
        unmet["target"] = "Choose an algorithm.adv_type with a critic, or an algorithm.loss_type without."
    return unmet


def acts(model: ModelSection, remedy: str) -> ConfigError | None:
    """A model that is known to write, or to judge, moves nothing."""
    traits = traits_of(model.config)
    if not (traits.language or traits.judges):
        return None
    does = "writes text" if traits.language else f"judges {traits.judges}"
    return ConfigError("actor.model.model_type", f"'{model.model_type}' {does} and does not act", remedy)


def no_idle_critic(cfg: _Trained) -> ConfigError | None:
    """What is said of the critic's optimizer is said of a model that has a critic."""
    model, written = cfg.actor.model, subsection(subsection(cfg.source, "actor"), "optim")
    traits = traits_of(model.config)
    if traits.critic is not False:
        return None
    leave = (
        "Leave it out (null)." if not traits.critic_key else f"Set actor.model.{traits.critic_key}: true, or leave it out (null)."
    )
    return together(
        ConfigError(f"actor.optim.{key}", f"{written[key]} for the critic, and '{model.model_type}' has none", leave)
        for key in ("value_lr", "critic_warmup_steps")
        if written.get(key)
    )


def has_blocks(cfg: _Trained) -> ConfigError | None:
    """Gradient checkpointing computes the repeated blocks of a network again, which a model has that is not known to have none."""
    written = subsection(subsection(cfg.source, "actor"), "fsdp_config")
    model, named = cfg.actor.model, subsection(written, "wrap_policy").get("transformer_layer_cls_to_wrap")
    if not written.get("gradient_checkpointing") or named or traits_of(model.config).blocks is not False:
        return None
    problem = f"'{model.model_type}' has no repeated blocks, of which only the inputs could be kept"
    return ConfigError("actor.fsdp_config.gradient_checkpointing", problem, "Set it to false: there is little to save.")


def packs_nothing(cfg: _Trained) -> ConfigError | None:
    """Only text can be packed, and a model that acts gets none."""
    trainer = cfg.actor.trainer
    if not isinstance(trainer, PacksRows) or trainer.max_tokens_per_mbs is None:
        return None
    problem = f"{trainer.max_tokens_per_mbs}, but only text is packed, and '{cfg.actor.model.model_type}' acts"
    return ConfigError("actor.max_tokens_per_mbs", problem, "Leave it out (null); actor.micro_batch_size parts what is trained on.")


def no_idle_reference(actor: TrainingConfig, *, used: bool, remedy: str) -> ConfigError | None:
    """A trainer that is told to keep a reference policy is also asked for it."""
    trainer = actor.trainer
    if used or not isinstance(trainer, KeepsReference) or trainer.keeping_reference() != trainer:
        return None
    return ConfigError("actor.reference", "nothing asks this trainer for a reference policy", remedy)


def cannot_call(function: object, *arguments: str) -> str:
    """Why a function of a user's can't be called with arguments by position; "" where it can.

    Args:
        function: what the user named.
        arguments: what each of them is, for the message.
    """
    if isinstance(function, type):
        return f"expected a function, found the class '{function.__name__}', which is no dataclass"
    if not callable(function):
        return f"expected a function, found {function!r:.80}"
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        return f"'{name}({', '.join(signature.parameters)})' can't be called with {' and '.join(arguments)} ({error})"
    return ""
