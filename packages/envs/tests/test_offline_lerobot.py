"""LeRobot datasets read back: what `LeRobotWriter` wrote, and what others write differently."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.envs.offline import LeRobot, transitions
from rlinf.envs.recording import Episode, LeRobotWriter

pa = pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the extra rlinf-envs[recording] is not installed")
pytest.importorskip("imageio_ffmpeg", reason="the extra rlinf-envs[video] is not installed")


def an_episode(length, seed, task="stack them", solved=True):
    """Each frame has a grey of its own, which a video keeps."""
    rng = np.random.default_rng(seed)
    last = np.arange(length) == length - 1
    level = (20 + 10 * ((seed + np.arange(length + 1)) % 20)).astype(np.uint8)
    images = np.broadcast_to(level[:, None, None, None], (length + 1, 16, 24, 3)).copy()
    return Episode(
        observations={
            "states": rng.normal(size=(length + 1, 2)).astype(np.float32),
            "main_images": images,
            "extra_view_images": np.stack([255 - images, images // 2], axis=1),
            "force": rng.normal(size=(length + 1, 1)).astype(np.float32),
        },
        actions=rng.normal(size=(length, 4)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminated=last & solved,
        truncated=last & (not solved),
        success=last & solved,
        task=task,
        seed=seed,
    )


EPISODES = [an_episode(3, 5), an_episode(5, 6, "open it", solved=False), an_episode(1, 7), an_episode(2, 8)]


def record(folder, episodes=EPISODES, **settings):
    writer = LeRobotWriter(folder, fps=10, finalize_interval=3, **settings)
    for episode in episodes:
        writer.write(episode)
    writer.close()
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["png", "video"])
def recorded(request, tmp_path_factory):
    return record(tmp_path_factory.mktemp("lerobot"), use_videos=request.param), 2 if request.param else 0


def test_what_was_written_is_read(recorded):
    folder, error = recorded
    source = LeRobot(path=str(folder)).open()
    assert len(source) == 4
    for number, (found, wanted) in enumerate(zip(source.episodes(), EPISODES, strict=True)):
        assert (found.number, found.task, len(found)) == (number, wanted.task, len(wanted))
        assert set(found.observation) == set(wanted.observations)
        for key, array in wanted.observations.items():
            seen = found.observation[key]
            assert (seen.shape, seen.dtype) == (array[:-1].shape, array.dtype)
            assert np.abs(seen.astype(np.float64) - array[:-1]).max() <= (error if array.dtype == np.uint8 else 0)
        np.testing.assert_array_equal(found.action, wanted.actions)
        np.testing.assert_array_equal(found.reward, wanted.rewards)
        assert (found.terminated == wanted.terminated).all()
        assert (found.truncated == wanted.truncated).all()


def test_it_is_described_as_an_environment(recorded):
    spec = LeRobot(path=str(recorded[0])).open().spec
    shapes = {key: (leaf.shape, leaf.dtype) for key, leaf in spec.observation.items()}
    assert shapes == {
        "main_images": ((16, 24, 3), "uint8"),
        "extra_view_images": ((2, 16, 24, 3), "uint8"),
        "states": ((2,), "float32"),
        "force": ((1,), "float32"),
        "task_descriptions": ((), "<U10"),
    }
    assert (spec.action.shape, spec.max_episode_steps) == ((4,), 5)
    actions = np.concatenate([episode.actions for episode in EPISODES])
    np.testing.assert_allclose(spec.action.low, actions.min(0), rtol=1e-6)
    np.testing.assert_allclose(spec.action.high, actions.max(0), rtol=1e-6)


def test_a_solved_episode_that_a_limit_cut_was_not_ended_by_the_task(tmp_path):
    """As with `ignore_terminations`: solved from step 2 on, and another one in its last step."""
    cut = [an_episode(4, seed, solved=False) for seed in (1, 2, 3)]
    success = [[False, False, True, True], [False, False, False, True], [False] * 4]
    cut = [dataclasses.replace(each, success=np.array(solved)) for each, solved in zip(cut, success, strict=True)]
    folder = record(tmp_path, [*cut, an_episode(4, 4)], use_videos=False)

    def ends():
        episodes = list(LeRobot(path=str(folder)).open().episodes())
        assert [each.success.tolist() for each in episodes[:3]] == success
        assert all((each.terminated ^ each.truncated).tolist() == [False, False, False, True] for each in episodes)
        return [bool(each.terminated[-1]) for each in episodes]

    assert ends() == [False, False, False, True]
    for path in (folder / "data").glob("*/*.parquet"):
        parquet.write_table(parquet.read_table(path).drop_columns(["next.truncated"]), path)
    about = json.loads((folder / "meta/info.json").read_text())
    del about["features"]["next.truncated"]
    (folder / "meta/info.json").write_text(json.dumps(about))
    # Others don't tell: success in the last step seems to end an episode, but not one that went on after it.
    assert ends() == [False, True, False, True]


def test_some_episodes_and_keys_of_ones_own(recorded):
    keys = {"states": "observation.force", "wrist_images": ("observation.images.extra_1",)}
    source = LeRobot(path=str(recorded[0]), episodes=2, keys=keys).open()
    first, second = source.episodes()
    assert (len(source), len(first), len(second), sum(source.episode_lengths())) == (2, 3, 5, 8)
    np.testing.assert_array_equal(first.observation["states"], EPISODES[0].observations["force"][:-1])
    assert first.observation["wrist_images"].shape == (3, 1, 16, 24, 3)


def test_one_extra_view_has_the_axis_of_views(recorded):
    named = LeRobot(path=str(recorded[0]), keys={"extra_view_images": "observation.images.main"}).open()
    assert named.spec.observation["extra_view_images"].shape == (1, 16, 24, 3)
    assert next(iter(named.episodes())).observation["extra_view_images"].shape == (3, 1, 16, 24, 3)


def test_several_datasets_of_a_folder_follow_each_other(tmp_path):
    for rank in range(2):
        record(tmp_path / f"rank_{rank}", EPISODES[2 * rank : 2 * rank + 2], use_videos=False)
    found = list(LeRobot(path=str(tmp_path), episodes=3).open().episodes())
    assert [(episode.number, len(episode)) for episode in found] == [(0, 3), (1, 5), (2, 1)]
    np.testing.assert_array_equal(found[2].action, EPISODES[2].actions)


def test_a_mixture_with_a_part_that_would_be_left_out_or_of_other_steps_is_refused(tmp_path):
    record(tmp_path / "a", EPISODES[:1], use_videos=False)
    record(tmp_path / "b", EPISODES[1:2], use_videos=False)
    info = tmp_path / "b/meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "fps": 20}))
    with pytest.raises(ConfigError, match=r"a step of '.*b' takes 1/20 s, and one of '.*a' 1/10 s \(fps\)"):
        LeRobot(path=str(tmp_path)).open()
    (tmp_path / "b").rename(tmp_path.parent / "elsewhere")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/episode_000000.npz").touch()
    with pytest.raises(ConfigError, match=r"the episodes in '.*c' are in no LeRobot dataset, unlike those in '.*a' beside it"):
        LeRobot(path=str(tmp_path)).open()


def test_frames_come_in_the_order_of_their_index_and_lists_of_any_kind(tmp_path):
    """As others write: rows in any order, lists of variable length, statistics and outcomes left out."""
    folder = record(tmp_path, use_videos=False)
    for path in (folder / "data").glob("*/*.parquet"):
        table = parquet.read_table(path).drop_columns(["next.reward", "next.done", "next.truncated", "next.success"])
        rows = list(reversed(table.to_pylist()))
        fixed = pa.types.is_fixed_size_list
        schema = pa.schema([pa.field(f.name, pa.list_(pa.float32())) if fixed(f.type) else f for f in table.schema])
        parquet.write_table(pa.Table.from_pylist(rows, schema), path)
    about = json.loads((folder / "meta/info.json").read_text())
    for name in ("next.reward", "next.done", "next.truncated", "next.success"):
        del about["features"][name]
    (folder / "meta/info.json").write_text(json.dumps(about))
    (folder / "meta/stats.json").unlink()
    source = LeRobot(path=str(folder)).open()
    assert (source.spec.action.low, source.spec.action.high) == (None, None)
    for found, wanted in zip(source.episodes(), EPISODES, strict=True):
        np.testing.assert_array_equal(found.action, wanted.actions)
        np.testing.assert_array_equal(found.observation["main_images"], wanted.observations["main_images"][:-1])
        assert found.truncated.tolist() == [False] * (len(wanted) - 1) + [True]
        assert not found.reward.any()


def test_actions_go_backwards_through_the_format_of_the_policy(recorded):
    forward = {"type": "unscale", "low": (0.0,) * 4, "high": (4.0,) * 4}
    source = LeRobot(path=str(recorded[0]), action_format=forward).open()
    # [0, 4] of the simulator is [−1, 1] of the policy.
    np.testing.assert_allclose(next(source.episodes()).action, EPISODES[0].actions / 2 - 1, rtol=1e-6)
    assert (source.spec.action.shape, source.spec.action.low) == ((4,), None)
    with pytest.raises(ConfigError, match="no action format named 'unscaled'"):
        LeRobot(path="x", action_format={"type": "unscaled"})


def test_what_is_no_dataset_is_refused(tmp_path, recorded):
    check = LeRobot.check
    with pytest.raises(ConfigError, match=r"data\.path: expected a LeRobot dataset at '.*nowhere', found no such folder"):
        check(LeRobot(path=str(tmp_path / "nowhere")), "data")
    unknown = r"data\.keys\.main_images: .* has no feature 'observation\.images\.man'.*observation\.images\.main"
    with pytest.raises(ConfigError, match=unknown):
        check(LeRobot(path=str(recorded[0]), keys={"main_images": "observation.images.man"}), "data")
    with pytest.raises(ConfigError, match=r"data\.action: .* has no feature 'actions'"):
        check(LeRobot(path=str(recorded[0]), action="actions"), "data")
    folder = record(tmp_path / "old", EPISODES[:1], use_videos=False)
    about = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**about, "codebase_version": "v2.1"}))
    with pytest.raises(ConfigError, match=r"data\.path: expected format v3 in '.*old', found v2\.1"):
        check(LeRobot(path=str(folder)), "data")
    (folder / "meta/info.json").write_text(json.dumps({**about, "total_episodes": 0}))
    with pytest.raises(ConfigError, match=r"data\.path: '.*old' has no episodes"):
        check(LeRobot(path=str(folder)), "data")
    with pytest.raises(ConfigError, match="episodes: expected at least 1"):
        LeRobot(path="x", episodes=0)


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _changed(folder, **about):
    file = folder / "meta/info.json"
    file.write_text(json.dumps({k: v for k, v in {**json.loads(file.read_text()), **about}.items() if v is not None}))


def _other(folder, columns):
    data = folder / "data/chunk-000/file-000.parquet"
    parquet.write_table(columns(parquet.read_table(data)), data)


DAMAGES = {
    "its data are gone": (
        lambda f: (f / "data/chunk-000/file-000.parquet").unlink(),
        r"has no file 'data/chunk-000/file-000\.parquet'",
    ),
    "its data are cut": (
        lambda f: _cut(f / "data/chunk-000/file-000.parquet"),
        r"'data/chunk-000/file-000\.parquet' .* can't be read",
    ),
    "rows are missing": (
        lambda f: _other(f, lambda t: t.slice(0, 7)),
        r"7 frames in 'data/chunk-000/file-000\.parquet' .* expected 9",
    ),
    "a column is missing": (
        lambda f: _other(f, lambda t: t.drop(["action"])),
        r"'data/chunk-000/file-000\.parquet' .* has no 'action'",
    ),
    "episodes are gone": (lambda f: (f / "meta/episodes/chunk-000/file-001.parquet").unlink(), "counts 4 episodes, found 3"),
    "frames are gone": (lambda f: _changed(f, total_frames=5000), r"counts 5000 frames, its episodes have \d+"),
    "no time passes": (lambda f: _changed(f, fps=0), r"expected fps above 0 in 'meta/info\.json' of .*, found 0"),
    "nothing describes it": (lambda f: _changed(f, features=None), r"'meta/info\.json' of .* has no 'features'"),
    "tasks are gone": (lambda f: (f / "meta/tasks.parquet").unlink(), r"has no file 'meta/tasks\.parquet'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_before_a_frame_is_read(tmp_path, damage):
    """Not by the worker that reads it, when all others have started."""
    folder = record(tmp_path / "data", use_videos=False)
    inflict, said = DAMAGES[damage]
    inflict(folder)
    with pytest.raises(ConfigError, match=rf"^data\.path: .*{said}.*Copy"):
        LeRobot(path=str(folder)).check("data")


def test_a_film_that_is_gone_is_found_before_a_frame_is_read(tmp_path):
    folder = record(tmp_path / "data", use_videos=True)
    (folder / "videos/observation.images.main/chunk-000/file-001.mp4").unlink()
    with pytest.raises(
        ConfigError, match=r"^data\.path: .* has no file 'videos/observation\.images\.main/chunk-000/file-001\.mp4'"
    ):
        LeRobot(path=str(folder)).check("data")
    LeRobot(path=str(folder), episodes=3).check("data")  # of a file that is not needed nothing is expected


MAIN = "videos/observation.images.main/chunk-000/file-000.mp4"


def _shorter(folder):
    """A whole film with fewer frames than its episodes."""
    other = record(folder.with_name("other"), EPISODES[2:], use_videos=True)
    (other / MAIN).replace(folder / MAIN)


FILMS = {
    "cut": (lambda f: _cut(f / MAIN), "can't be read \\(it "),
    "cut at its end": (lambda f: (f / MAIN).write_bytes((f / MAIN).read_bytes()[:-3]), "can't be read \\(it was cut"),
    "empty": (lambda f: (f / MAIN).write_bytes(b""), "can't be read \\(it is no MP4"),
    "something else": (lambda f: (f / MAIN).write_bytes(b"not a film at all"), "can't be read \\(it "),
    "too short": (_shorter, "expected 9"),
}


@pytest.mark.parametrize("damage", FILMS)
def test_a_film_that_is_cut_or_short_is_found_by_its_index(tmp_path, damage):
    folder = record(tmp_path / "data", use_videos=True)
    LeRobot(path=str(folder)).check("data")
    inflict, said = FILMS[damage]
    inflict(folder)
    with pytest.raises(ConfigError, match=rf"^data\.path: .*file-000\.mp4' of .*{said}"):
        LeRobot(path=str(folder)).check("data")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min": [0.0]}, r"min of 'action' in 'meta/stats\.json' of .* has the shape \[1\], the feature \[4\]"),
        ({"mean": [0.0]}, r"mean of 'action' in 'meta/stats\.json' of .* has the shape \[1\], the feature \[4\]"),
        ({"std": [1.0, -1.0, 1.0, 1.0]}, "'action' in .* has a min above its max, or an std below 0"),
        ({"min": [9.0] * 4, "max": [1.0] * 4}, "'action' in .* has a min above its max, or an std below 0"),
        ({"max": "many"}, "'action' in .* holds no numbers"),
        (None, r"'meta/stats\.json' of .* can't be read"),
    ],
)
def test_wrong_statistics_are_refused_and_missing_ones_are_not_needed(tmp_path, changes, said):
    folder = record(tmp_path / "data", EPISODES[:1], use_videos=False)
    file = folder / "meta/stats.json"
    found = json.loads(file.read_text())
    file.write_text("{" if changes is None else json.dumps({**found, "action": {**found["action"], **changes}}))
    with pytest.raises(ConfigError, match=rf"^data\.path: {said}"):
        LeRobot(path=str(folder)).check("data")
    file.unlink()
    LeRobot(path=str(folder)).check("data")


def test_there_are_no_transitions_without_what_was_seen_last(recorded):
    with pytest.raises(ShapeError, match="expected one observation more than actions, episode 0 has not"):
        transitions(LeRobot(path=str(recorded[0])).open().episodes())
