"""π0 on images: PPO on its denoising steps, after an imitation that is slow and imprecise.

    uv run --group bench benchmarks/learn_slots_pi0.py

Two layers, 32 × 32 pixels in four patches, two steps in a chunk; the task is to move to the red block among three. One denoising
step of four is stochastic (πRL). The control shuffles advantages.
"""

from __future__ import annotations

from learning.recipe import Imitation, Recipe
from learning.script import main
from rlinf.algorithms import GAE, ActorCritic
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop
from rlinf.models.flow import FlowSampling
from rlinf.models.pi0 import PI0PolicyConfig

SDE = Recipe(
    model=PI0PolicyConfig(
        preset="tiny", num_action_chunks=2, horizon=2, max_state_dim=4, max_action_dim=4, sampling=FlowSampling()
    ),
    env=Tabletop(task="slots", obs_mode="rgb", image_size=32, goals=("red",)),
    imitation=Imitation(episodes=400, steps=300, speed=0.5, noise=0.3, batch_size=128, lr=1e-3),
    optim=OptimConfig(lr=1e-5, value_lr=3e-4, clip_grad=1.0),
    advantage=GAE(),
    loss=ActorCritic(),
    num_envs=512,
    decisions=4,
    epochs=2,
    batch_size=512,
    iterations=20,
)

if __name__ == "__main__":
    main("learn_slots_pi0", "tiny π0 on images, Flow-SDE", {"flow_sde": SDE})
