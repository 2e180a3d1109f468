"""Writes gr00t_head.safetensors: what the action head of GR00T-N1.5 in LeRobot 0.4.4 makes of made-up weights and inputs.

    uv venv --python 3.11 /tmp/ref-gr00t
    uv pip install --python /tmp/ref-gr00t/bin/python --no-deps lerobot==0.4.4 diffusers==0.35.2
    uv pip install --python /tmp/ref-gr00t/bin/python torch numpy safetensors transformers==5.23.0 importlib_metadata
    /tmp/ref-gr00t/bin/python packages/models/tests/parity/make_gr00t.py

LeRobot imports what its head does not need (and what would need flash-attn); empty packages stand in for it here.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_weights import made_up_weights

HERE = Path(__file__).parent
ROWS, CONTEXT, ROBOT, STEPS = 3, 7, 1, 4
SCALE = 4.0
"""Of the weights that each robot has for itself; that of the others is 1."""
CONFIG = {
    "action_dim": 5,
    "action_horizon": 6,
    "add_pos_embed": True,
    "backbone_embedding_dim": 24,
    "diffusion_model_cfg": {
        "attention_head_dim": 4,
        "cross_attention_dim": 24,
        "dropout": 0.2,
        "final_dropout": True,
        "interleave_self_attention": True,
        "norm_type": "ada_norm",
        "num_attention_heads": 3,
        "num_layers": 4,
        "output_dim": 10,
        "positional_embeddings": None,
    },
    "hidden_size": 10,
    "input_embedding_dim": 12,
    "max_num_embodiments": 2,
    "max_seq_len": 8,
    "max_state_dim": 7,
    "num_inference_timesteps": STEPS,
    "num_target_vision_tokens": 3,
    "num_timestep_buckets": 1000,
    "use_vlln": True,
    "vl_self_attention_cfg": {
        "attention_head_dim": 8,
        "dropout": 0.2,
        "final_dropout": True,
        "num_attention_heads": 3,
        "num_layers": 2,
        "positional_embeddings": None,
    },
}


def reference():
    """LeRobot's head, in mode eval: its dropout is off."""
    spec = importlib.util.find_spec("lerobot")
    root = Path(spec.origin).parent
    for name in ("lerobot", "lerobot.policies", "lerobot.policies.groot", "lerobot.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    utils = types.ModuleType("lerobot.utils.import_utils")
    utils._transformers_available = True
    sys.modules["lerobot.utils.import_utils"] = utils
    from lerobot.policies.groot.action_head import flow_matching_action_head as head

    config = types.SimpleNamespace(**{**vars_of(head.FlowmatchingActionHeadConfig), **CONFIG})
    return head.FlowmatchingActionHead(config).eval()


def vars_of(kind):
    """The defaults of a dataclass, without building one."""
    return {field.name: field.default for field in kind.__dataclass_fields__.values()}


def main():
    torch.set_num_threads(1)
    head = reference()
    shapes = {f"action_head.{name}": tuple(value.shape) for name, value in head.state_dict().items()}
    own = {name: size for name, size in shapes.items() if name.endswith(".W")}
    made = made_up_weights(shapes) | made_up_weights(own, scale=SCALE)
    head.load_state_dict({name.removeprefix("action_head."): torch.from_numpy(value) for name, value in made.items()})
    generator = np.random.default_rng(0)
    inputs = {
        "tokens": generator.standard_normal((ROWS, CONTEXT, 24)).astype(np.float32),
        "state": generator.standard_normal((ROWS, 7)).astype(np.float32),
        "noise": generator.standard_normal((ROWS, 6, 5)).astype(np.float32),
    }
    outputs = run(head, {name: torch.from_numpy(value) for name, value in inputs.items()})
    metadata = {"config": json.dumps(CONFIG), "robot": str(ROBOT), "scale": str(SCALE), "shapes": json.dumps(shapes)}
    save_file({**inputs, **{name: value.numpy() for name, value in outputs.items()}}, HERE / "gr00t_head.safetensors", metadata)


@torch.no_grad()
def run(head, inputs):
    """The first and the third velocity of the reference's own loop, and the actions that it ends with."""
    from transformers.feature_extraction_utils import BatchFeature

    velocities = []
    head.action_decoder.register_forward_hook(lambda module, args, output: velocities.append(output[:, -6:]))
    draw = torch.randn
    torch.randn = lambda *args, **kwargs: inputs["noise"].clone()
    robot = torch.full((ROWS,), ROBOT)
    try:
        given = BatchFeature(data={"backbone_features": inputs["tokens"]})
        found = head.get_action(given, BatchFeature(data={"state": inputs["state"][:, None], "embodiment_id": robot}))
    finally:
        torch.randn = draw
    second = inputs["noise"] + (velocities[0] + velocities[1]) / STEPS
    found = {"actions": found["action_pred"], "noise_2": second, "velocity_0": velocities[0], "velocity_2": velocities[2]}
    return {name: value.contiguous() for name, value in found.items()}


if __name__ == "__main__":
    main()
