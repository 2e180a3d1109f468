import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.models.normalization import Normalizer
from rlinf.models.statistics import RunningStatistics, compute_statistics, read_statistics, write_statistics

STATS = {"mean": [0.5, 1.0], "std": [0.1, 0.2], "min": [-1.0, -2.0], "max": [1.0, 2.0], "q01": [-0.9, -1.9], "q99": [0.9, 1.9]}


def test_computed_by_hand():
    found = compute_statistics([[1.0, 0.0], [3.0, 0.0]])
    expected = {"mean": [2, 0], "std": [1, 0], "min": [1, 0], "max": [3, 0], "q01": [1.02, 0], "q99": [2.98, 0]}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-12)
    assert found["count"] == 2


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 99))
def test_shards_merge_to_the_whole(sizes, seed):
    rng = np.random.default_rng(seed)
    shards = [rng.normal(5.0, 3.0, size=(size, 2)) for size in sizes]
    if not sum(sizes):
        return
    whole = RunningStatistics(2)
    for i, rows in enumerate(shards):
        one = RunningStatistics(2, seed=i)
        one.update(rows)
        whole.merge(one)
    expected = compute_statistics(np.concatenate(shards))
    for name, values in whole.statistics().items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-9)


def test_many_vectors_are_sampled():
    rng = np.random.default_rng(0)
    parts = [RunningStatistics(1, keep=2000, seed=i) for i in range(4)]
    rows = [rng.random((5000, 1)) + i for i in range(4)]
    for part, data in zip(parts, rows, strict=True):
        for piece in np.array_split(data, 7):
            part.update(piece)
    for part in parts[1:]:
        parts[0].merge(part)
    found, exact = parts[0].statistics(), compute_statistics(np.concatenate(rows))
    np.testing.assert_allclose(found["mean"], exact["mean"])
    np.testing.assert_allclose(found["std"], exact["std"])
    # Three standard errors of the rank, √(0.01 · 0.99 / 2000), over a density of ¼.
    np.testing.assert_allclose(found["q01"], exact["q01"], atol=4 * 3 * 0.0022)
    np.testing.assert_allclose(found["q99"], exact["q99"], atol=4 * 3 * 0.0022)
    assert len(parts[0]._sample) == 2000


def test_wrong_vectors():
    running = RunningStatistics(2)
    with pytest.raises(ConfigError, match="expected at least one vector"):
        running.statistics()
    with pytest.raises(ShapeError, match=r"expected \[\*, 2\], found \[3\]"):
        running.update([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="finite"):
        running.update([[1.0, np.inf]])
    with pytest.raises(ShapeError):
        running.merge(RunningStatistics(3))
    assert running.count == 0


def test_ours(tmp_path):
    write_statistics(tmp_path / "statistics.json", {"action": {**STATS, "mask": np.array([True, False])}})
    found = read_statistics(tmp_path)
    assert found["action"]["mask"].tolist() == [True, False]
    normalizer = Normalizer(2, "quantile")
    normalizer.set_statistics(found["action"])
    torch.testing.assert_close(normalizer.unnormalize(torch.ones(2)), torch.tensor([0.9, 1.0]))


def layouts():
    dataset = {"action": {**STATS, "mask": [True, False]}, "proprio": STATS, "num_transitions": 7, "num_trajectories": 2}
    image = {"mean": [[[0.5]]], "std": [[[0.2]]], "min": [[[0.0]]], "max": [[[1.0]]], "count": [9]}
    parts = {"arm": STATS, "hand": STATS}
    yield "openvla", "config.json", {"model_type": "openvla", "n_action_bins": 256, "norm_stats": {"bridge": dataset}}
    yield "openvla-oft", "dataset_statistics.json", {"libero": dataset}
    yield "openpi", "assets/droid/norm_stats.json", {"norm_stats": {"state": STATS, "actions": STATS}}
    yield (
        "lerobot",
        "meta/stats.json",
        {"observation.state": {**STATS, "count": [9]}, "action": STATS, "observation.images.top": image},
    )
    yield (
        "groot",
        "experiment_cfg/metadata.json",
        {"gr1": {"embodiment_tag": "gr1", "modalities": {"video": {}}, "statistics": {"state": parts, "action": parts}}},
    )


@pytest.mark.parametrize(("project", "name", "content"), list(layouts()), ids=lambda v: v if isinstance(v, str) else "")
def test_public_layouts(project, name, content, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    found = read_statistics(tmp_path)
    assert found.keys() == read_statistics(file).keys()
    if project == "groot":
        assert found.keys() == {"state.arm", "state.hand", "action.arm", "action.hand"}
        assert found["action.hand"]["q99"].tolist() == [0.9, 1.9]
        found = {"state": found["state.arm"], "action": found["action.arm"]}
    for quantity in ("state", "action"):
        assert found[quantity]["q01"].tolist()[:2] == [-0.9, -1.9]
    if project == "lerobot":
        assert found["observation.images.top"]["mean"].shape == (1, 1, 1)
    if project == "openvla":
        assert found["action"]["mask"].tolist() == [True, False]


def test_the_normaliser_that_lerobot_saved():
    """Written by lerobot 0.6.1 itself; see make_lerobot_processor.py."""
    found = read_statistics(Path(__file__).parent / "lerobot")
    assert found.keys() == {"state", "action"}
    assert found["state"]["mean"].tolist() == [0.5, 1.5]
    assert found["action"]["std"].tolist() == [2.0, 3.0, 4.0]
    assert found["action"]["max"].tolist() == [4.0, 5.0, 6.0]


def test_a_normaliser_of_any_float(tmp_path):
    save_file(
        {"action.mean": torch.ones(2, dtype=torch.bfloat16)},
        tmp_path / "policy_preprocessor_step_5_normalizer_processor.safetensors",
    )
    assert read_statistics(tmp_path)["action"]["mean"].tolist() == [1.0, 1.0]


def test_one_of_several_datasets_must_be_named(tmp_path):
    file = tmp_path / "dataset_statistics.json"
    file.write_text(
        json.dumps({"bridge": {"action": STATS}, "fractal": {"action": {**STATS, "mean": [7.0, 7.0]}}}), encoding="utf-8"
    )
    assert read_statistics(file, dataset="fractal")["action"]["mean"].tolist() == [7.0, 7.0]
    with pytest.raises(ConfigError, match=r"found None.*There are: bridge, fractal"):
        read_statistics(file)
    with pytest.raises(ConfigError, match="Did you mean 'bridge'"):
        read_statistics(file, dataset="brige")


def test_damaged_files(tmp_path):
    file = tmp_path / "statistics.json"
    with pytest.raises(CheckpointError, match="no statistics there"):
        read_statistics(tmp_path)
    for text, message in (
        ("{", "can't be read"),
        ("[1, 2]", "no statistics there that are known"),
        ('{"a": 1}', "no statistics there that are known"),
        ('{"action": {"mean": [1.0, 2.0], "std": [1.0]}}', "action: expected one size"),
        ('{"action": {"mean": [NaN], "std": [1.0]}}', r"action\.mean: expected finite numbers"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match=message):
            read_statistics(tmp_path)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="can't be read"):
        read_statistics(broken)
