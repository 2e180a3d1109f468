"""GR00T on the pusher: taught by few demonstrations, then improved by PPO with Flow-SDE.

    uv run --group bench benchmarks/learn_pusher_gr00t.py [--short] [--seeds 0 1 2]

The real architecture at its tiny size, on states: the state encoder sees them, and a prompt goes through the frozen language model.
"""

from __future__ import annotations

from learning.recipe import Imitation, Recipe
from learning.script import main
from rlinf.algorithms import GAE, ActorCritic
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop
from rlinf.models.flow import FlowSampling
from rlinf.models.gr00t import GR00TPolicyConfig

SDE = Recipe(
    model=GR00TPolicyConfig(
        preset="tiny",
        num_action_chunks=4,
        default_task="push",
        max_prompt_tokens=3,
        value_hidden=(128, 128),
        sampling=FlowSampling(num_steps=4, noise_method="flow_sde", noise_anneal=(0.5, 0.25, 60)),
    ),
    env=Tabletop(task="push"),
    imitation=Imitation(episodes=300, steps=70, noise=0.3, lr=2e-3),
    advantage=GAE(gamma=0.99, gae_lambda=0.95),
    loss=ActorCritic(clip_ratio_c=3.0, huber_delta=10.0, logprob_type="chunk_level"),
    optim=OptimConfig(lr=1e-4, value_lr=1e-3, clip_grad=1.0, lr_scheduler="linear", total_training_steps=960),
    num_envs=256,
    decisions=16,
    epochs=4,
    batch_size=1024,
    iterations=50,
    short_iterations=15,
    control_iterations=20,
    eval_every=10,
    eval_episodes=256,
)
"""One step of the chain is stochastic, and its log-probability is the decision's."""

if __name__ == "__main__":
    main("learn_pusher_gr00t", "Pusher, GR00T-N1.5 at its tiny size: imitation, then PPO", {"Flow-SDE": SDE})
