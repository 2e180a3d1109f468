"""`rlinf convert`: every format and back, bit for bit, and what it refuses."""

import dataclasses
import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from pi0_names import published
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.checkpoints import load_policy, read_tensors, write_tensors
from rlinf.models.conversion.command import convert
from rlinf.models.conversion.sources import find_source
from rlinf.models.gr00t import to_public
from rlinf.models.openvla.weight_map import published_state
from rlinf.models.pi0 import PI0PolicyConfig
from rlinf.models.pi0.architecture import tiny
from rlinf.models.registry import build_policy

BOUND = torch.ones(2).numpy()
SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(4,), dtype="float32")},
    action=ArraySpec(shape=(2,), dtype="float32", low=-BOUND, high=BOUND),
    max_episode_steps=50,
)
PI_SPEC = EnvSpec(
    observation={
        "main_images": ArraySpec(shape=(16, 16, 3), dtype="uint8"),
        "states": ArraySpec(shape=(4,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="str"),
    },
    action=ArraySpec(shape=(2,), dtype="float32", low=-BOUND, high=BOUND),
    max_episode_steps=50,
)
MLP = {"hidden_sizes": [8]}
GROOT_HEAD = "backbone.eagle_model.language_model.lm_head.weight"
TEXT = {"preset": "tiny", "architecture": "llama"}


def same(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor, right[name]), name


def run_of(folder, policy, model, shards=False):
    """A checkpoint as runs write it."""
    step = folder / "run/checkpoints/global_step_7"
    (step / "actor").mkdir(parents=True)
    (step / "config.json").write_text(json.dumps({"actor": {"model": model}, "runner": {}}))
    (step / "state.json").write_text(json.dumps({"step": 7, "version": 5}))
    tensors = policy.weights().tensors
    if shards:
        state = {f"model/{name}": tensor.detach() for name, tensor in tensors.items()}
        state |= {"version": torch.tensor(5), "optimizer/x/exp_avg": torch.zeros(3)}
        (step / "actor/shards").mkdir()
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(step / "actor/shards"), save_distributed=True), no_dist=True)
    else:
        write_tensors(tensors, step / "actor")
    return folder / "run"


@pytest.fixture
def policy():
    return build_policy("mlp_policy", MLP, SPEC, seed=3, place="model")


@pytest.fixture
def text(tmp_path):
    """A language model, and the folder of Hugging Face that it is."""
    model = build_policy("causal_lm", TEXT, None, seed=3, place="model")
    model.save_network(tmp_path / "hf")
    tiny_tokenizer(64).save_pretrained(tmp_path / "hf")
    return model, tmp_path / "hf"


@pytest.mark.parametrize("shards", [False, True])
def test_a_run_becomes_weights_and_a_policy(tmp_path, policy, shards, capsys):
    run, tensors = run_of(tmp_path, policy, {"model_type": "mlp_policy", **MLP}, shards), policy.weights().tensors
    assert convert([str(run), str(tmp_path / "saved"), "--to", "safetensors"]) == 0
    assert f"saved: {len(tensors)} tensors as safetensors" in capsys.readouterr().out
    loaded = load_policy(tmp_path / "saved", SPEC)
    same(loaded.weights().tensors, tensors)
    assert loaded.version == 5
    convert([str(tmp_path / "saved"), str(tmp_path / "pt"), "--to", "full_weights"])
    same(read_tensors(tmp_path / "pt/full_weights.pt"), dict(tensors))
    convert([str(tmp_path / "pt"), str(tmp_path / "again"), "--to", "safetensors"])
    same(read_tensors(tmp_path / "again"), dict(tensors))
    with pytest.raises(ConfigError, match="is there already"):
        convert([str(run), str(tmp_path / "again"), "--to", "safetensors"])
    convert([str(run), str(tmp_path / "again"), "--to", "safetensors", "--overwrite"])


def test_a_language_model_there_and_back(tmp_path, text):
    model, folder = text
    run = run_of(tmp_path, model, {"model_type": "causal_lm", **TEXT, "model_path": None})
    convert([str(run), str(tmp_path / "out"), "--to", "hf"])
    same(read_tensors(tmp_path / "out"), read_tensors(folder))
    # Weights alone know nothing of their network, which another folder says.
    convert([str(folder), str(tmp_path / "x.pt"), "--to", "full_weights"])
    same(read_tensors(tmp_path / "x.pt"), dict(model.weights().tensors))
    convert([str(tmp_path / "x.pt"), str(tmp_path / "back"), "--to", "hf", "--like", str(folder)])
    same(read_tensors(tmp_path / "back"), read_tensors(folder))
    assert (tmp_path / "back/tokenizer_config.json").is_file()
    with pytest.raises(ConfigError, match="does not say of which model it is"):
        convert([str(tmp_path / "x.pt"), str(tmp_path / "never"), "--to", "hf"])
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("given", [[], ["model_type=vlm"]], ids=["found", "given"])
def test_a_vision_language_model_there_and_back(tmp_path, given):
    model = build_policy("vlm", {"preset": "tiny", "architecture": "qwen3_vl"}, None, seed=3, place="model")
    model.save_network(tmp_path / "hf")
    convert([str(tmp_path / "hf"), str(tmp_path / "x.pt"), "--to", "full_weights", *given])
    same(read_tensors(tmp_path / "x.pt"), dict(model.weights().tensors))
    convert([str(tmp_path / "x.pt"), str(tmp_path / "back"), "--to", "hf", "--like", str(tmp_path / "hf"), *given])
    same(read_tensors(tmp_path / "back"), read_tensors(tmp_path / "hf"))


def test_bfloat16_stays_bfloat16(tmp_path):
    model = build_policy("causal_lm", {**TEXT, "precision": "bf16"}, None, seed=3, place="model")
    model.save_network(tmp_path / "hf")
    convert([str(tmp_path / "hf"), str(tmp_path / "x.pt"), "--to", "full_weights"])
    same(read_tensors(tmp_path / "x.pt"), dict(model.weights().tensors))


def test_pi0_back_to_lerobot(tmp_path):
    of = tiny("pi0")
    policy = PI0PolicyConfig(preset="tiny").build(PI_SPEC, seed=1)
    folder = tmp_path / "lerobot"
    folder.mkdir()
    stored = {published(name, "lerobot"): tensor.clone() for name, tensor in policy.network.state_dict().items()}
    unused = {"model.paligemma_with_expert.gemma_expert.lm_head.weight": torch.ones(8, of.expert.width)}
    save_file({**stored, **unused}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"type": "pi0", "architecture": dataclasses.asdict(of)}))
    (folder / "norm_stats.json").write_text("{}")
    tiny_tokenizer(of.vocabulary).save_pretrained(folder)
    assert find_source(folder).kind == "lerobot"
    model = {"model_type": "pi0", "model_path": str(folder)}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5)
    run = run_of(tmp_path, policy, model)
    convert([str(run), str(tmp_path / "out"), "--to", "lerobot"])
    out = load_file(tmp_path / "out/model.safetensors")
    same(out, {**{published(name, "lerobot"): tensor for name, tensor in policy.network.state_dict().items()}, **unused})
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(file.name for file in folder.iterdir())
    again = PI0PolicyConfig(model_path=str(tmp_path / "out")).build(PI_SPEC, seed=2)
    same(dict(again.network.state_dict()), dict(policy.network.state_dict()))
    with pytest.raises(ConfigError, match=r"no statistics that say how many numbers .* actions=7, and states=8"):
        convert([str(folder), str(tmp_path / "never"), "--to", "safetensors"])
    assert not (tmp_path / "never").exists()
    convert([str(tmp_path / "out"), str(tmp_path / "ours"), "--to", "safetensors", "actions=2", "states=4"])
    same(dict(load_policy(tmp_path / "ours", PI_SPEC).network.state_dict()), dict(policy.network.state_dict()))
    convert([str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "lerobot", "--like", str(folder)])
    same(load_file(tmp_path / "theirs/model.safetensors"), out)


def _groot_names(tensors):
    return {f"_groot_model.{name}": tensor for name, tensor in to_public(tensors).items()}


@pytest.mark.parametrize(
    ("model", "public", "unused_name", "config", "to"),
    [
        (
            "openvla",
            published_state,
            "any.weight",
            {"model_type": "openvla", "architectures": ["OpenVLAForActionPrediction"]},
            "hf",
        ),
        (
            "openvla_oft",
            published_state,
            "any.weight",
            {"model_type": "openvla", "architectures": ["OpenVLAForActionPrediction"]},
            "hf",
        ),
        ("gr00t", to_public, GROOT_HEAD, {"model_type": "gr00t_n1_5", "architectures": ["GR00T_N1_5"]}, "hf"),
        ("gr00t", _groot_names, f"_groot_model.{GROOT_HEAD}", {"type": "groot"}, "lerobot"),
    ],
)
def test_a_robot_policy_becomes_the_folder_that_it_came_from(tmp_path, model, public, unused_name, config, to):
    """With other weights: those of the run; what the run has no use for stays."""
    policy = build_policy(model, {"preset": "tiny"}, PI_SPEC, seed=1, place="model")
    folder = tmp_path / "public"
    folder.mkdir()
    theirs = {name: tensor.clone() for name, tensor in public(policy.weights().tensors).items()}
    unused = {unused_name: torch.ones(2)}
    save_file({**theirs, **unused}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.25)
    run = run_of(tmp_path, policy, {"model_type": model, "preset": "tiny"})
    with pytest.raises(ConfigError, match="can't be written without a public folder"):
        convert([str(run), str(tmp_path / "out"), "--to", to])
    convert([str(run), str(tmp_path / "out"), "--to", to, "--like", str(folder)])
    same(load_file(tmp_path / "out/model.safetensors"), {**public(policy.weights().tensors), **unused})
    if to == "lerobot":
        (folder / "config.json").write_text(json.dumps({"type": "act"}))
        with pytest.raises(ConfigError, match=r"expected a folder of LeRobot of type 'gr00t' at .* found 'act'"):
            convert([str(run), str(tmp_path / "never"), "--to", to, "--like", str(folder)])


def test_weights_that_would_be_lost_are_named(tmp_path):
    """A regressing head is a file of its own in published checkpoints, which is not written."""
    policy = build_policy("openvla_oft", {"preset": "tiny", "action_head": "l1"}, PI_SPEC, seed=1, place="model")
    save_file({name: t.clone() for name, t in published_state(policy.weights().tensors).items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OpenVLAForActionPrediction"]}))
    run = run_of(tmp_path, policy, {"model_type": "openvla_oft"})
    with pytest.raises(ConfigError, match=r"weights have no place in .*, such as \['decoder"):
        convert([str(run), str(tmp_path / "out"), "--to", "hf", "--like", str(tmp_path)])


def test_what_can_not_be_done_is_said(tmp_path, policy, text):
    run = str(run_of(tmp_path, policy, {"model_type": "mlp_policy", **MLP}))
    own = str(run_of(tmp_path / "own", policy, {"model_type": "mine:Policy"}))
    _, folder = text
    out = str(tmp_path / "never")
    for args, message in (
        ([run, out, "--to", "lerobot"], r"LeRobot has no 'mlp_policy'; of ours it has pi0, pi05, gr00t"),
        ([run, out, "--to", "hf"], r"no other project has 'mlp_policy'"),
        ([own, out, "--to", "hf"], r"^--to: no other project has 'mine:Policy'"),
        ([str(folder), out, "--to", "hf"], r"is a folder of Hugging Face already"),
        ([str(folder), out, "--to", "safetensor"], r"no format 'safetensor'\. Did you mean 'safetensors'"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert(args)
        assert not (tmp_path / "never").exists(), args
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for args, message in (
        ([str(tmp_path / "empty"), out, "--to", "hf"], "^SOURCE: no weights at"),
        ([str(tmp_path / "nowhere"), out, "--to", "hf"], "^SOURCE: there is nothing at '.*nowhere'"),
        ([run, str(tmp_path / "file"), "--to", "full_weights"], r"^TARGET: '.*file' is there already\. .*--overwrite"),
        ([run, str(tmp_path / "file/x"), "--to", "full_weights"], "^TARGET: '.*x' can't be made, as '.*file' is no folder"),
        ([run, "/proc/x/y", "--to", "safetensors"], "^TARGET: '/proc/x/y' can't be made, as '/proc' is not writable"),
        ([run, "/proc/x.pt", "--to", "full_weights"], r"^TARGET: '/proc/x\.pt' can't be made, as '/proc' is not writable"),
        ([run, out, "--to", "hf", "--like", str(tmp_path / "nowhere")], "^--like: there is no folder '.*nowhere'"),
        ([run, out, "--to", "safetensors", "actins=3"], "^rlinf convert: a checkpoint .* needs no parameter, found 'actins'"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert(args)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device", "/somewhere/.never.1.part"), SafetensorError("I/O error: No space left on device")],
)
@pytest.mark.parametrize("to", ["safetensors", "full_weights"])
def test_a_full_disk_is_said_in_a_line(tmp_path, monkeypatch, policy, error, to):
    def full(*args, **kwargs):
        raise error

    run = str(run_of(tmp_path, policy, {"model_type": "mlp_policy", **MLP}))
    monkeypatch.setattr("rlinf.models.checkpoints.tensors._save", full)
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"^.*never: can't be written \(.*No space left on device\)\. Make room") as caught:
        convert([run, str(tmp_path / "never"), "--to", to])
    assert ".part" not in str(caught.value)
    assert not (tmp_path / "never").exists()


def test_a_run_whose_model_is_no_section_is_refused(tmp_path, policy):
    run = run_of(tmp_path, policy, "mlp_policy")
    with pytest.raises(CheckpointError, match=r"actor\.model: expected a mapping, found str"):
        find_source(run)
