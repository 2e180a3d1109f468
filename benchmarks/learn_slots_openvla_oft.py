"""OpenVLA-OFT, tiny, on pictures: cloned from 24 demonstrations, then PPO or GRPO, over three seeds.

    uv run --group bench benchmarks/learn_slots_openvla_oft.py

Four steps are decided at once, so that an episode has two decisions: many environments must play together.
"""

from __future__ import annotations

from dataclasses import replace

from learning.recipe import Imitation, Recipe
from learning.script import main
from rlinf.algorithms import GAE, GRPO, ActorCritic, PPOClip
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig

MODEL = OpenVLAOFTPolicyConfig(preset="tiny", num_action_chunks=4, n_action_bins=32, max_prompt_length=32)
PPO = Recipe(
    model=MODEL,
    env=Tabletop(task="slots", obs_mode="rgb", goals=("red",)),
    advantage=GAE(),
    loss=ActorCritic(logprob_type="action_level"),
    optim=OptimConfig(lr=2e-4, value_lr=1e-3, clip_grad=1.0),
    imitation=Imitation(episodes=24, steps=300, batch_size=64),
    num_envs=512,
    decisions=2,
    epochs=2,
    batch_size=256,
    iterations=24,
    short_iterations=12,
    eval_every=4,
)
BY_GROUP = replace(
    PPO,
    model=replace(MODEL, logprob_type="token_level", add_value_head=False),
    advantage=GRPO(),
    loss=PPOClip(clip_ratio_high=0.28, logprob_type="token_level"),
    optim=OptimConfig(lr=1e-4, clip_grad=1.0),
    group_size=8,
    iterations=40,
)
VARIANTS = {"PPO, a ratio per step": PPO, "GRPO, a ratio per token": BY_GROUP}

if __name__ == "__main__":
    main("learn_slots_openvla_oft", "OpenVLA-OFT (tiny) on slots: chunks of 4 steps in one forward pass", VARIANTS)
