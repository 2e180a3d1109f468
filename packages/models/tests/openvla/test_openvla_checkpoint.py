import dataclasses
import json

import pytest
import torch
from draws import batch_of
from made_up_weights import made_up_weights
from safetensors.torch import save_file

from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.checkpoints import export_like, read_tensors
from rlinf.models.conversion.command import convert
from rlinf.models.openvla import OpenVLAPolicyConfig, PrismaticConfig, TextConfig
from rlinf.models.openvla._prismatic import PrismaticVLM, build_prismatic
from rlinf.models.openvla.folder import read_facts
from rlinf.models.openvla.weight_map import published_state, unused_shapes

PUBLISHED_PARAMETERS = 7_541_237_184
"""Of openvla/openvla-7b."""
STATISTICS = {"q01": [-0.1, -0.2, 0.0], "q99": [0.1, 0.2, 1.0], "mask": [True, True, False]}
SIZES = PrismaticConfig.tiny(vocabulary=len(tiny_tokenizer()) + 64)
PUBLISHED_CONFIG = {
    "architectures": ["OpenVLAForActionPrediction"],
    "model_type": "openvla",
    "arch_specifier": "no-align+fused-gelu-mlp",
    "use_fused_vision_backbone": True,
    "vision_backbone_id": "dinosiglip-vit-so-224px",
    "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
    "timm_override_act_layers": [None, None],
    "image_sizes": [224, 224],
    "image_resize_strategy": "resize-naive",
    "pad_to_multiple_of": 64,
    "n_action_bins": 256,
    "text_config": {"model_type": "llama", "pad_token_id": 32000, "vocab_size": 32064},
}


def meta(config):
    with torch.device("meta"):
        return PrismaticVLM(config)


def made_up_state(config):
    """Made-up tensors under the names of a published checkpoint."""
    own = {name: tuple(tensor.shape) for name, tensor in meta(config).state_dict().items()}
    return {name: torch.from_numpy(array) for name, array in made_up_weights(own | unused_shapes(config)).items()}


@pytest.fixture
def folder(tmp_path):
    """A small checkpoint as published, in two shards."""
    text = {field: value for field, value in dataclasses.asdict(SIZES.text).items() if value is not None}
    vision = [dataclasses.asdict(tower) for tower in SIZES.vision]
    config = PUBLISHED_CONFIG | {
        "text_config": text | {"model_type": "llama"},
        "n_action_bins": 64,
        "rlinf_vision": vision,
        "norm_stats": {"bridge": {"action": STATISTICS}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    processor = {"means": [[0.4, 0.5, 0.6], [0.5, 0.5, 0.5]], "stds": [[0.2, 0.2, 0.2], [0.5, 0.5, 0.5]]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    tiny_tokenizer().save_pretrained(str(tmp_path))
    state = made_up_state(SIZES)
    names = sorted(state)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, some in shards.items():
        save_file({name: state[name] for name in some}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in shards.items() for name in some}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def load(folder, spec, **fields):
    return OpenVLAPolicyConfig(model_path=str(folder), **fields).build(spec, seed=0)


def test_the_base_network_has_as_many_parameters_as_the_published_one():
    config = PrismaticConfig.base()
    own = sum(parameter.numel() for parameter in meta(config).parameters())
    unused = sum(torch.Size(shape).numel() for shape in unused_shapes(config).values())
    assert own + unused == PUBLISHED_PARAMETERS
    assert (config.vocabulary, config.image_size, config.vision[0].patches) == (32000, 224, 256)


def test_the_published_configuration_is_understood(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_CONFIG))
    facts = read_facts(tmp_path)
    assert facts.architecture == PrismaticConfig.base()
    assert facts.bins == 256


def test_a_folder_is_loaded(folder, spec, observe):
    policy = load(folder, spec)
    state = made_up_state(SIZES)
    for name, tensor in policy.vlm.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert policy.bins.count == 64
    assert policy.normalizer.second.tolist() == pytest.approx(STATISTICS["q99"])
    assert policy.normalizer.mask.tolist() == STATISTICS["mask"]
    assert [tower.mean for tower in policy.vlm.config.vision] == [(0.4, 0.5, 0.6), (0.5, 0.5, 0.5)]
    decision = policy.predict_action_batch(observe(), generator=torch.Generator().manual_seed(0))
    assert decision.action[..., 0].abs().max() <= 0.1 + 1e-6
    torch.testing.assert_close(policy.default_forward(batch_of(decision)).logprob[:, 0], decision.logprob, atol=1e-5, rtol=0)


def test_it_becomes_weights_of_ours_with_its_statistics(folder, spec, tmp_path):
    convert([str(folder), str(tmp_path / "ours"), "--to", "safetensors", "unnorm_key=bridge"])
    found, expected = read_tensors(tmp_path / "ours"), load(folder, spec).weights().tensors
    shared = {name: tensor for name, tensor in expected.items() if not name.startswith("value_head.")}
    assert {name for name in found if not name.startswith("value_head.")} == shared.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in shared.items())
    convert([str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "hf", "--like", str(folder)])
    theirs, before = read_tensors(tmp_path / "back"), read_tensors(folder)
    assert theirs.keys() == before.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in before.items())


def test_it_goes_back_to_where_it_came_from(folder, spec, observe, tmp_path):
    policy = load(folder, spec)
    with torch.no_grad():
        policy.vlm.projector.fc1.bias += 1.0
    assert export_like(policy, folder, tmp_path / "again", to_public=published_state) == ()
    again = load(tmp_path / "again", spec)
    for name, tensor in policy.weights().tensors.items():
        assert torch.equal(tensor, again.weights().tensors[name]), name
    decisions = [p.predict_action_batch(observe(), "eval") for p in (policy, again)]
    assert torch.equal(decisions[0].action, decisions[1].action)


def test_a_loaded_network_computes_what_a_built_one_does(folder, spec, observe):
    loaded = load(folder, spec)
    built = build_prismatic(SIZES, seed=3)
    built.load_state_dict(loaded.vlm.state_dict())
    tokens = torch.tensor([[1, 7, 8, 9]])
    outputs = [vlm.language_model(inputs_embeds=vlm.embed_tokens(tokens)).logits for vlm in (loaded.vlm, built)]
    assert torch.equal(*outputs)


def test_the_statistics_of_a_fine_tuning_come_first(folder, spec):
    (folder / "dataset_statistics.json").write_text(json.dumps({"mine": {"action": STATISTICS | {"q99": [0.3, 0.3, 1.0]}}}))
    assert load(folder, spec).normalizer.second.tolist() == pytest.approx([0.3, 0.3, 1.0])
    assert load(folder, spec, unnorm_key="mine").normalizer.second.tolist() == pytest.approx([0.3, 0.3, 1.0])
    with pytest.raises(ConfigError, match=r"unnorm_key.*'bridge'.*There are mine"):
        load(folder, spec, unnorm_key="bridge")


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_what_does_not_fit_is_named(folder, spec):
    edit(folder, norm_stats={"a": {"action": STATISTICS}, "b": {"action": STATISTICS}})
    with pytest.raises(ConfigError, match=r"unnorm_key.*There are a, b"):
        load(folder, spec)
    edit(folder, norm_stats={"a": {"action": {"q01": [0.0] * 7, "q99": [1.0] * 7}}})
    with pytest.raises(ShapeError, match="expected statistics of 3 actions, found 7"):
        load(folder, spec)
    edit(folder, norm_stats={}, text_config=dataclasses.asdict(dataclasses.replace(SIZES.text, num_hidden_layers=1)))
    with pytest.raises(CheckpointError, match=r"0 tensors are missing.*are unknown .*layers.1"):
        load(folder, spec)
    edit(folder, text_config=dataclasses.asdict(dataclasses.replace(SIZES.text, intermediate_size=96)))
    with pytest.raises(CheckpointError, match=r"mlp.*expected \(.*96.*found \(.*128"):
        load(folder, spec)
    edit(folder, image_resize_strategy="letterbox")
    with pytest.raises(CheckpointError, match="letterbox"):
        load(folder, spec)


def test_incomplete_folders_are_refused(folder, spec, tmp_path):
    with pytest.raises(CheckpointError, match=r"no config.json"):
        load(tmp_path / "nowhere", spec)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        load(folder, spec)


def test_sizes_that_no_network_has():
    small = PrismaticConfig.tiny()
    with pytest.raises(ConfigError, match=r"vision.image_size.*multiple"):
        PrismaticConfig.tiny(image_size=30)
    with pytest.raises(ConfigError, match="equal pictures"):
        PrismaticConfig(vision=(small.vision[0], PrismaticConfig.tiny(image_size=48).vision[1]), text=TextConfig())
