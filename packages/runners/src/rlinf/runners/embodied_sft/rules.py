"""What supervised fine-tuning on demonstrations refuses: across sections, and of a dataset that does not fit model or simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np

from rlinf.core.capabilities import HasExpert
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineSource
from rlinf.core.declarations import KnowsExpert, traits_of
from rlinf.core.errors import ConfigError, refuse
from rlinf.core.registry import ENVS
from rlinf.runners.config.rules import Rule, acts, fault_of, has_blocks, no_idle_critic, packs_nothing, placement, together
from rlinf.runners.config.sections import Section
from rlinf.runners.embodied.schema import EvalEnvConfig
from rlinf.runners.embodied.wrapping import described
from rlinf.runners.embodied_sft.dataset import growing
from rlinf.runners.embodied_sft.demonstrations import TEXTS, held_out
from rlinf.runners.embodied_sft.evaluation import embodied_data, evaluation_config
from rlinf.runners.embodied_sft.fitting import Fitting
from rlinf.runners.embodied_sft.labels import learns_labels, read_labels
from rlinf.runners.embodied_sft.returns import solved_of
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig
from rlinf.runners.sft.rules import no_reference
from rlinf.runners.task_types import read_run

_MODEL = "actor.model.model_type"


def _placement(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    evaluates = ("rollout", "env") if cfg.env is not None else ()
    return placement(cfg.cluster, ("actor", *evaluates), ("rollout", "env"))


def _acts(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    if traits_of(cfg.actor.model.config).judges in ("states", "pairs of states"):
        return _judges_alone(cfg)
    return acts(cfg.actor.model, "Choose a policy; apps/reasoning/sft.py fine-tunes what writes or judges texts.")


def _judges_alone(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    """What judges states neither plays nor learns what was done."""
    given = {"env": cfg.env, "dagger": cfg.dagger, "data.labels": cfg.data.labels, "data.chunk_length": cfg.data.chunk_length}
    said = f"'{cfg.actor.model.model_type}' judges {traits_of(cfg.actor.model.config).judges} and does not act"
    return together(ConfigError(key, said, "Set it to null.") for key, value in given.items() if value is not None)


def _conditioned(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    """Who can be told which actions were good is told, and nobody else."""
    conditioned, model = learns_labels(cfg.actor.model.config), f"'{cfg.actor.model.model_type}'"
    if cfg.data.labels is None:
        if not conditioned:
            return None
        problem = f"expected a file, as {model} with a condition learns which actions were good, found null"
        return ConfigError("data.labels", problem, "Write one (apps/embodied/label_advantages.py), or leave out the condition.")
    if cfg.dagger is not None:
        return ConfigError("data.labels", "what dagger adds to the data has no labels", "Leave out one of the two.")
    if not conditioned and traits_of(cfg.actor.model.config).judges is None:
        remedy = "Use flow_policy, pi0 or pi05 with actor.model.condition: {}, or set data.labels to null."
        return ConfigError("data.labels", f"{model} as it is configured can't be told which actions were good", remedy)
    return None


def _no_memory(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    if not traits_of(cfg.actor.model.config).recurrent:
        return None
    problem = f"'{cfg.actor.model.model_type}' has a memory, and examples are single steps here"
    return ConfigError(_MODEL, problem, "Choose a policy without one.")


def _statistics(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    folder: Any = embodied_data(cfg)["actor"]["model"].get("model_path")
    if cfg.data.statistics == "dataset" or folder is not None or cfg.runner.ckpt_path is not None:
        return None
    problem = "'model' keeps the statistics of a model that has none: neither actor.model.model_path nor runner.ckpt_path is set"
    return ConfigError("data.statistics", problem, "Set one of them, or data.statistics: dataset.")


def _plays(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    if cfg.dagger is None or cfg.env is not None:
        return None
    remedy = "Set env.eval.env_type and env.eval.init_params to a simulator with a scripted expert."
    return ConfigError("dagger", "there is no env in which the policy could be played with", remedy)


def _grows(cfg: EmbodiedSFTConfig) -> ConfigError | None:
    return None if cfg.dagger is None else fault_of(lambda: growing(cfg))


EMBODIED_SFT: Final[Sequence[Rule[EmbodiedSFTConfig]]] = (
    _placement,
    _acts,
    _conditioned,
    _no_memory,
    no_idle_critic,
    has_blocks,
    packs_nothing,
    no_reference,
    _statistics,
    _plays,
    _grows,
)


def read_embodied_sft(data: Section) -> EmbodiedSFTConfig:
    """The typed configuration of `embodied_sft`, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(EmbodiedSFTConfig, data, task_type="embodied_sft", rules=EMBODIED_SFT)


def check_data(cfg: EmbodiedSFTConfig) -> None:
    """Refuses a dataset that model or simulator can't use, before a worker starts; builds one environment if there is `env`.

    Raises:
        ConfigError: one line for each thing that does not fit, with the names of both sides.
    """
    env = None if cfg.env is None else cfg.env.eval
    if cfg.dagger is not None and env is not None:
        _refuse_no_expert(env)
    source = cfg.data.dataset.open()
    # What needs no simulator is told before one is built.
    fit = Fitting(cfg.actor.model, cfg.data.dataset, source, cfg.data.chunk_length, "data")
    refuse([*fit.unfit_for_model(), *_too_few(cfg, source)])
    refuse([*_too_few_solved(cfg, source), *fit.not_finite()])
    if cfg.data.labels is not None:
        read_labels(cfg.data.labels, len(source))
    spec = None if env is None else described(env)
    refuse(list(fit.unknown_keys(spec)))
    if env is not None and spec is not None:
        refuse(list(fit.unfit_for_env("env.eval", env.env_type, spec)))
        refuse(list(_other_actions(source, env.env_type, spec.action)))
    if cfg.dagger is not None and env is not None:
        refuse(list(_other_features(source, env.env_type, described(replace(env, wrappers=())))))
    if env is not None:
        # What it refuses would otherwise be known when all training is over.
        evaluation_config(cfg)


def _too_few(cfg: EmbodiedSFTConfig, source: OfflineSource) -> Iterator[ConfigError]:
    count = len(source)
    if held_out(count, cfg.data.val_episodes) >= count:
        problem = f"expected fewer than the {count} episodes of '{source.name}', found {held_out(count, cfg.data.val_episodes)}"
        yield ConfigError("data.val_episodes", problem, "At least one is to be learned: record more, or hold out fewer.")


def _too_few_solved(cfg: EmbodiedSFTConfig, source: OfflineSource) -> Iterator[ConfigError]:
    """Critics of progress learn from episodes that were solved; no more are read than it takes to find enough."""
    if traits_of(cfg.actor.model.config).judges != "pairs of states":
        return
    needed = 1 + (cfg.data.val_episodes or 1)
    found = sum(1 for _ in islice(solved_of(source.episodes()), needed))
    if found < needed:
        problem = f"expected at least {needed} episodes that were solved, as '{cfg.actor.model.model_type}' learns from these and "
        problem += f"holds out {needed - 1}, found {found} of the {len(source)} of '{source.name}'"
        yield ConfigError("data", problem, "Record more, or use recap_value_model, which learns from failures, too.")


def _refuse_no_expert(config: EvalEnvConfig) -> None:
    """Refuses a simulator without an expert, of which one is built to know."""
    env = config.init_params.make(1, max_episode_steps=config.max_episode_steps, ignore_terminations=False, render=False)
    try:
        known = isinstance(env.unwrapped, HasExpert)
    finally:
        env.close()
    if known:
        return
    others = [name for name in ENVS.names() if _declares_expert(name)]
    problem = f"'{config.env_type}' has no scripted expert (expert_actions), and dagger asks one what to do"
    raise ConfigError("env.eval.env_type", problem, f"These have one: {', '.join(others)}. Or leave out dagger.")


def _declares_expert(name: str) -> bool:
    item: object = ENVS.get(name)
    return isinstance(item, KnowsExpert) and item.has_expert is True


def _other_actions(source: OfflineSource, env_type: str, action: ArraySpec) -> Iterator[ConfigError]:
    """Refuses actions in another convention than that of the simulator with its wrappers; the first episode is read."""
    if action.low is None or action.high is None:
        return
    done = np.asarray(next(iter(source.episodes())).action, np.float64)
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), done.shape[1:]) for bound in (action.low, action.high))
    # People and noise exceed bounds by a little, another convention by much.
    far = np.argwhere((done < low - (high - low) / 2) | (done > high + (high - low) / 2))
    for step, *number in far[:1]:
        at = tuple(number)
        problem = f"an action of '{source.name}' has {done[step][at]:g} at {list(map(int, at))}, "
        problem += f"where env.eval.env_type '{env_type}' with its wrappers takes {low[at]:g} to {high[at]:g}"
        remedy = "Name the format that leads from a policy's actions to these, as in env.eval.wrappers; or leave out that wrapper."
        yield ConfigError("data.action_format", problem, remedy)


def _other_features(source: OfflineSource, env_type: str, env: EnvSpec) -> Iterator[ConfigError]:
    """One dataset has room for one kind of observation: that of the simulator."""
    ours, theirs = f"'{source.name}'", f"env.eval.env_type '{env_type}'"
    for key in sorted({*env.observation} - {TEXTS}):
        recorded, simulated = source.spec.observation.get(key), env.observation[key]
        if recorded is None or recorded.shape != simulated.shape:
            has = "nothing" if recorded is None else f"the shape {list(recorded.shape)}"
            problem = f"{ours} has {has} as '{key}', {theirs} shows {list(simulated.shape)}, and dagger adds the one to the other"
            remedy = f"Record demonstrations in it with apps/embodied/collect.py; its features are {', '.join(source.features)}."
            yield ConfigError(f"data.keys.{key}", problem, remedy)
