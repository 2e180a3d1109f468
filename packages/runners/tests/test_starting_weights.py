import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from rlinf.core.checkpoints.weight_files import find_weights
from rlinf.core.data import ArraySpec, EnvSpec, Weights
from rlinf.core.errors import CheckpointError, ConfigError, WeightSyncError
from rlinf.runners.checkpoints.checkpoint import write_checkpoint
from rlinf.runners.checkpoints.starting_weights import fitting_model, load_starting_weights, read_weights
from rlinf.runners.config.schema import ModelSection, ReferenceConfig
from rlinf.runners.training.reference import frozen

SPEC = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=1)
TENSORS = {"actor.weight": torch.arange(6.0).reshape(2, 3), "critic.bias": torch.ones(2, dtype=torch.bfloat16)}


@pytest.mark.parametrize("name", ["model.safetensors", "full_weights.pt", "actor/model_state_dict/full_weights.pt"])
def test_a_file_or_its_folder(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".pt":
        torch.save(TENSORS, file)
    else:
        save_file(TENSORS, file)
    for given in (file, tmp_path):
        weights = read_weights(find_weights(str(given)))
        assert weights.version == 0
        assert all(torch.equal(weights.tensors[key], tensor) for key, tensor in TENSORS.items())


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"runner\.ckpt_path: no weights at .*Name a file \(\.safetensors, \.pt"):
        find_weights(str(tmp_path), place="runner.ckpt_path")


class Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_what_is_no_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, write in (
        ("cut.safetensors", lambda path: path.write_bytes(b"12345678{}")),
        ("evil.pt", lambda path: torch.save({"a": Evil()}, path)),
        ("number.pt", lambda path: torch.save(3, path)),
    ):
        write(tmp_path / name)
        with pytest.raises(CheckpointError, match=r"runner\.ckpt_path"):
            read_weights(tmp_path / name)
    assert "unpickled" not in capsys.readouterr().out


def test_shards_and_a_run_are_found(tmp_path: Path) -> None:
    """An index whose shards lie beside it; and of a run the newest checkpoint, as with `resume_dir`."""
    sharded, run = tmp_path / "sharded", tmp_path / "run"
    sharded.mkdir()
    shards = dict(zip(("a.safetensors", "b.safetensors"), TENSORS, strict=True))
    for file, name in shards.items():
        save_file({name: TENSORS[name]}, sharded / file)
    index = {"weight_map": {name: file for file, name in shards.items()}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    for step in (9, 10):
        folder = run / f"checkpoints/global_step_{step}/actor"
        folder.mkdir(parents=True)
        save_file({**TENSORS, "step": torch.tensor(step)}, folder / "model.safetensors")
    found = read_weights(find_weights(str(sharded))).tensors
    assert all(torch.equal(found[key], tensor) for key, tensor in TENSORS.items())
    for given in (run, run / "checkpoints", run / "checkpoints/global_step_10"):
        assert read_weights(find_weights(str(given))).tensors["step"] == 10
    (sharded / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"reference\.ckpt_path: expected the shard 'b\.safetensors' beside"):
        read_weights(find_weights(str(sharded)), "reference.ckpt_path")


class Policy(torch.nn.Module):
    """Takes folders of Hugging Face, and all that has its names."""

    def __init__(self) -> None:
        super().__init__()
        self.value_head = torch.nn.Linear(1, 1)
        self.actor = torch.nn.Linear(1, 1)
        self.folders: list[Path] = []

    def weights(self) -> Weights[Any]:
        return Weights(tensors=dict(self.state_dict()), version=0)

    def load(self, weights: Weights[Any]) -> None:
        self.load_state_dict(dict(weights.tensors))

    def load_network(self, folder: Path) -> None:
        self.folders.append(folder)


def test_a_folder_of_hugging_face_is_left_to_the_policy(tmp_path: Path) -> None:
    policy, config = Policy(), tmp_path / "config.json"
    plain = {"actor.weight": torch.full((1, 1), 7.0), "actor.bias": torch.zeros(1)}
    save_file(plain, tmp_path / "model.safetensors")
    for content in ("{", "[]", '{"format": "rlinf-policy"}'):
        config.write_text(content)
        load_starting_weights(policy, str(tmp_path))
        assert not policy.folders
        assert policy.actor.weight.item() == 7
    config.write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    for given in (tmp_path, tmp_path / "model.safetensors"):
        load_starting_weights(policy, str(given))
    assert policy.folders == [tmp_path, tmp_path]


class Particular(Policy):
    def load(self, weights: Weights[Any]) -> None:
        raise WeightSyncError(
            "load(actor.other)", "expected no such tensor, found shape (1,)", "Build both from one configuration."
        )


def test_weights_of_another_model_are_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a run of another recipe was named is a mistake in the configuration, and says so."""

    def actor(folder: Path) -> None:
        save_file({"actor.other": torch.zeros(1)}, folder / "model.safetensors")

    run = tmp_path / "run"
    config = {"actor": {"model": {"model_type": "other"}}}
    write_checkpoint(run / "checkpoints/global_step_1", actor, config=config, state={"step": 1})
    message = r"runner\.ckpt_path: the weights of a 'other' in .*do not fit a 'mine' as it is configured: load\(actor\.other\):"
    with pytest.raises(ConfigError, match=message):
        load_starting_weights(Particular(), str(run), model=ModelSection(model_type="mine", config=cast("Any", object())))
    alone = run / "checkpoints/global_step_1/actor/model.safetensors"
    moved = tmp_path / "alone.safetensors"
    moved.write_bytes(alone.read_bytes())
    with pytest.raises(ConfigError, match=r"the weights in .*alone\.safetensors' do not fit this policy: load"):
        load_starting_weights(Particular(), str(moved))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the weights in 'alone\.safetensors' do not fit this policy: load"):
        load_starting_weights(Particular(), moved.name)


@dataclass(frozen=True)
class Published:
    preset: str | None = "tiny"
    model_path: str | None = None

    def check(self, place: str) -> None: ...

    def build(self, spec: EnvSpec, *, seed: int) -> Any:
        return Built(section(self))


@dataclass(frozen=True)
class Unfit(Published):
    def build(self, spec: EnvSpec, *, seed: int) -> Any:
        raise ConfigError("actor.model.model_path", "statistics of 3 states, and the environment has 1")


def section(config: Any) -> ModelSection:
    return ModelSection(model_type="toy", config=config)


class Built:
    """A policy whose only weight says what it was built from."""

    predict_action_batch = print

    def __init__(self, model: ModelSection) -> None:
        config: Any = model.config
        self.model, self.loaded = model, Weights(tensors={"w": torch.tensor([1.0 if config.model_path else 0.0])}, version=4)

    def weights(self) -> Weights[torch.Tensor]:
        return self.loaded

    def load(self, weights: Weights[torch.Tensor]) -> None:
        self.loaded = weights


@pytest.mark.parametrize("config", [{"type": "pi0"}, {"architectures": ["X"]}])
def test_a_public_folder_is_read_by_the_architecture(tmp_path: Path, config: dict[str, Any]) -> None:
    """Its names and its statistics are not the policy's."""
    save_file({"their.name": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    policy = Built(section(Published()))
    load_starting_weights(policy, str(tmp_path), model=policy.model, spec=SPEC)
    assert (policy.loaded.tensors["w"].item(), policy.loaded.version) == (1.0, 0)
    with pytest.raises(ConfigError, match=r"runner\.ckpt_path: .* whose folders 'toy' does not read"):
        load_starting_weights(policy, str(tmp_path), model=section(object()), spec=SPEC)
    with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: statistics of 3 states"):
        load_starting_weights(policy, str(tmp_path), model=section(Unfit()), spec=SPEC)


class Scores(torch.nn.Module):
    """The same, which can be a reference."""

    weights, load = Built.weights, Built.load

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        Built.__init__(cast("Any", self), model)


def test_a_reference_reads_a_public_folder_as_a_start_does(tmp_path: Path) -> None:
    save_file({"their.name": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"type": "pi0"}))
    reference, model = ReferenceConfig(source="path", ckpt_path=str(tmp_path)), section(Published())
    policy = frozen(Scores(model), reference, torch.device("cpu"), model, SPEC)
    assert policy.loaded.tensors["w"].item() == 1.0
    with pytest.raises(ConfigError, match=r"^reference\.ckpt_path: .* whose folders 'toy' does not read"):
        frozen(Scores(model), reference, torch.device("cpu"), section(object()), SPEC)


def test_a_saved_policy_is_no_public_folder(tmp_path: Path) -> None:
    save_file({"w": torch.full((1,), 7.0)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"format": "rlinf-policy", "model_type": "x"}))
    policy = Built(section(Published()))
    load_starting_weights(policy, str(tmp_path), model=policy.model, spec=SPEC)
    assert policy.loaded.tensors["w"].item() == 7.0


class Named:
    """A policy that has tensors of these names, and is told which it gets."""

    def __init__(self, **tensors: float) -> None:
        self.tensors = {name.replace("__", "."): torch.tensor(value) for name, value in tensors.items()}
        self.got: dict[str, float] = {}

    def weights(self) -> Weights[torch.Tensor]:
        return Weights(tensors=self.tensors, version=3)

    def load(self, weights: Weights[torch.Tensor]) -> None:
        assert weights.tensors.keys() == self.tensors.keys()
        self.got = {name: float(tensor) for name, tensor in weights.tensors.items()}


def test_what_demonstrations_do_not_teach_may_differ(tmp_path: Path) -> None:
    save_file({"net.a": torch.tensor(1.0), "value_head.w": torch.tensor(2.0)}, tmp_path / "model.safetensors")
    without, other = Named(net__a=0.0), Named(net__a=0.0, noise_net__w=5.0, value_head__w=0.0)
    load_starting_weights(without, str(tmp_path))
    assert without.got == {"net.a": 1.0}
    load_starting_weights(other, str(tmp_path))
    assert other.got == {"net.a": 1.0, "noise_net.w": 5.0, "value_head.w": 2.0}


def test_weights_go_beneath_adapters_and_adapters_need_a_place(tmp_path: Path) -> None:
    plain, adapted = tmp_path / "plain.safetensors", tmp_path / "adapted.safetensors"
    save_file({"q.weight": torch.tensor(1.0)}, plain)
    save_file({"q.base_layer.weight": torch.tensor(1.0), "q.lora_A.default.weight": torch.tensor(2.0)}, adapted)
    policy = Named(q__base_layer__weight=0.0, q__lora_A__default__weight=7.0)
    load_starting_weights(policy, str(plain))
    assert policy.got == {"q.base_layer.weight": 1.0, "q.lora_A.default.weight": 7.0}
    load_starting_weights(policy, str(adapted))
    assert policy.got == {"q.base_layer.weight": 1.0, "q.lora_A.default.weight": 2.0}
    with pytest.raises(CheckpointError, match=r"runner\.ckpt_path: the weights have adapters .* Set actor\.model\.lora"):
        load_starting_weights(Named(q__weight=0.0), str(adapted))


@dataclass(frozen=True)
class Chunked:
    num_action_chunks: int = 1


@pytest.mark.parametrize("kind", [WeightSyncError, CheckpointError])
def test_a_checkpoint_of_another_model_than_is_configured_is_told_by_its_keys(
    tmp_path: Path, kind: type[WeightSyncError | CheckpointError]
) -> None:
    refused = kind("load(w)", "expected shape (2,), found shape (1,)", "Build both from one configuration.")
    env = {"train": {"env_type": "gymnasium", "init_params": {"env_id": "a"}, "total_num_envs": 4}}
    config, file = {"actor": {"model": {"model_type": "x"}}, "env": env}, tmp_path / "global_step_1/actor/model.safetensors"
    write_checkpoint(
        tmp_path / "global_step_1", lambda part: save_file({"w": torch.ones(1)}, part / file.name), config=config, state={}
    )
    model = ModelSection(model_type="x", config=cast("Any", Chunked()))

    def load(env_id: str = "a", **changed: Any) -> None:
        played = {"env_type": "gymnasium", "init_params": {"env_id": env_id, "more": 1}, "total_num_envs": 8}
        source = {"actor": {"model": {"model_type": "x", **changed}}, "env": {"train": played}}
        with fitting_model(file.parents[1], source, model):
            raise refused

    key = r"actor\.model\.num_action_chunks"
    with pytest.raises(ConfigError, match=rf"^{key}: .*\({key}: 1 in training, 2 now\): load\(w\): expected shape"):
        load(num_action_chunks=2)
    with pytest.raises(ConfigError, match=rf"^actor\.model\.a: .*\(actor\.model\.a: 'left out' in training, 3 now; {key}: 1 in"):
        load(num_action_chunks=2, a=3)
    with pytest.raises(
        ConfigError, match=r"^env\.train\.init_params\.env_id: .*\(env\.train\.init_params\.env_id: 'a' in training, 'b' now\)"
    ):
        load("b")
    with pytest.raises(kind):
        load()
    # of fine-tuning, whose evaluation has a copy as `env.train`
    write_checkpoint(
        file.parents[1],
        lambda part: save_file({"w": torch.ones(1)}, part / file.name),
        config={"actor": {"model": {"model_type": "x"}}, "env": {"eval": {"env_type": "gymnasium"}}},
        state={},
    )
    played = {"env_type": "tabletop"}
    evaluated = {"actor": {"model": {"model_type": "x"}}, "env": {"train": played, "eval": played}}
    message = r"^env\.eval\.env_type: .*\(env\.eval\.env_type: 'gymnasium' in training, 'tabletop' now\)"
    with pytest.raises(ConfigError, match=message), fitting_model(file.parents[1], evaluated, model):
        raise refused
