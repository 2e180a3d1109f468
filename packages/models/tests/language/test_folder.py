import contextlib
import json

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlinf.core.capabilities import LoadsNetwork
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.language import CausalLMConfig, VisionLanguageConfig, save_language_model
from rlinf.models.language.folder import VALUE_HEAD
from rlinf.models.lora import LoRAConfig

IDS = torch.tensor([[5, 6, 7, 8]])


def build(**settings):
    policy = CausalLMConfig(preset="tiny", **settings).build(seed=1)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    return policy


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"), "lacks config.json, weights, tokenizer"),
        (("model.safetensors",), "lacks weights"),
        (("tokenizer.json", "tokenizer_config.json"), "lacks tokenizer"),
        ((), ""),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_before_it_is_read(tmp_path, removed, message):
    save_language_model(build(), tmp_path, tokenizer=tiny_tokenizer())
    for name in removed:
        (tmp_path / name).unlink()
    config = CausalLMConfig(model_path=str(tmp_path))
    with pytest.raises(ConfigError, match=rf"^model\.model_path: .* {message}\.") if message else contextlib.nullcontext():
        config.check("model")


def test_weights_that_were_cut_are_refused_before_they_are_read(tmp_path):
    save_language_model(build(), tmp_path, tokenizer=tiny_tokenizer())
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(CheckpointError, match=r"^actor\.model\.model_path: "):
        CausalLMConfig(model_path=str(tmp_path)).check("actor.model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_json_that_was_cut_is_refused_before_it_is_read(tmp_path, name):
    save_language_model(build(), tmp_path, tokenizer=tiny_tokenizer())
    with (tmp_path / name).open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    with pytest.raises(ConfigError, match=rf"^actor\.model\.model_path: '.*/{name}' is no JSON \(.*\)\. It was cut or changed"):
        CausalLMConfig(model_path=str(tmp_path)).check("actor.model")


def test_tokens_that_the_model_lacks_do_not_end_or_fill_up_texts(tmp_path):
    """As where a class of transformers brings its own `<|endoftext|>`: it would be an index beyond the embedding."""
    tokenizer = tiny_tokenizer()
    size = 1000 if len(tokenizer) < 1000 else 1 << 20
    save_language_model(build(), tmp_path, tokenizer=tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    named = json.loads((tmp_path / "tokenizer_config.json").read_text())

    def read(vocab_size, **tokens):
        (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": vocab_size}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**named, **tokens}))
        return CausalLMConfig(model_path=str(tmp_path)).tokenizer([])

    grown = read(size, pad_token="<fills up>")
    assert grown.pad_token_id == len(tokenizer)
    found = read(len(tokenizer), pad_token="<fills up>")
    assert found.pad_token_id == found.eos_token_id < len(tokenizer)
    with pytest.raises(CheckpointError, match=rf"ends a text with '<the end>' \({len(tokenizer)}\), and its model has .* tokens"):
        read(len(tokenizer), eos_token="<the end>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"intermediate_size": 24},
            r"0 weights missing, \d+ of another shape: .* \(\[.*\] there, \[.*24.*\] by its config\.json\)",
        ),
        ({"model_type": "no_such"}, r"can't be read \(.*`no_such`.*\)\. Choose an architecture"),
    ],
)
def test_a_folder_whose_configuration_is_anothers_is_refused_in_a_sentence(tmp_path, change, message):
    save_language_model(build(), tmp_path, tokenizer=tiny_tokenizer())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        CausalLMConfig(model_path=str(tmp_path)).build(seed=1)


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=2)])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_moe", "llama"])
def test_transformers_reads_what_we_write(tmp_path, monkeypatch, architecture, lora):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    tied = {"tie_word_embeddings": architecture == "qwen2"}
    policy = build(architecture=architecture, overrides=tied, lora=lora, add_value_head=True)
    save_language_model(policy, tmp_path, tokenizer=tiny_tokenizer())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    expected = policy.logits(policy.hidden_states({"input_ids": IDS}))
    torch.testing.assert_close(theirs(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    config = CausalLMConfig(model_path=f"~/{tmp_path.name}", add_value_head=True)
    ours = config.build(seed=9)
    assert config.tokenizer([]).eos_token_id == tiny_tokenizer().eos_token_id
    hidden = ours.hidden_states({"input_ids": IDS})
    torch.testing.assert_close(ours.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        ours.value_head(hidden), policy.value_head(policy.hidden_states({"input_ids": IDS})), rtol=1e-4, atol=1e-4
    )
    assert (
        ours.network.lm_head.weight.data_ptr() == ours.network.get_input_embeddings().weight.data_ptr() or architecture != "qwen2"
    )
    text = "In: What action"
    assert AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)(text).input_ids == tiny_tokenizer()(text).input_ids


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
def test_engines_are_sent_the_weights_of_the_folder(tmp_path, architecture, tied):
    """Experts one by one, which transformers holds together."""
    policy = build(architecture=architecture, overrides={"tie_word_embeddings": tied}, lora=LoRAConfig(rank=2))
    sent = policy.network_weights(policy.weights())
    policy.save_network(tmp_path)
    written = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sent.keys() - written.keys() == ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(sent[name], written[name]) and sent[name].is_contiguous() for name in written)
    assert ("model.layers.0.mlp.experts.0.gate_proj.weight" in sent) == (architecture == "qwen3_moe")


def test_large_models_are_split_with_an_index(tmp_path):
    policy = build(architecture="llama")
    save_language_model(policy, tmp_path, shard_size="200KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 1
    assert all((tmp_path / file).stat().st_size < 230_000 for file in files)
    ours = CausalLMConfig(model_path=str(tmp_path)).build(seed=9)
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), policy.state_dict().values(), strict=True))


def test_a_vision_language_model_too(tmp_path):
    policy = VisionLanguageConfig(preset="tiny", architecture="qwen3_vl", lora=LoRAConfig(rank=2)).build(seed=1)
    save_language_model(policy, tmp_path)
    ours = VisionLanguageConfig(model_path=str(tmp_path)).build(seed=9)
    expected = policy.logits(policy.hidden_states({"input_ids": IDS}))
    torch.testing.assert_close(ours.logits(ours.hidden_states({"input_ids": IDS})), expected, rtol=1e-4, atol=1e-4)


def test_a_folder_that_misses_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no file 'config\.json'"):
        CausalLMConfig(model_path=str(tmp_path)).build(seed=0)
    save_language_model(build(architecture="llama", add_value_head=True), tmp_path)
    file = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    safetensors.torch.save_file({key: value for key, value in state.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"1 weights missing.*{name}"):
        CausalLMConfig(model_path=str(tmp_path)).build(seed=0)
    (tmp_path / VALUE_HEAD).parent.mkdir(exist_ok=True)
    safetensors.torch.save_file({"last.weight": torch.zeros(1, 3)}, tmp_path / VALUE_HEAD)
    safetensors.torch.save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="value_head"):
        CausalLMConfig(model_path=str(tmp_path), add_value_head=True).build(seed=0)


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=2)])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_moe"])
def test_the_weights_of_a_folder_are_taken_over(tmp_path, architecture, lora):
    """In shards; adapters, critic and random numbers stay as they are."""
    tied = {"tie_word_embeddings": architecture == "qwen2"}
    source = build(architecture=architecture, overrides=tied)
    save_language_model(source, tmp_path, shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    policy = CausalLMConfig(preset="tiny", architecture=architecture, overrides=tied, lora=lora, add_value_head=True).build(seed=2)
    head, drawn = policy.value_head.last.weight.clone(), torch.get_rng_state()
    assert isinstance(policy, LoadsNetwork)
    policy.load_network(tmp_path)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(policy.value_head.last.weight, head)
    expected = source.hidden_states({"input_ids": IDS})
    torch.testing.assert_close(policy.hidden_states({"input_ids": IDS}), expected, rtol=0, atol=0)
    other = build(architecture=architecture, overrides={**tied, "hidden_size": 96})
    with pytest.raises(CheckpointError, match=f"'{tmp_path}': can't be read .*Use a whole checkpoint of the architecture"):
        other.load_network(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="Use a whole checkpoint"):
        policy.load_network(tmp_path)


def test_nothing_is_drawn_while_a_folder_is_written_or_read(tmp_path, capfd):
    save_language_model(build(), tmp_path, tokenizer=tiny_tokenizer())
    CausalLMConfig(model_path=str(tmp_path)).build(seed=1)
    assert capfd.readouterr().err == ""
