"""Stable-Baselines3's off-policy algorithms with the settings of a recipe."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from comparison.course import Course, Measured, Sizes, learned_with_sb3, protocol_of
from rlinf.envs.interop import as_sb3_vec_env
from rlinf.runners import OffPolicyConfig

UNLIMITED = 1e9
"""Stable-Baselines3's DQN always clips."""


def sb3(cfg: OffPolicyConfig, sizes: Sizes, began: float) -> Measured:
    """`SAC`, `TD3`, `DQN`, or `CrossQ` of sb3-contrib; steps between updates, and how many these are, come from the recipe."""
    name = cfg.algorithm.loss_type
    library = import_module("sb3_contrib" if name == "crossq" else "stable_baselines3")
    course = Course(protocol_of(cfg), sizes, began, env=cfg.env.eval.init_params, metric="return")
    train = cfg.env.train
    vector: Any = as_sb3_vec_env(
        train.init_params.make(
            train.total_num_envs,
            max_episode_steps=train.max_episode_steps,
            ignore_terminations=train.ignore_terminations,
            render=False,
        )
    )
    kind = getattr(library, "CrossQ" if name == "crossq" else name.upper())
    model = kind("MlpPolicy", vector, **common(cfg), **OWN[name](cfg, sizes), seed=cfg.runner.seed, device="cpu")

    def decide(states: Any) -> Any:
        return model.predict(states, deterministic=True)[0]

    return learned_with_sb3(model, vector, course, decide, sizes.max_steps)


def common(cfg: OffPolicyConfig) -> dict[str, Any]:
    """What all of them are given."""
    algorithm, written = cfg.algorithm, cfg.source
    return {
        "learning_rate": written["actor"]["optim"]["lr"],
        "buffer_size": algorithm.replay_buffer.capacity,
        "learning_starts": cfg.min_transitions,
        "batch_size": cfg.actor.global_batch_size,
        "gamma": algorithm.gamma,
        "n_steps": algorithm.replay_buffer.n_step,
        "train_freq": cfg.env.train.max_steps_per_rollout_epoch,
        "gradient_steps": round(cfg.decisions_per_iteration * algorithm.utd),
    }


def _soft(cfg: OffPolicyConfig, sizes: Sizes) -> dict[str, Any]:
    objective = _objective(cfg)
    return {"tau": objective.tau, "ent_coef": f"auto_{objective.initial_alpha}", "policy_kwargs": _networks(cfg)}


def _normalized(cfg: OffPolicyConfig, sizes: Sizes) -> dict[str, Any]:
    objective, networks = _objective(cfg), _networks(cfg)
    networks["optimizer_kwargs"] = {"betas": (cfg.source["actor"]["optim"]["adam_beta1"], 0.999)}
    entropy = f"auto_{objective.initial_alpha}"
    return {"policy_delay": objective.critic_actor_ratio, "ent_coef": entropy, "policy_kwargs": networks}


def _delayed(cfg: OffPolicyConfig, sizes: Sizes) -> dict[str, Any]:
    gaussian: Any = import_module("stable_baselines3.common.noise").NormalActionNoise
    objective, noise = _objective(cfg), np.ones(1)
    return {
        "tau": objective.tau,
        "policy_kwargs": _networks(cfg),
        "policy_delay": objective.critic_actor_ratio,
        "target_policy_noise": objective.target_noise,
        "target_noise_clip": objective.noise_clip,
        # Both in units of half the range of an action.
        "action_noise": gaussian(0.0 * noise, objective.exploration_noise * noise),
    }


def _values(cfg: OffPolicyConfig, sizes: Sizes) -> dict[str, Any]:
    objective, net = _objective(cfg), cfg.actor.model.config
    return {
        "policy_kwargs": {"net_arch": list(_of(net, "hidden_sizes"))},
        "tau": objective.tau,
        # Theirs counts steps, ours updates.
        "target_update_interval": round(objective.target_update_freq / cfg.algorithm.utd),
        "exploration_fraction": objective.epsilon_steps / sizes.max_steps,
        "exploration_initial_eps": objective.initial_epsilon,
        "exploration_final_eps": objective.final_epsilon,
        "max_grad_norm": cfg.source["actor"]["optim"].get("clip_grad") or UNLIMITED,
    }


def _networks(cfg: OffPolicyConfig) -> dict[str, Any]:
    net = cfg.actor.model.config
    return {"net_arch": {"pi": list(_of(net, "hidden_sizes")), "qf": list(_of(net, "q_hidden_sizes"))}}


def _objective(cfg: OffPolicyConfig) -> Any:
    return cfg.algorithm.objective


def _of(config: Any, name: str) -> Any:
    return getattr(config, name)


OWN = {"sac": _soft, "crossq": _normalized, "td3": _delayed, "dqn": _values}
SAME = {
    "crossq": (),
    "dqn": ("algorithm.double_q=false",),
    "sac": ("actor.model.q_layer_norm=false",),
    "td3": ("actor.model.q_layer_norm=false",),
}
"""What of a recipe Stable-Baselines3 has no setting for, and is therefore changed."""
