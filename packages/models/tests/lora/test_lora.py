import copy
import json

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn

from rlinf.core.config import read
from rlinf.core.errors import CheckpointError, ConfigError, WeightSyncError
from rlinf.models.language import CausalLMConfig
from rlinf.models.lora import (
    LoRAConfig,
    adapter_state,
    apply_lora,
    load_adapter,
    load_adapter_state,
    merge_lora,
    merged_state,
    save_adapter,
    unmerge_lora,
    without_adapters,
)

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.ModuleDict({"q_proj": nn.Linear(6, 6), "k_proj": nn.Linear(6, 6, bias=False)})
        self.out = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        self.value_head = nn.Sequential(nn.Linear(6, 1))

    def forward(self, x):
        hidden = self.block["k_proj"](self.block["q_proj"](x).tanh())
        return torch.cat([self.out(hidden), self.value_head(hidden)], -1)

    def own_method(self):
        return "kept"


def net(seed=0, **settings):
    torch.manual_seed(seed)
    module = Net()
    if settings:
        apply_lora(module, LoRAConfig(**settings), seed=seed)
    return module


def trained(seed=1, **settings):
    """A net whose adapters are not zero."""
    module = net(seed, rank=2, **settings)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.5, generator=generator)
    return module


def test_adapters_start_at_zero_keep_the_class_and_train_alone():
    plain, module = net(), net(rank=2)
    assert isinstance(module, Net)
    assert module.own_method() == "kept"
    torch.testing.assert_close(module(X), plain(X), rtol=0, atol=0)
    trainable = {name for name, p in module.named_parameters() if p.requires_grad}
    layers = ("block.q_proj", "block.k_proj", "out.0")
    adapters = {f"{layer}.lora_{side}.default.weight" for layer in layers for side in "AB"}
    assert trainable == adapters | {"value_head.0.weight", "value_head.0.bias"}
    module(X).sum().backward()
    assert {name for name, p in module.named_parameters() if p.grad is not None} == trainable


def test_update_is_alpha_over_rank_b_a():
    module = trained(alpha=6, target_modules=("q_proj",))
    layer = module.block["q_proj"]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = X @ layer.base_layer.weight.T + layer.base_layer.bias + 3.0 * X @ a.T @ b.T
    torch.testing.assert_close(layer(X), expected, rtol=1e-5, atol=1e-6)


def test_seed_decides_and_the_global_generator_stays():
    before = torch.random.get_rng_state()
    one, again, other = Net(), Net(), Net()
    torch.random.set_rng_state(before)
    for module, seed in ((one, 3), (again, 3), (other, 4)):
        apply_lora(module, LoRAConfig(rank=2), seed=seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    states = [adapter_state(module) for module in (one, again, other)]
    assert list(states[0]) == sorted(states[0])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_merge_agrees_and_unmerge_is_exact():
    module = trained()
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    expected = module(X)
    originals = merge_lora(module)
    torch.testing.assert_close(module(X), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(module.block["q_proj"].base_layer.weight, weights["block.q_proj.base_layer.weight"])
    with pytest.raises(ConfigError, match="merged already"):
        merge_lora(module)
    with pytest.raises(ConfigError, match="adapters are merged"), without_adapters(module):
        pass
    unmerge_lora(module, originals)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    torch.testing.assert_close(module(X), expected, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="not merged"):
        unmerge_lora(module, originals)


@pytest.mark.parametrize("inside", [False, True])
def test_merged_state_fits_the_plain_module(inside):
    module, plain = trained(alpha=6), Net()
    expected = module(X)
    if inside:
        merge_lora(module)
    state = merged_state(module)
    assert list(state) == sorted(plain.state_dict())
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(X), expected, rtol=1e-5, atol=1e-6)


def test_without_adapters_is_the_module_before():
    plain, module = net(1), trained(1)
    trainable = [p.requires_grad for p in module.parameters()]
    with without_adapters(module):
        torch.testing.assert_close(module(X), plain(X), rtol=0, atol=0)
    assert not torch.allclose(module(X), plain(X))
    assert [p.requires_grad for p in module.parameters()] == trainable


def test_state_and_folder_move_the_adapter(tmp_path):
    module = trained()
    module.value_head[0].weight.data.fill_(0.3)
    twin = net(1, rank=2)
    load_adapter_state(twin, adapter_state(module))
    twin.value_head.load_state_dict(module.value_head.state_dict())
    torch.testing.assert_close(twin(X), module(X), rtol=0, atol=0)
    save_adapter(module, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors", "heads.safetensors"}
    for fresh in (net(1), net(1, rank=2)):
        load_adapter(fresh, tmp_path)
        torch.testing.assert_close(fresh(X), module(X), rtol=0, atol=0)
        assert {n for n, p in fresh.named_parameters() if p.requires_grad} == {
            n for n, p in module.named_parameters() if p.requires_grad
        }
    with pytest.raises(WeightSyncError, match=r"block.k_proj.lora_A.weight.*expected shape \(3, 6\), found shape \(2, 6\)"):
        load_adapter_state(net(1, rank=3), adapter_state(module))


@pytest.mark.parametrize("targets", [("q_proj",), ("all-linear",), (r"block\..*", "0")])
def test_peft_reads_what_we_write_and_we_read_what_peft_writes(tmp_path, targets):
    from peft import PeftModel

    module = trained(target_modules=targets)
    save_adapter(module, tmp_path / "ours")
    theirs = PeftModel.from_pretrained(net(1), tmp_path / "ours")
    torch.testing.assert_close(theirs(X), module(X), rtol=0, atol=0)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = net(1)
    load_adapter(ours, tmp_path / "theirs")
    torch.testing.assert_close(ours(X), module(X), rtol=0, atol=0)


def test_a_foreign_adapter_loses_its_dropout_and_dora_is_refused(tmp_path):
    from peft import LoraConfig, get_peft_model

    settings = {"r": 2, "target_modules": ["q_proj"], "lora_dropout": 0.5, "init_lora_weights": False}
    get_peft_model(net(1), LoraConfig(**settings)).save_pretrained(tmp_path / "dropout")
    module = net(1)
    load_adapter(module, tmp_path / "dropout")
    torch.testing.assert_close(module.train()(X), module.train()(X), rtol=0, atol=0)
    get_peft_model(net(1), LoraConfig(use_dora=True, **settings)).save_pretrained(tmp_path / "dora")
    with pytest.raises(CheckpointError, match="plain LoRA"):
        load_adapter(net(1), tmp_path / "dora")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        load_adapter(net(1), tmp_path)


def test_names_choose_exclude_and_are_checked():
    assert {name.split(".lora")[0] for name, _ in adapted(target_modules=(r"block\.[qk]_proj",))} == {
        "block.q_proj",
        "block.k_proj",
    }
    assert {name.split(".lora")[0] for name, _ in adapted(exclude_modules=("block",))} == {"out.0"}
    with pytest.raises(ConfigError, match=r"target_modules: 'q_prj' matches no layer. Did you mean 'q_proj'"):
        net(rank=2, target_modules=("k_proj", "q_prj"))
    with pytest.raises(ConfigError, match="exclude_modules: 'blok'"):
        net(rank=2, exclude_modules=("blok",))
    with pytest.raises(ConfigError, match="leaves no layer"):
        net(rank=2, target_modules=("q_proj",), exclude_modules=("block",))
    with pytest.raises(ConfigError, match="adapters already"):
        apply_lora(net(rank=2), LoRAConfig(rank=2), seed=0)


def adapted(**settings):
    return [(name, p) for name, p in net(rank=2, **settings).named_parameters() if ".lora_" in name]


def test_attention_that_does_not_call_its_layer_is_left_alone():
    module = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "mlp": nn.Linear(4, 4)})
    apply_lora(module, LoRAConfig(rank=2), seed=0)
    assert {name.split(".")[0] for name in (n.removeprefix("base_model.model.") for n in adapter_state(module))} == {"mlp"}


def test_configuration_is_checked():
    config = read(LoRAConfig, json.loads('{"rank": 4, "target_modules": ["q_proj", "v_proj"]}'), place="lora")
    assert (config.rank, config.target_modules) == (4, ("q_proj", "v_proj"))
    with pytest.raises(ConfigError, match=r"lora\.dropout.*allow_dropout"):
        read(LoRAConfig, {"dropout": 0.1}, place="lora")
    assert LoRAConfig(dropout=0.1, allow_dropout=True).dropout == 0.1
    for wrong in ({"rank": 0}, {"alpha": 0}, {"dropout": 1.5}, {"target_modules": []}):
        with pytest.raises(ConfigError):
            read(LoRAConfig, wrong, place="lora")
    with pytest.raises(ConfigError, match="no adapters"):
        merge_lora(net())


def layers_of(**settings):
    return [name for name, part in net(rank=2, **settings).named_modules() if hasattr(part, "lora_A")]


@pytest.mark.parametrize("name", ["target_modules", "exclude_modules"])
def test_a_list_is_checked_like_a_text(name):
    with pytest.raises(ConfigError, match=rf"^{name}: '\(q' is no regular expression"):
        LoRAConfig(**{name: ("q_proj", "(q")})


def test_a_text_means_what_it_means_in_peft():
    every = ["block.q_proj", "block.k_proj", "out.0"]
    assert layers_of(target_modules="all-linear") == layers_of(target_modules="All-Linear") == layers_of() == every
    assert layers_of(target_modules=r"block\.[qk]_proj") == every[:2]
    assert layers_of(target_modules="all-linear", exclude_modules=r".*k_proj") == ["block.q_proj", "out.0"]
    assert read(LoRAConfig, {"target_modules": "all-linear"}, place="lora").target_modules == "all-linear"
    assert read(LoRAConfig, {"target_modules": ["q_proj"]}, place="lora").target_modules == ("q_proj",)
    with pytest.raises(ConfigError, match=r"lora\.target_modules: 'q_proj' matches no layer"):
        layers_of(target_modules="q_proj")  # an expression of whole names, of which there is none
    with pytest.raises(ConfigError, match=r"target_modules: '\(q' is no regular expression"):
        LoRAConfig(target_modules="(q")


def test_all_linear_layers_are_those_of_peft():
    """All but the output embedding."""
    network = CausalLMConfig(preset="tiny", architecture="llama").build(seed=0).network
    theirs = get_peft_model(copy.deepcopy(network), LoraConfig(r=2, target_modules="all-linear"))
    apply_lora(network, LoRAConfig(rank=2, target_modules="all-linear"), seed=0)
    assert sorted(adapter_state(network)) == sorted(get_peft_model_state_dict(theirs))
