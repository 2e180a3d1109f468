import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError, UnknownName
from rlinf.core.registry import MODELS
from rlinf.models.checkpoints import export_full_weights, export_like, load_policy, load_weights, save_policy, write_tensors
from rlinf.models.checkpoints.policies import _described
from rlinf.models.language import CausalLMConfig, save_language_model
from rlinf.models.normalization import Normalizer
from rlinf.models.registry import get_model
from rlinf.models.small.mlp import MLPPolicyConfig
from rlinf.models.statistics import read_statistics

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(7,), dtype="float32")},
    action=ArraySpec(shape=(3,), dtype="float32"),
    max_episode_steps=9,
)
CONFIG = MLPPolicyConfig(hidden_sizes=(8, 8), activation="relu")


def same(one, other):
    found, expected = one.weights().tensors, other.weights().tensors
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected)


@pytest.fixture
def policy():
    made = CONFIG.build(SPEC, seed=3)
    made.version = 12
    return made


def test_a_policy_comes_back(policy, tmp_path):
    save_policy(policy, CONFIG, tmp_path / "step_12")
    described = json.loads((tmp_path / "step_12" / "config.json").read_text())
    assert described["model_type"] == "mlp_policy"
    assert described["config"]["hidden_sizes"] == [8, 8]
    found = load_policy(tmp_path / "step_12", SPEC)
    assert same(found, policy)
    assert found.version == 12
    states = {"states": np.ones((4, 7), dtype=np.float32)}
    for mode in ("train", "eval"):
        one, other = (p.predict_action_batch(states, mode, generator=torch.Generator().manual_seed(0)) for p in (found, policy))
        assert torch.equal(one.action, other.action)


def test_shards_and_files(policy, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    save_policy(policy, CONFIG, tmp_path / "p", files=[tmp_path / "tokenizer.json"], shard_bytes=256)
    assert len(list((tmp_path / "p").glob("model-*.safetensors"))) > 1
    assert (tmp_path / "p" / "tokenizer.json").exists()
    assert same(load_policy(tmp_path / "p", SPEC), policy)
    with pytest.raises(CheckpointError, match="there is no such file"):
        save_policy(policy, CONFIG, tmp_path / "q", files=[tmp_path / "vocab.json"])
    assert not (tmp_path / "q").exists()


@dataclass(frozen=True)
class NormalizedConfig:
    scale: float = 1.0

    def build(self, spec, *, seed):
        policy = CONFIG.build(spec, seed=seed)
        policy.normalize_actions = Normalizer(3, "quantile")
        policy.normalize_actions.set_statistics({"q01": [-self.scale] * 3, "q99": [self.scale] * 3, "mask": [True, True, False]})
        return policy


def test_statistics_live_in_the_checkpoint(tmp_path):
    save_policy(NormalizedConfig(scale=7.0).build(SPEC, seed=0), NormalizedConfig(), tmp_path / "p", model_type="normalized")
    assert read_statistics(tmp_path / "p")["normalize_actions"]["q99"].tolist() == [7.0] * 3
    MODELS.register("normalized", NormalizedConfig)
    found = load_policy(tmp_path / "p", SPEC, params={"scale": 1.0})
    assert found.normalize_actions.second.tolist() == [7.0] * 3
    assert found.normalize_actions.mask.tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_type_comes_back(dtype, policy, tmp_path):
    policy.to(dtype)
    save_policy(policy, CONFIG, tmp_path / "p")
    other = CONFIG.build(SPEC, seed=0).to(dtype)
    load_weights(other, tmp_path / "p")
    assert same(other, policy)


def test_weights_alone(policy, tmp_path):
    export_full_weights(policy, tmp_path / "actor" / "model_state_dict" / "full_weights.pt")
    assert load_policy(tmp_path, SPEC, model_type="mlp_policy", params={"hidden_sizes": [8, 8], "activation": "relu"}).version == 0
    wrapped = {f"module._fsdp_wrapped_module.{name}": tensor for name, tensor in policy.weights().tensors.items()}
    torch.save(wrapped, tmp_path / "full_weights.pt")
    cfg = {"model_type": "mlp_policy", "hidden_sizes": [8, 8], "activation": "relu", "ckpt_path": str(tmp_path / "full_weights.pt")}
    assert same(get_model(cfg, SPEC), policy)
    with pytest.raises(CheckpointError, match=r"expected the name of a registered model, found None\. Pass model_type"):
        load_policy(tmp_path, SPEC)


def write_run(policy, folder, model):
    """A checkpoint as a run writes it."""
    (folder / "actor").mkdir(parents=True)
    write_tensors(policy.weights().tensors, folder / "actor")
    (folder / "config.json").write_text(json.dumps({"actor": {"model": model, "optim": {"lr": 1.0}}, "runner": {"seed": 1}}))
    (folder / "state.json").write_text(json.dumps({"step": 3, "version": 12}))


def test_a_checkpoint_of_a_run_comes_back(policy, tmp_path):
    model = {"model_type": "mlp_policy", "hidden_sizes": [8, 8], "activation": "relu"}
    write_run(CONFIG.build(SPEC, seed=9), tmp_path / "checkpoints" / "global_step_9", model)
    newest = tmp_path / "checkpoints" / "global_step_10"
    write_run(policy, newest, model)
    for given in (newest, tmp_path, tmp_path / "checkpoints"):
        found = load_policy(given, SPEC)
        assert same(found, policy)
        assert found.version == 12
    assert not same(load_policy(newest.with_name("global_step_9"), SPEC), policy)
    with pytest.raises(CheckpointError, match="made for another policy"):
        load_policy(newest, SPEC, params={"hidden_sizes": [8, 9]})
    (newest / "config.json").write_text(json.dumps({"actor": {"model": {**model, "model_type": "os:system"}}}))
    with pytest.raises(CheckpointError, match=r"actor\.model: expected the name of a registered model, found 'os:system'"):
        load_policy(tmp_path, SPEC)


def test_who_acts_needs_an_environment():
    with pytest.raises(ConfigError, match=r"a model that acts in an environment was given none\. Pass spec"):
        get_model({"model_type": "mlp_policy"})


def test_a_language_model_needs_no_environment(tmp_path):
    config = CausalLMConfig(preset="tiny", architecture="llama")
    model = get_model({"model_type": "causal_lm", "preset": "tiny", "architecture": "llama"}, seed=2)
    assert same(model, config.build(seed=2))
    write_run(model, tmp_path / "run" / "global_step_1", {"model_type": "causal_lm", "preset": "tiny", "architecture": "llama"})
    assert same(load_policy(tmp_path / "run"), model)
    save_language_model(model, tmp_path / "folder", shard_size="100KB")
    assert len(list((tmp_path / "folder").glob("*.safetensors"))) > 1
    assert same(load_policy(tmp_path / "folder", model_type="causal_lm"), model)
    shards = {"model_type": "causal_lm", "preset": "tiny", "architecture": "llama", "ckpt_path": str(tmp_path / "folder")}
    assert same(get_model(shards, seed=5), model)
    with pytest.raises(CheckpointError, match=r"folder.*(can't be read|missing)"):
        get_model({**shards, "overrides": {"hidden_size": 32}})


def test_a_map_and_what_it_leaves(policy, tmp_path):
    state = {f"net.{name}": tensor.clone() for name, tensor in policy.weights().tensors.items() if not name.startswith("critic")}
    save_file({**state, "net.extra": torch.ones(1)}, tmp_path / "model.safetensors")
    other = CONFIG.build(SPEC, seed=5)

    def rename(tensors):
        return {name.removeprefix("net."): tensor for name, tensor in tensors.items()}

    with pytest.raises(CheckpointError, match="6 missing: critic"):
        load_weights(other, tmp_path, weight_map=rename, allow_unused=["extra"])
    report = load_weights(other, tmp_path, weight_map=rename, allow_missing=["critic.*"], allow_unused=["extra"])
    assert report.unused == ("extra",)
    assert all(name.startswith("critic.") for name in report.missing)
    torch.testing.assert_close(other.log_std, policy.log_std)


def changed(folder, what):
    weights = load_file(folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    if what == "missing":
        weights.pop("log_std")
    if what == "unknown":
        weights["log_sdt"] = weights.pop("log_std")
    if what == "shape":
        weights["log_std"] = torch.zeros(4)
    if what == "config":
        described["config"]["hidden_sizes"] = [8, 9]
    if what == "format":
        described["format_version"] = 99
    if what == "import":
        described["model_type"] = "os:system"
    if what == "model":
        described["model_type"] = "mlp_polcy"
    if what == "key":
        described["config"]["hidden_size"] = [8]
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text("{" if what == "json" else json.dumps(described))
    if what == "cut":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    if what == "gone":
        (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("missing", CheckpointError, r"model\.safetensors: made for another policy: 1 missing: log_std \[3\]"),
        ("unknown", CheckpointError, r"1 missing: log_std \[3\] \(nearest: log_sdt\)"),
        ("shape", CheckpointError, r"log_std: expected \[3\] float32, found \[4\] float32"),
        ("config", CheckpointError, r"expected \[9, 8\] float32, found \[8, 8\] float32"),
        ("format", CheckpointError, r"config\.json: expected version 1 of the format, found 99"),
        ("import", CheckpointError, r"expected the name of a registered model, found 'os:system'"),
        ("model", UnknownName, r"Did you mean 'mlp_policy'"),
        ("key", ConfigError, r"config\.json\.hidden_size: unknown key"),
        ("json", CheckpointError, r"config\.json: can't be read"),
        ("cut", CheckpointError, r"model\.safetensors: can't be read"),
        ("gone", CheckpointError, r"no weights there"),
    ],
)
def test_foreign_and_damaged_folders_are_refused(what, error, message, policy, tmp_path):
    save_policy(policy, CONFIG, tmp_path / "p")
    changed(tmp_path / "p", what)
    with pytest.raises(error, match=message):
        load_policy(tmp_path / "p", SPEC)
    if error is CheckpointError and what in ("missing", "unknown", "shape", "cut", "gone"):
        other, untouched = CONFIG.build(SPEC, seed=1), CONFIG.build(SPEC, seed=1)
        with pytest.raises(error, match=message):
            load_weights(other, tmp_path / "p")
        assert same(other, untouched)


def test_the_configurations_that_we_register_come_back_from_json():
    for name in MODELS.names():
        if MODELS.owner(name).startswith("rlinf.models."):
            try:
                config = MODELS.build(name, {}, place=name)
            except ConfigError:  # those with a preset need it
                config = MODELS.build(name, {"preset": "tiny"}, place=name)
            described = json.loads(_described(CONFIG.build(SPEC, seed=0), config, None))
            assert MODELS.build(described["model_type"], described["config"], place=name) == config


def test_what_can_not_be_saved(policy, tmp_path):
    @dataclass
    class Mine:
        path: Path = Path("x")

    with pytest.raises(ConfigError, match=r"no model is registered as .*Mine"):
        save_policy(policy, Mine(), tmp_path / "p")
    with pytest.raises(ConfigError, match="JSON can't hold"):
        save_policy(policy, Mine(), tmp_path / "p", model_type="mine")
    with pytest.raises(ConfigError, match="expected the dataclass"):
        save_policy(policy, {}, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Published:
    """An architecture that reads the folders of another project itself."""

    model_path: str
    width: int = 8

    def build(self, spec, *, seed):
        policy = MLPPolicyConfig(hidden_sizes=(self.width,)).build(spec, seed=seed)
        load_weights(policy, Path(self.model_path), weight_map=theirs_to_ours, allow_missing=["critic.*"], allow_unused=["lm_head"])
        return policy


def theirs_to_ours(tensors):
    return {name.replace("policy.net.", "actor.").replace("policy.noise", "log_std"): value for name, value in tensors.items()}


def ours_to_theirs(tensors):
    return {name.replace("actor.", "policy.net.").replace("log_std", "policy.noise"): value for name, value in tensors.items()}


def test_another_projects_folder_is_loaded_by_its_name_and_exported_back(tmp_path):
    MODELS.register("published_model", Published)
    source = tmp_path / "theirs"
    (source / "assets").mkdir(parents=True)
    actor = {k: v for k, v in MLPPolicyConfig(hidden_sizes=(8,)).build(SPEC, seed=1).weights().tensors.items() if "critic" not in k}
    theirs = {name: tensor.to(torch.bfloat16) for name, tensor in ours_to_theirs(actor).items()}
    save_file({**theirs, "lm_head": torch.ones(2)}, source / "model.safetensors")
    save_file({"action.mean": torch.ones(3)}, source / "policy_preprocessor_step_0_normalizer_processor.safetensors")
    (source / "config.json").write_text(json.dumps({"type": "published_model", "chunk_size": 50}))
    (source / "assets" / "norm_stats.json").write_text("{}")
    policy = load_policy(source, SPEC)
    with torch.no_grad():
        policy.log_std += 1.0
    left = export_like(policy, source, tmp_path / "out", to_public=ours_to_theirs)
    assert left == tuple(sorted(name for name in policy.weights().tensors if name.startswith("critic.")))
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == sorted(
        p.name for p in source.rglob("*") if p.is_file()
    )
    out = load_file(tmp_path / "out" / "model.safetensors")
    before = load_file(source / "model.safetensors")
    assert {name: (t.shape, t.dtype) for name, t in out.items()} == {name: (t.shape, t.dtype) for name, t in before.items()}
    assert torch.equal(out["lm_head"], before["lm_head"])
    torch.testing.assert_close(out["policy.noise"], before["policy.noise"] + 1.0)
    torch.testing.assert_close(load_policy(tmp_path / "out", SPEC).log_std, policy.log_std)
    with pytest.raises(CheckpointError, match=r"Check to_public"):
        export_like(policy, source, tmp_path / "never", to_public=lambda tensors: {f"x.{k}": v for k, v in tensors.items()})
    assert not (tmp_path / "never").exists()


def test_loading_leaves_the_global_generators_alone(policy, tmp_path):
    save_policy(policy, CONFIG, tmp_path / "p")
    states = torch.get_rng_state(), random.getstate()
    load_policy(tmp_path / "p", SPEC)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_get_model():
    built = get_model({"model_type": "mlp_policy", "hidden_sizes": [8, 8], "activation": "relu"}, SPEC, seed=3, device="cpu")
    assert same(built, CONFIG.build(SPEC, seed=3))
    with pytest.raises(ConfigError, match=r"model\.model_type: expected a name, found None\. Installed: .*mlp_policy"):
        get_model({}, SPEC)
    with pytest.raises(ConfigError, match=r"actor\.model\.hidden: unknown key"):
        get_model({"model_type": "mlp_policy", "hidden": 3}, SPEC, place="actor.model")

    def builder(spec, *, seed):
        return CONFIG.build(spec, seed=seed)

    MODELS.register("a_function", builder)
    assert same(get_model({"model_type": "a_function"}, SPEC, seed=4), CONFIG.build(SPEC, seed=4))
    with pytest.raises(ConfigError, match=r"model\.width: the model 'a_function' takes no parameters"):
        get_model({"model_type": "a_function", "width": 4}, SPEC)
    MODELS.register("no_policy", lambda spec, *, seed: 3)
    with pytest.raises(ConfigError, match=r"'no_policy' built a int\. Derive it from BasePolicy"):
        get_model({"model_type": "no_policy"}, SPEC)


def test_a_folder_that_is_not_there_is_called_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere: there is nothing\. Name a run"):
        load_policy(tmp_path / "nowhere")
