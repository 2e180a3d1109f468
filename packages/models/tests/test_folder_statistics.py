"""A folder without the statistics that are asked for is refused before a model is loaded, with both sides."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError, RLinfError
from rlinf.models.gr00t.policy import GR00TPolicyConfig
from rlinf.models.openvla.policy import OpenVLAPolicyConfig
from rlinf.models.openvla_oft.policy import OpenVLAOFTPolicyConfig
from rlinf.models.pi0.policy import PI0PolicyConfig

OPENVLA = [OpenVLAPolicyConfig, OpenVLAOFTPolicyConfig]
QUANTILES = {"action": {"q01": [0.0] * 7, "q99": [1.0] * 7}}
PI0 = {"type": "pi0", "paligemma_variant": "gemma_2b", "max_action_dim": 8}
NORMAL = {"mean": [0.0] * 3, "std": [1.0] * 3}


def written(folder: Path, content: dict, name: str = "config.json") -> str:
    for file, found in ((folder / "config.json", {}), (folder / name, content)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return str(folder)


def refused(message: str, config, actions=None) -> None:
    def looked_at() -> None:
        config.check("actor.model")
        config.check_statistics("actor.model", actions)

    with pytest.raises(ConfigError, match=message):
        looked_at()


@pytest.mark.parametrize("config", [*OPENVLA, PI0PolicyConfig, GR00TPolicyConfig])
def test_a_folder_that_is_not_there(tmp_path, config):
    refused(r"^actor\.model\.model_path: .* at '/nowhere', found none", config(model_path="/nowhere"))
    refused(r"^actor\.model\.model_path: .*found a folder without config\.json", config(model_path=str(tmp_path)))
    config(preset="tiny").check("actor.model")
    config(preset="tiny").check_statistics("actor.model", 2)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (OpenVLAPolicyConfig, "config.json: timm_model_ids"),
        (OpenVLAOFTPolicyConfig, "config.json: timm_model_ids"),
        (PI0PolicyConfig, "expected architecture, paligemma_variant or vlm_config"),
        (GR00TPolicyConfig, "expected a config.json with action_head_cfg"),
    ],
)
def test_a_folder_below_home_is_found(tmp_path, monkeypatch, config, found):
    """By `check` and by `build`, without a runner that has made the path whole."""
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path / "model", {})
    below = config(model_path="~/model")
    below.check("actor.model")
    seen = {
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "states": ArraySpec(shape=(3,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U8"),
    }
    spec = EnvSpec(
        observation=seen,
        action=ArraySpec(shape=(3,), dtype="float32"),
        max_episode_steps=1,
    )
    with pytest.raises(RLinfError, match=found):
        below.build(spec, seed=0)


@pytest.mark.parametrize("config", OPENVLA)
@pytest.mark.parametrize("file", ["config.json", "dataset_statistics.json"])
def test_openvla(tmp_path, config, file):
    both = {"bridge_orig": QUANTILES, "libero_spatial": QUANTILES}
    folder = written(tmp_path, {"norm_stats": both} if file == "config.json" else both, file)
    refused(
        r"^actor\.model\.unnorm_key: '.*': .* found 'libero_spatiel'\. There are bridge_orig, libero_spatial",
        config(model_path=folder, unnorm_key="libero_spatiel"),
    )
    refused(r"unnorm_key: .* found None\. There are bridge_orig, libero_spatial", config(model_path=folder))
    chosen = config(model_path=folder, unnorm_key="bridge_orig")
    chosen.check("actor.model")
    chosen.check_statistics("actor.model", 7)
    refused(r"unnorm_key: the statistics in .* are of 7 actions, and the environment takes 4", chosen, 4)


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        *((config, "unnorm_key", "libero_spatial") for config in OPENVLA),
        (PI0PolicyConfig, "asset_id", "libero"),
        (GR00TPolicyConfig, "action_keys", ("arm",)),
    ],
)
def test_what_of_a_folder_where_there_is_none(config, key, value):
    refused(rf"^actor\.model\.{key}: .* is of a folder, and none is read", config(preset="tiny", **{key: value}))
    config(preset="tiny", **{key: type(value)()}).check("actor.model")


@pytest.mark.parametrize(("config", "name"), zip(OPENVLA, ["openvla", "openvla_oft"], strict=True))
def test_openvla_without_any(tmp_path, config, name):
    bare = config(model_path=written(tmp_path, {"model_type": "openvla"}))
    bare.check("actor.model")
    refused(rf"^actor\.model\.model_path: .* has no statistics of actions .*norm_stats.*'{name}' acts.*apps/embodied/sft\.py", bare)


def test_gr00t(tmp_path):
    refused(
        r"^actor\.model\.embodiment_tag: .* of no robot \(experiment_cfg/metadata\.json is missing\), and none of 'so100'",
        GR00TPolicyConfig(model_path=written(tmp_path, {}), embodiment_tag="so100"),
    )
    parts = {"arm": {"min": [0.0] * 6, "max": [1.0] * 6}, "hand": {"min": [0.0], "max": [1.0]}}
    robot = {"statistics": {"state": parts, "action": parts}}
    folder = written(tmp_path, {"gr1": robot, "so100": robot}, "experiment_cfg/metadata.json")
    refused(r"embodiment_tag: .* of the robots gr1, so100, and none of 'new_embodiment'", GR00TPolicyConfig(model_path=folder))
    known = GR00TPolicyConfig(model_path=folder, embodiment_tag="so100")
    known.check_statistics("actor.model", 7)
    refused(r"embodiment_tag: the statistics of 'so100' .* of 7 actions, and the environment takes 2", known, 2)
    legs = GR00TPolicyConfig(model_path=folder, embodiment_tag="so100", action_keys=("leg",))
    refused(r"^actor\.model\.action_keys: .* \['leg'\], found \['arm', 'hand'\]", legs)


def test_openpi(tmp_path):
    folder = written(tmp_path, {"norm_stats": {"actions": NORMAL}}, "assets/droid/norm_stats.json")
    written(tmp_path, PI0)
    PI0PolicyConfig(model_path=folder).check_statistics("actor.model", 3)
    written(tmp_path, {"norm_stats": {"actions": NORMAL}}, "assets/lab/arm/norm_stats.json")
    refused(r"^actor\.model\.asset_id: .* has statistics of droid, lab/arm", PI0PolicyConfig(model_path=folder))
    refused(r"asset_id: .* assets/libero/.*There are", PI0PolicyConfig(model_path=folder, asset_id="libero"))
    chosen = PI0PolicyConfig(model_path=folder, asset_id="lab/arm")
    chosen.check("actor.model")
    written(tmp_path, PI0)
    for actions in (7, 2):
        refused(rf"model_path: .* are of 3 actions, and the environment has {actions}", chosen, actions)
    # As many as the model has room for are padded.
    written(tmp_path, {"norm_stats": {"actions": {"mean": [0.0] * 8, "std": [1.0] * 8}}}, "assets/lab/arm/norm_stats.json")
    written(tmp_path, PI0)
    chosen.check_statistics("actor.model", 2)


@pytest.mark.parametrize("config", [{"type": "act"}, {"model_type": "pi05"}])
def test_pi0_of_a_folder_of_another_model(tmp_path, config):
    folder = written(tmp_path, config)
    (kind,) = config.values()
    remedy = "Set model_type: pi05" if kind == "pi05" else "Name a folder of a 'pi0'"
    with pytest.raises(CheckpointError, match=rf"config\.json: expected a model of type 'pi0', found '{kind}'\. {remedy}"):
        PI0PolicyConfig(model_path=folder).check("actor.model")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: can't be read"):
        PI0PolicyConfig(model_path=folder).check("actor.model")


def test_pi0_without_any(tmp_path):
    bare = PI0PolicyConfig(model_path=written(tmp_path, {"type": "pi0"}))
    refused(r"^actor\.model\.model_path: .* has no statistics of actions .*LeRobot's normaliser", bare)
    arrays = {f"action.{name}": np.asarray(values, np.float32) for name, values in NORMAL.items()}
    save_file(arrays, tmp_path / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    written(tmp_path, PI0)
    bare.check_statistics("actor.model", 3)
