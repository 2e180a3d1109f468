"""A flow policy on states learns to push: imitation of slow and noisy demonstrations, then PPO on its denoising steps.

uv run --group bench benchmarks/learn_pusher_flow.py
"""

from __future__ import annotations

from dataclasses import replace

from learning.recipe import Imitation, Recipe
from learning.script import main
from rlinf.algorithms import GAE, ActorCritic
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop
from rlinf.models.flow import FlowSampling
from rlinf.models.flow_policy import FlowPolicyConfig

SDE = Recipe(
    model=FlowPolicyConfig(
        num_action_chunks=4, sampling=FlowSampling(num_steps=4, noise_method="flow_sde", noise_anneal=(0.5, 0.25, 120))
    ),
    env=Tabletop(task="push"),
    imitation=Imitation(episodes=300, steps=800, noise=0.3),
    advantage=GAE(gamma=0.99, gae_lambda=0.95),
    loss=ActorCritic(clip_ratio_c=3.0, huber_delta=10.0, logprob_type="chunk_level"),
    optim=OptimConfig(lr=3e-4, value_lr=1e-3, clip_grad=1.0, lr_scheduler="linear", total_training_steps=2880),
    num_envs=256,
    decisions=16,
    epochs=4,
    batch_size=768,
    iterations=120,
    short_iterations=15,
    control_iterations=30,
)
"""One step of the chain is stochastic, and its log-probability is the decision's."""

NOISE = replace(
    SDE,
    model=replace(
        SDE.model,
        sampling=FlowSampling(num_steps=4, noise_method="flow_noise", joint_logprob=True, joint_reduction="mean"),
    ),
)
"""All steps are, with a learned spread."""

if __name__ == "__main__":
    main("learn_pusher_flow", "Pusher, state-only flow policy: imitation, then PPO", {"Flow-SDE": SDE, "Flow-Noise": NOISE})
