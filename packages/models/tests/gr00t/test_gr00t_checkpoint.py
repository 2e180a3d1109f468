"""A made-up checkpoint in the public layout, with the names that the libraries and the reference give their weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_weights import made_up_weights
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, SiglipVisionConfig, SiglipVisionModel

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.checkpoints import read_tensors
from rlinf.models.conversion.command import convert
from rlinf.models.gr00t import GR00TPolicyConfig, from_public, shape_of, to_public
from rlinf.models.gr00t.prompt import PADDING

HEAD = Path(__file__).parents[1] / "parity" / "gr00t_head.safetensors"
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 28,
    "patch_size": 14,
}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "vocab_size": 400,
}
STATISTICS = {
    "state": {"arm": {"min": [-2.0, 0.0], "max": [2.0, 4.0]}, "gripper": {"min": [3.0], "max": [3.0]}},
    "action": {"gripper": {"min": [0.0], "max": [1.0]}, "arm": {"min": [-2.0, -4.0], "max": [2.0, 4.0]}},
}


def public_names():
    """Shapes by public name: the head's from the reference itself, the towers' from transformers."""
    with safe_open(HEAD, "pt") as file:
        metadata = file.metadata()
    shapes = {name: tuple(size) for name, size in json.loads(metadata["shapes"]).items()}
    vision = SiglipVisionModel(SiglipVisionConfig(**VISION)).state_dict()
    language = Qwen3ForCausalLM(Qwen3Config(**TEXT)).state_dict()
    shapes |= {f"backbone.eagle_model.vision_model.vision_model.{name}": tuple(t.shape) for name, t in vision.items()}
    shapes |= {f"backbone.eagle_model.language_model.{name}": tuple(t.shape) for name, t in language.items()}
    shapes |= {"backbone.eagle_model.mlp1.0.weight": (24, 16), "backbone.eagle_model.mlp1.0.bias": (24,)}
    return json.loads(metadata["config"]), shapes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("GR00T-N1.5-3B")
    head, shapes = public_names()
    tensors = {name: torch.from_numpy(value) for name, value in made_up_weights(shapes).items()}
    names = sorted(tensors)
    for part, some in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in some}, folder / f"model-0000{part + 1}-of-00002.safetensors")
    config = {"action_head_cfg": head, "backbone_cfg": {"select_layer": 2}, "model_type": "gr00t_n1_5"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "experiment_cfg").mkdir()
    metadata = {"so100": {"statistics": STATISTICS}}
    (folder / "experiment_cfg" / "metadata.json").write_text(json.dumps(metadata))
    eagle = {"vision_config": VISION, "text_config": TEXT, "use_pixel_shuffle": False, "mlp_connector_layers": 1}
    tokenizer = type(tiny_tokenizer())(
        tokenizer_object=type(tiny_tokenizer()._tokenizer).from_str(tiny_tokenizer()._tokenizer.to_str())
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<IMG_CONTEXT>", "<img>", "</img>", "<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(folder / "eagle2_hg_model")
    (folder / "eagle2_hg_model" / "config.json").write_text(json.dumps(eagle))
    return folder


def built(folder, examine, **fields):
    spec = examine(None).spec
    observation = {**spec.observation, "states": type(spec.action)(shape=(3,), dtype="float32")}
    spec = type(spec)(observation=observation, action=spec.action, max_episode_steps=8)
    fields = {"num_action_chunks": 4, "value_hidden": (8,), "embodiment_tag": "so100", "max_prompt_tokens": 160} | fields
    return GR00TPolicyConfig(model_path=str(folder), **fields).build(spec, seed=0), spec


def test_a_public_checkpoint_loads_with_every_weight_in_its_place(folder, examine):
    policy, spec = built(folder, examine)
    made = made_up_weights(public_names()[1])
    state = policy.state_dict()
    expected = from_public({name: torch.from_numpy(value) for name, value in made.items()}, layers=2)
    assert len(expected) > 100
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    contract = examine(policy)
    contract.spec = spec
    assert np.isfinite(contract.decide(contract.observation()).action.numpy()).all()


def test_it_becomes_weights_of_ours_with_the_statistics_of_a_robot(folder, examine, tmp_path):
    params = ["embodiment_tag=so100", "max_prompt_tokens=160", "add_value_head=false"]
    convert([str(folder), str(tmp_path / "ours"), "--to", "full_weights", *params])
    found, expected = read_tensors(tmp_path / "ours"), built(folder, examine, add_value_head=False)[0].weights().tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_a_checkpoint_does_not_need_is_left_out_and_the_rest_goes_back(folder, examine):
    policy, _ = built(folder, examine)
    given = set(public_names()[1])
    back = set(to_public(policy.state_dict()))
    unused = {name.removeprefix("backbone.eagle_model.") for name in given - back}
    starts = (
        "language_model.lm_head.",
        "vision_model.vision_model.head.",
        "language_model.model.layers.2",
        "language_model.model.layers.3",
    )
    assert back < given
    assert unused
    assert all(name.startswith(starts) for name in unused)


def test_lerobot_s_prefix_and_the_towers_newer_names_are_known():
    names = {"_groot_model.action_head.vlln.weight": 1, "backbone.eagle_model.vision_model.post_layernorm.bias": 2}
    assert from_public(names, layers=12) == {"head.context_norm.weight": 1, "backbone.vision.post_layernorm.bias": 2}
    with pytest.raises(CheckpointError, match="expected a weight of GR00T"):
        from_public({"action_head.model.pos_embed.proj.weight": 1}, layers=12)


def test_statistics_are_those_of_the_robot_in_the_file_s_order_or_in_the_asked_one(folder, examine):
    policy, _ = built(folder, examine)
    state = torch.tensor([[2.0, 2.0, 3.0]])
    assert policy.state_norm.normalize(state).tolist() == [[1.0, 0.0, 0.0]]
    assert policy.action_norm.unnormalize(torch.ones(3)).tolist() == [1.0, 2.0, 4.0]
    other, _ = built(folder, examine, action_keys=("arm", "gripper"))
    assert other.action_norm.unnormalize(torch.ones(3)).tolist() == [2.0, 4.0, 1.0]
    with pytest.raises(CheckpointError, match="leg"):
        built(folder, examine, state_keys=("leg",))


def test_the_prompt_is_the_public_one(folder, examine):
    policy, _ = built(folder, examine)
    ids = policy.prompter(["don't push"])[0]
    text = policy.prompter.tokenizer.decode(ids[ids != PADDING])
    images = "".join(f"<image {i}><img>{'<IMG_CONTEXT>' * 4}</img>" for i in (1, 2, 3))
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f'<|im_start|>user\n{images}["don\'t push"]<|im_end|>\n<|im_start|>assistant\n'
    )


def test_a_missing_weight_a_missing_file_and_another_kind_of_model_are_refused(folder, examine, tmp_path):
    for name in ("config.json", "eagle2_hg_model", "model-00001-of-00002.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    with pytest.raises(CheckpointError, match="found no such tensor"):
        built(tmp_path, examine)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        built(tmp_path / "eagle2_hg_model" / "nowhere", examine)
    with pytest.raises(ConfigError, match="action_head_cfg"):
        shape_of({"model_type": "llama"})
    (tmp_path / "eagle2_hg_model").unlink()
    with pytest.raises(ConfigError, match="tokenizer"):
        built(tmp_path, examine)
