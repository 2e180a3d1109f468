"""OpenVLA on images: PPO on its action tokens, after an imitation that is slow and imprecise.

    uv run --group bench benchmarks/learn_slots_openvla.py

The task is to move to the red block among three; 32 × 32 pixels, 32 bins for each of two actions, which are written one after the
other. The control shuffles advantages over decisions. Evaluation samples at a temperature of 0.6: which of many bins, all nearly as
likely, is the most likely is a matter of chance, so that success by it goes up and down without any learning.
"""

from __future__ import annotations

from learning.recipe import Imitation, Recipe
from learning.script import main
from rlinf.algorithms import GAE, ActorCritic
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop
from rlinf.models.openvla import OpenVLAPolicyConfig

PPO = Recipe(
    model=OpenVLAPolicyConfig(preset="tiny", n_action_bins=32, temperature_eval=0.6),
    env=Tabletop(task="slots", obs_mode="rgb", goals=("red",)),
    imitation=Imitation(episodes=400, steps=500, speed=0.45, noise=0.3, batch_size=128),
    advantage=GAE(gamma=0.99, gae_lambda=0.95),
    loss=ActorCritic(clip_ratio_c=3.0, value_clip=0.2, huber_delta=10.0, logprob_type="action_level"),
    optim=OptimConfig(lr=2e-4, value_lr=1e-3, clip_grad=1.0, lr_scheduler="linear", total_training_steps=288),
    num_envs=256,
    decisions=8,
    epochs=3,
    batch_size=512,
    iterations=24,
    short_iterations=5,
    eval_every=2,
)

if __name__ == "__main__":
    main("learn_slots_openvla", "Red block, OpenVLA (tiny): imitation, then PPO on action tokens", {"PPO": PPO})
