import dataclasses
import json

import numpy as np
import pytest
import torch
from pi0_names import published
from safetensors.torch import save_file

from rlinf.core.errors import CheckpointError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.checkpoints import load_policy, save_policy
from rlinf.models.pi0 import PI0PolicyConfig, PI05PolicyConfig
from rlinf.models.pi0._network import PiNetwork
from rlinf.models.pi0.architecture import base, from_checkpoint, tiny
from rlinf.models.pi0.prompt import state_prompt
from rlinf.models.pi0.weight_map import target

TASKS = ["move to the block that is red", "push the puck", "open_it", " close\nit ", "a"]
CONFIGS = {"pi0": PI0PolicyConfig, "pi05": PI05PolicyConfig}


@pytest.fixture(params=["pi0 lerobot", "pi0 openpi", "pi0 transformers", "pi05 lerobot", "pi05 openpi"])
def folder(request, tmp_path):
    kind, layout = request.param.split()
    of = tiny(kind)
    torch.manual_seed(3)
    network = PiNetwork(kind, of)
    tensors = {published(name, layout): tensor for name, tensor in network.state_dict().items()}
    if layout != "transformers":
        prefix = "model." if layout == "lerobot" else ""
        tensors[f"{prefix}paligemma_with_expert.gemma_expert.lm_head.weight"] = torch.zeros(8, of.expert.width)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"type": kind, "architecture": dataclasses.asdict(of)}))
    tiny_tokenizer(of.vocabulary).save_pretrained(tmp_path)
    statistics = {"mean": [0.5] * 32, "std": [2.0] * 32, "q01": [-2.0] * 32, "q99": [4.0] * 32}
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": statistics, "actions": statistics}}))
    return kind, tmp_path, network


def test_a_public_layout_loads(folder, spec, obs):
    kind, path, network = folder
    policy = CONFIGS[kind](model_path=str(path)).build(spec, seed=0)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(policy.network.state_dict()[name], tensor, rtol=0.0, atol=0.0)
    x = torch.tensor([[-2.0, 0.5, 4.0]])
    expected = (x - 0.5) / 2.0 if kind == "pi0" else (x - 1.0) / 3.0
    torch.testing.assert_close(policy.actions.normalize(x), expected)
    assert torch.isfinite(policy.predict_action_batch(obs).action).all()


@pytest.mark.parametrize("folder", ["pi0 lerobot", "pi05 lerobot"], indirect=True)
def test_the_statistics_of_lerobot_are_those_of_its_normaliser(folder, spec):
    kind, path, _ = folder
    (path / "norm_stats.json").unlink()
    values = {"mean": 0.5, "std": 2.0, "q01": -2.0, "q99": 4.0}
    sizes = {"action": 3, "observation.state": spec.observation["states"].shape[0]}
    arrays = {f"{of}.{name}": torch.full((size,), value) for of, size in sizes.items() for name, value in values.items()}
    save_file(arrays, path / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    policy = CONFIGS[kind](model_path=str(path)).build(spec, seed=0)
    x = torch.tensor([[-2.0, 0.5, 4.0]])
    expected = (x - 0.5) / 2.0 if kind == "pi0" else (x - 1.0) / 3.0
    torch.testing.assert_close(policy.actions.normalize(x), expected)
    assert policy.states.first[0] == policy.actions.first[0]


def test_what_is_wrong_with_a_folder(folder, spec):
    kind, path, network = folder
    config = CONFIGS[kind](model_path=str(path))
    other = CONFIGS["pi05" if kind == "pi0" else "pi0"](model_path=str(path))
    with pytest.raises(CheckpointError, match="expected a model of type"):
        other.build(spec, seed=0)
    state = dict(network.state_dict())
    name = sorted(state)[0]
    del state[name]
    save_file({k.removeprefix("core."): v for k, v in state.items()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="tensors are missing"):
        config.build(spec, seed=0)
    save_file({"surplus": torch.zeros(1)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="surplus: nothing here has a place for it"):
        config.build(spec, seed=0)
    (path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="there is no tokenizer"):
        config.build(spec, seed=0)
    (path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="there is no such file"):
        config.build(spec, seed=0)


def test_sizes_of_public_configurations():
    lerobot = {
        "type": "pi05",
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "chunk_size": 50,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "image_resolution": [224, 224],
        "tokenizer_max_length": 200,
    }
    assert from_checkpoint(lerobot, "pi05", place="config.json") == base("pi05")
    openpi = {"action_dim": 32, "action_horizon": 10, "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
    assert from_checkpoint(openpi, "pi0", place="config.json").horizon == 10
    with pytest.raises(CheckpointError, match="Did you mean 'gemma_300m'"):
        from_checkpoint(openpi | {"action_expert_variant": "gemma_300"}, "pi0", place="config.json")
    with pytest.raises(CheckpointError, match="expected architecture, paligemma_variant or vlm_config"):
        from_checkpoint({"type": "pi0"}, "pi0", place="config.json")


def test_sizes_of_the_configuration_of_transformers():
    from transformers import PI0Config

    assert from_checkpoint(PI0Config().to_dict(), "pi0", place="config.json") == base("pi0")


@pytest.mark.parametrize(("kind", "billions"), [("pi0", 3.238), ("pi05", 3.353)])
def test_base_has_the_published_size(kind, billions):
    with torch.device("meta"):
        network = PiNetwork(kind, base(kind))
    sizes = {name: tensor.numel() for name, tensor in network.named_parameters()}
    assert sum(sizes.values()) / 1e9 == pytest.approx(billions, abs=1e-3)
    assert sum(size for name, size in sizes.items() if ".vlm." in name) / 1e9 == pytest.approx(2.923, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("model.paligemma_with_expert.paligemma.lm_head.weight", "core.model.vlm.language_model.embed_tokens.weight"),
        ("paligemma_with_expert.paligemma.language_model.model.norm.weight", "core.model.vlm.language_model.norm.weight"),
        ("paligemma_with_expert.paligemma.multi_modal_projector.linear.bias", "core.model.vlm.multi_modal_projector.linear.bias"),
        ("model.state_proj.bias", "core.embed_action_time.state_proj.bias"),
        ("time_mlp_in.weight", "core.embed_action_time.time_mlp_in.weight"),
        ("action_out_proj.weight", "core.action_out_proj.weight"),
        ("paligemma_with_expert.gemma_expert.model.norm.dense.bias", "core.model.dit.norm.dense.bias"),
        ("paligemma_with_expert.gemma_expert.lm_head.weight", None),
        ("model.dit.embed_tokens.weight", None),
    ],
)
def test_names(name, ours):
    assert target(name) == ours


def test_statistics_of_bounds(spec):
    for config in CONFIGS.values():
        policy = config(preset="tiny").build(spec, seed=0)
        np.testing.assert_allclose(policy.actions.normalize(torch.tensor([[-1.0, 0.5, 2.0]])), [[-1.0, 0.0, 1.0]], atol=1e-6)


def test_states_are_padded_behind(spec, obs):
    policy = PI0PolicyConfig(preset="tiny").build(spec, seed=0)
    _, state = policy.read(policy.context(obs))
    np.testing.assert_array_equal(state, np.pad(obs["states"], ((0, 0), (0, 1))))


@pytest.mark.parametrize("folder", ["pi05 lerobot"], indirect=True)
def test_the_state_of_a_prompt_is_as_long_as_in_training(folder, spec, obs, tmp_path):
    """LeRobot pads it with zeros after it is normalised; openpi doesn't, and neither does a preset."""
    _, path, _ = folder
    described = json.loads((path / "config.json").read_text())
    lerobot = PI05PolicyConfig(model_path=str(path))
    policy = lerobot.build(spec, seed=0)
    normed = policy.states.normalize(torch.as_tensor(obs["states"])).numpy()
    padded = [
        policy.tokenizer(state_prompt(task, np.append(row, 0.0)))["input_ids"] for task, row in zip(TASKS, normed, strict=True)
    ]
    plain = [policy.tokenizer(state_prompt(task, row))["input_ids"] for task, row in zip(TASKS, normed, strict=True)]

    def told(made):
        context = made.context(obs)
        return [tokens[valid].tolist()[1:] for tokens, valid in zip(context["tokens"], context["token_masks"], strict=True)]

    assert told(policy) == padded != plain
    assert told(dataclasses.replace(lerobot, pad_prompt_state=False).build(spec, seed=0)) == plain
    save_policy(policy, dataclasses.replace(lerobot, pad_prompt_state=True), tmp_path / "saved")
    del described["type"]
    (path / "config.json").write_text(json.dumps(described))
    assert told(lerobot.build(spec, seed=0)) == plain
    assert told(load_policy(tmp_path / "saved", spec)) == padded
    preset = PI05PolicyConfig(preset="tiny")
    lengths = [
        [len(row) for row in told(config.build(spec, seed=0))]
        for config in (preset, dataclasses.replace(preset, pad_prompt_state=True))
    ]
    assert lengths[0] < lengths[1]
