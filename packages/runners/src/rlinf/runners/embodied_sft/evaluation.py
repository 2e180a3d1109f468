"""The evaluation of a policy that was fine-tuned: that of any embodied run, with what this one says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf.core.config.reading import field_names
from rlinf.core.errors import ConfigError, each_fault, refuse
from rlinf.runners.config.schema import RunnerConfig
from rlinf.runners.config.sections import subsection
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig

_SHARED = {*field_names(RunnerConfig)} - {"task_type", "resume_dir"}
"""What `runner` says of the evaluation, too."""


def embodied_data(cfg: EmbodiedSFTConfig) -> dict[str, Any]:
    """The sections of this run that an embodied one has, too."""
    return {name: dict(subsection(cfg.source, name)) for name in ("runner", "cluster", "env", "actor")}


def evaluation_config(cfg: EmbodiedSFTConfig) -> EmbodiedConfig:
    """An embodied run that plays the episodes of `env.eval` with the policy of this run.

    Raises:
        ConfigError: there is no `env`.
    """
    try:
        return _embodied(cfg, expert=False)
    except ConfigError as error:
        # What is said of environments of training, which are copies, is said of those that the user named.
        faults = {str(fault): fault for fault in map(_of_evaluation, each_fault(error))}
        refuse([*faults.values()])
        raise


def collection_config(cfg: EmbodiedSFTConfig) -> EmbodiedConfig:
    """The same with an expert that can act in `env.train`, which is where a DAgger run plays.

    Raises:
        ConfigError: there is no `env`.
    """
    return _embodied(cfg, expert=True)


def _of_evaluation(fault: ConfigError) -> ConfigError:
    place, problem, remedy = (each.replace("env.train.", "env.eval.") for each in (fault.place, fault.problem, fault.remedy))
    return type(fault)(place, problem, remedy)


def _embodied(cfg: EmbodiedSFTConfig, *, expert: bool) -> EmbodiedConfig:
    if cfg.env is None:
        remedy = "Set env.eval.env_type and env.eval.init_params to the simulator."
        raise ConfigError("env", "this policy was fine-tuned without a simulator to be evaluated in", remedy)
    own = embodied_data(cfg)
    played: Mapping[str, Any] = own["env"]["eval"]
    shared = {key: played[key] for key in ("env_type", "init_params", "max_episode_steps", "wrappers") if key in played}
    # No rollout epoch is ever played, but its length has no default.
    train = {**shared, "total_num_envs": cfg.env.eval.total_num_envs, "max_steps_per_rollout_epoch": 1}
    if expert:
        # Nearest to the simulator, whose units the expert's actions have.
        train["wrappers"] = [{"type": "expert_mixture"}, *shared.get("wrappers", ())]
        # Without the key, evaluations would take over the expert from `env.train`.
        played = {"wrappers": [], **played}
    known = {key: value for key, value in own["runner"].items() if key in _SHARED}
    return read_embodied(
        {
            "runner": {**known, "max_steps": 1},
            "cluster": own["cluster"],
            "env": {"train": train, "eval": played},
            "actor": {"model": own["actor"]["model"], "global_batch_size": cfg.env.eval.total_num_envs},
            # Nothing trains; what needs no critic fits every model.
            "algorithm": {"adv_type": "reinforce_plus_plus", "loss_type": "actor"},
        }
    )
