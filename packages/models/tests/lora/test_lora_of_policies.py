"""LoRA in every policy that has it: what is frozen has no trained adapter, and every trained adapter gets a gradient."""

import numpy as np
import pytest
import torch

from rlinf.core import ArraySpec, Batch, EnvSpec, Trajectory
from rlinf.core.registry import MODELS

BOUND = np.ones(3, np.float32)
ACTION = ArraySpec(shape=(3,), dtype="float32", low=-BOUND, high=BOUND)
SIGHT = {
    "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
    "states": ArraySpec(shape=(4,), dtype="float32"),
    "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
}
VISION = ("vision_backbone.", "vision.", "connector.")
CASES = {
    "openvla": {},
    "openvla, vision frozen": {"freeze_vision": True},
    "openvla_oft": {"use_film": True, "use_proprio": True},
    "openvla_oft, regression": {"action_head": "l1"},
    "pi0": {},
    "pi0, one stochastic step": {"num_action_chunks": 2, "horizon": 2},
    "pi05": {"detach_critic_input": False},
    "gr00t": {},
    "gr00t, without a critic": {"add_value_head": False},
    "gr00t, states only": {},
}


@pytest.mark.parametrize("case", CASES)
def test_adapters_that_are_trained_get_gradients_and_nothing_frozen_has_one(case):
    name, _, variant = case.partition(", ")
    observation = {"states": SIGHT["states"]} if variant == "states only" else SIGHT
    spec = EnvSpec(observation=observation, action=ACTION, max_episode_steps=8)
    config = MODELS.build(name, {"preset": "tiny", "lora": {"rank": 2}, **CASES[case]}, place="model")
    policy = config.build(spec, seed=0)
    trained = {key for key, parameter in policy.named_parameters() if parameter.requires_grad}
    adapters = {key for key in trained if "lora_" in key}
    assert adapters
    if variant in ("vision frozen", "states only"):
        assert not [key for key in trained if any(f".{part}" in f".{key}" for part in VISION)]
    rows = 3
    obs = {
        "main_images": np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8),
        "states": np.linspace(-0.5, 0.5, rows * 4, dtype=np.float32).reshape(rows, 4),
        "task_descriptions": np.array(["move to the block that is red"] * rows),
    }
    seen = {key: torch.as_tensor(obs[key]) if key != "task_descriptions" else obs[key] for key in observation}
    decision = policy.predict_action_batch(seen, generator=torch.Generator().manual_seed(0))
    found = policy.default_forward(Batch.of(Trajectory.of_decisions([decision])))
    loss = found.logprob.square().sum() + (0.0 if found.value is None else found.value.square().sum())
    loss.backward()
    parameters = dict(policy.named_parameters())
    without = sorted(key for key in trained if parameters[key].grad is None)
    assert not without, "trained, but no gradient ever reaches it"
    # B is 0 at the start, so that A learns from the second step on.
    still = sorted(key for key in adapters if "lora_B" in key and not parameters[key].grad.abs().sum() > 0)
    assert not still, "its gradient is 0"
    assert all(parameters[key].grad is None for key in parameters.keys() - trained)
