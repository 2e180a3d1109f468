import json
from pathlib import Path

import pytest
import torch
from made_up_weights import made_up_weights
from safetensors import safe_open

from rlinf.models.flow import FlowSampling, sample_chain
from rlinf.models.observations.images import standardize
from rlinf.models.pi0._network import PiNetwork
from rlinf.models.pi0.architecture import GemmaSizes, PiArchitecture, VisionSizes
from rlinf.models.pi0.weight_map import sources

SIZES = PiArchitecture(
    vision=VisionSizes(width=32, depth=2, mlp=64, heads=4, patch=16, image=32),
    language=GemmaSizes(width=64, depth=2, mlp=96, heads=8, kv_heads=1, head_dim=16),
    expert=GemmaSizes(width=48, depth=2, mlp=80, heads=8, kv_heads=1, head_dim=16),
    vocabulary=384,
    horizon=4,
    max_state_dim=8,
    max_action_dim=8,
    max_token_length=12,
    value_hidden_sizes=(),
)
TIED = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def reference(request):
    with safe_open(Path(__file__).parent / f"{request.param}.safetensors", framework="pt") as opened:
        x = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    shapes = {name: tuple(shape) for name, shape in json.loads(metadata["shapes"]).items()}
    weights = made_up_weights(shapes)
    weights["paligemma_with_expert.paligemma.lm_head.weight"] = weights[TIED]
    network = PiNetwork(request.param, SIZES).eval()
    network.load_state_dict({name: torch.from_numpy(weights[source]) for name, source in sources(weights).items()})
    x["pixels"] = standardize(x["images"])
    return network, x, int(metadata["steps"])


@torch.no_grad()
def test_actions_are_those_of_lerobot(reference):
    network, x, steps = reference
    prefix = network.prefix(x["pixels"], x["image_masks"], x["tokens"], x["token_masks"])
    chain = sample_chain(
        lambda noisy, time: network.velocity(noisy, time, x["state"], prefix),
        x["noise"],
        FlowSampling(num_steps=steps),
        noise_level=0.0,
        train=False,
    )
    torch.testing.assert_close(chain.action, x["actions"], atol=1e-4, rtol=0.0)


@torch.no_grad()
def test_velocities_are_those_of_lerobot(reference):
    network, x, _ = reference
    prefix = network.prefix(x["pixels"], x["image_masks"], x["tokens"], x["token_masks"])
    velocity, _ = network.velocity(x["noise"], x["time"], x["state"], prefix)
    torch.testing.assert_close(velocity, x["velocity"], atol=1e-4, rtol=0.0)


@torch.no_grad()
def test_training_errors_are_those_of_lerobot(reference):
    """LeRobot trains through one joint pass of both towers, without a cache."""
    network, x, _ = reference
    prefix = network.prefix(x["pixels"], x["image_masks"], x["tokens"], x["token_masks"])
    tau = x["time"][:, None, None]
    velocity, _ = network.velocity(tau * x["noise"] + (1 - tau) * x["action"], x["time"], x["state"], prefix)
    torch.testing.assert_close((x["noise"] - x["action"] - velocity).square(), x["errors"], atol=1e-4, rtol=1e-4)
