"""Files of Megatron-LM: there and back bit for bit, under the names that its layers have."""

import argparse

import pytest
import torch
from megatron_text import CONFIGS, VOCABULARY
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import WEIGHT_LAYOUTS
from rlinf.engines.megatron.layout import _FUSED, FILE, TRACKER, MegatronLayout


@pytest.fixture(params=["qwen2", "qwen3", "llama"])
def network(request, tmp_path):
    """A folder of Hugging Face and its weights; qwen2's are tied."""
    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]()).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf", load_file(tmp_path / "hf/model.safetensors")


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("impl", ["transformer_engine", "local"])
def test_there_and_back(network, tmp_path, sizes, impl):
    folder, tensors = network
    layout = MegatronLayout(
        tensor_model_parallel_size=sizes[0],
        pipeline_model_parallel_size=sizes[1],
        transformer_impl=impl,
        make_vocab_size_divisible_by=8,
    )
    out = tmp_path / "megatron"
    out.mkdir()
    layout.write(tensors, folder, out)
    assert WEIGHT_LAYOUTS.build("megatron", {}, place="test").recognizes(out)
    # Whoever reads needs to know no size.
    back = MegatronLayout().read(out, out / "hf")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    files = sorted(out.glob(f"release/*/{FILE}"))
    assert len(files) == sizes[0] * sizes[1]
    model = torch.load(files[0], weights_only=True)["model"]
    rows = -(-VOCABULARY // (8 * sizes[0])) * 8
    assert model["embedding.word_embeddings.weight"].shape[0] == rows
    norm = "decoder.layers.0." + ("self_attention.linear_qkv.layer_norm_weight" if impl != "local" else "input_layernorm.weight")
    assert norm in model


def test_the_norms_of_transformer_engine_are_named_as_megatron_core_says():
    """Its plain layers have a table of these names, by which checkpoints of both kinds are read by either."""
    specs = pytest.importorskip("megatron.core.models.gpt.gpt_layer_specs")
    table = specs.get_gpt_layer_local_spec(normalization="RMSNorm").submodules.sharded_state_dict_keys_map
    assert {plain.strip("."): fused.strip(".") for plain, fused in _FUSED} == {
        plain.strip("."): fused.strip(".") for plain, fused in table.items()
    }


def test_options_beside_the_weights_are_read_and_other_objects_are_not(network, tmp_path):
    folder, tensors = network
    out = tmp_path / "megatron"
    out.mkdir()
    MegatronLayout().write(tensors, folder, out)
    (file,) = out.glob(f"release/*/{FILE}")
    content = torch.load(file, weights_only=True)
    torch.save({**content, "args": argparse.Namespace(seed=1)}, file)
    assert MegatronLayout().read(out, folder).keys() == tensors.keys()
    torch.save({**content, "args": print}, file)
    with pytest.raises(CheckpointError, match="can't be read as tensors"):
        MegatronLayout().read(out, folder)
    file.unlink()
    with pytest.raises(CheckpointError, match="of every rank"):
        MegatronLayout().read(out, folder)
    (out / TRACKER).write_text("12\0")
    with pytest.raises(CheckpointError, match="expected 'release' or a number of iterations"):
        MegatronLayout().read(out, folder)


def test_what_can_not_be_divided_or_has_experts_is_refused(tmp_path):
    AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"]()).save_pretrained(tmp_path / "moe")
    with pytest.raises(ConfigError, match="layers with experts"):
        MegatronLayout().write({}, tmp_path / "moe", tmp_path)
    AutoModelForCausalLM.from_config(CONFIGS["llama"]()).save_pretrained(tmp_path / "hf")
    with pytest.raises(ConfigError, match="can't be divided over 3 ranks"):
        MegatronLayout(tensor_model_parallel_size=3).write({}, tmp_path / "hf", tmp_path)
    with pytest.raises(ConfigError, match="tensor_model_parallel_size: expected at least 1"):
        MegatronLayout(tensor_model_parallel_size=0)
