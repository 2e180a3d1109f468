"""`rlinf replay`: what a run collected is looked at, put together, thinned out, and written in every format and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, Trajectory
from rlinf.core.data.offline import OfflineConfig
from rlinf.core.errors import ConfigError
from rlinf.core.replay import RecordedTransitions, ReplayBuffer
from rlinf.envs.offline import Replay
from rlinf.envs.replay.command import replay
from rlinf.envs.replay.sources import Source

LENGTHS = (3, 5, 2, 4)
"""Of the episodes of each producer; the last one is under way."""


def checkpoint(folder: Path, *, actors: int = 1, first: int = 0, chunk: int = 1, images: bool = False) -> Path:
    """A run's newest checkpoint with the buffer of each actor: two producers, whose rewards are 1, 2, 3 … in each episode."""
    for actor in range(actors):
        buffer = ReplayBuffer(capacity=60, producers=2, n_step=2, gamma=0.9)
        for number, steps in enumerate(LENGTHS):
            buffer.add(_rows(steps, first + 10 * actor + number, chunk, images, last=number == len(LENGTHS) - 1), [0, 1])
        own = folder / "checkpoints" / "global_step_20" / "actor" / f"replay_{actor}"
        own.mkdir(parents=True)
        buffer.save(own)
    return folder


def _rows(steps: int, number: int, chunk: int, images: bool, *, last: bool) -> Trajectory[Any]:
    seen = 1000 * np.arange(2)[:, None] + 20 * number + np.arange(steps + 1)
    ends = np.zeros((2, steps), bool)
    ends[:, -1] = not last
    observation: dict[str, Any] = {"states": np.stack([seen, -seen], -1).astype(np.float32)}
    if images:
        observation["main_images"] = np.random.default_rng(number).integers(0, 256, (2, steps + 1, 8, 8, 3), np.uint8)
    solved = ends & (np.arange(2)[:, None] == 0)
    return Trajectory.of(
        context={},
        action=np.repeat(seen[:, :steps, None, None] / 10, chunk, 2).astype(np.float32),
        logprob=np.zeros((2, steps), np.float32),
        reward=np.repeat(np.arange(1, steps + 1, dtype=np.float32)[None], 2, 0),
        terminated=solved,
        truncated=ends & ~solved,
        episode=np.full(2, number),
        observation=observation,
    )


def told(dataset: OfflineConfig) -> list[Any]:
    """Each episode as numbers, in any order."""
    return sorted(
        (
            episode.observation["states"].tolist(),
            episode.action.round(4).tolist(),
            episode.reward.tolist(),
            episode.terminated.tolist(),
            episode.truncated.tolist(),
        )
        for episode in dataset.open().episodes()
    )


def test_it_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(["inspect", str(checkpoint(tmp_path / "run", actors=2))]) == 0
    said = capsys.readouterr().out
    for line in (
        "2 producers with 30 slots each",
        "28 transitions ever added; n_step 2, gamma 0.9, uniform",
        "states               float32 [2]",
        "action               float32 [1]",
        "56 transitions in 16 episodes, 12 of them whole (0 may lack their beginning, 4 were under way or given up)",
        "return               mean 8, least 3, greatest 15",
        "steps                mean 3.333, least 2, greatest 5",
    ):
        assert line in said


def test_a_ring_that_turned_over_may_lack_a_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = ReplayBuffer(capacity=7)
    for number in range(3):
        buffer.add(_rows(4, number, 1, False, last=False).rows(slice(0, 1)), [0])
    buffer.save(tmp_path)
    assert replay(["inspect", str(tmp_path)]) == 0
    # Seven slots: the last five are an episode of four steps, and two are the end of the one before, one step.
    assert "5 transitions in 2 episodes, 1 of them whole (1 may lack their beginning" in capsys.readouterr().out


@pytest.mark.parametrize("chunk", [1, 4])
def test_several_become_one(tmp_path: Path, chunk: int, capsys: pytest.CaptureFixture[str]) -> None:
    one = checkpoint(tmp_path / "one", actors=2, chunk=chunk)
    other = checkpoint(tmp_path / "other", first=100, chunk=chunk)
    assert replay(["merge", str(one), str(other), str(tmp_path / "all")]) == 0
    assert "24 of 24 episodes as replay" in capsys.readouterr().out
    merged = Replay(path=str(tmp_path / "all"))
    assert told(merged) == sorted(told(Replay(path=str(one))) + told(Replay(path=str(other))))
    assert merged.open().spec.action == ArraySpec(shape=(4, 1) if chunk == 4 else (1,), dtype="float32")
    with pytest.raises(ConfigError, match="is there already"):
        replay(["merge", str(one), str(tmp_path / "all")])


def test_episodes_are_left_out_by_return_and_success(tmp_path: Path) -> None:
    run = checkpoint(tmp_path / "run")
    assert replay(["filter", str(run), str(tmp_path / "good"), "--min-return", "10"]) == 0
    assert sorted({sum(each[2]) for each in told(Replay(path=str(tmp_path / "good")))}) == [10, 15]
    with pytest.raises(ConfigError, match="does not record success"):
        replay(["filter", str(run), str(tmp_path / "none"), "--only-success"])
    with pytest.raises(ConfigError, match="no episode passes"):
        replay(["filter", str(run), str(tmp_path / "none"), "--min-return", "1e9"])
    with pytest.raises(ConfigError, match=r"^rlinf replay filter: nothing says which episodes are left out\. Set --min-return"):
        replay(["filter", str(run), str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"^rlinf replay: expected a replay buffer at .*none"):
        replay(["inspect", str(tmp_path / "none")])


@pytest.mark.parametrize(("kind", "passes"), [("replay", 2), ("numpy", 1)])
def test_nothing_is_read_only_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, passes: int
) -> None:
    run, read, own = checkpoint(tmp_path / "run"), list[Source](), Source.episodes
    monkeypatch.setattr(Source, "episodes", lambda self: own(read.append(self) or self))
    assert replay(["filter", str(run), str(tmp_path / "good"), "--min-return", "10", "--to", kind]) == 0
    assert len(read) == passes
    assert re.search(rf" [1-7] of 8 episodes as {kind}\n", capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["numpy", "minari", "lerobot"])
def test_it_goes_to_another_format_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pytest.importorskip({"numpy": "numpy", "minari": "minari", "lerobot": "pyarrow"}[kind])
    monkeypatch.chdir(tmp_path)
    run, there, back = checkpoint(tmp_path / "run", images=True), Path("there"), Path("back")
    assert replay(["convert", str(run), str(there), "--to", kind]) == 0
    assert replay(["convert", str(there), str(back), "--to", "replay"]) == 0
    before, after = told(Replay(path=str(run))), told(Replay(path=str(back)))
    if kind == "lerobot":
        # It keeps no final observation: the last step of an episode that was cut has no successor, and is left out.
        for (states, action, reward, terminated, _), found in zip(before, after, strict=True):
            steps = len(reward) - (not any(terminated))
            assert found[1:4] == (action[:steps], reward[:steps], terminated[:steps])
            known = steps + (not any(terminated))
            assert found[0][:known] == states[:known]
            assert any(found[4]) == (not any(terminated))
    else:
        assert after == before
    if kind != "lerobot":
        images = [
            np.concatenate([each.observation["main_images"] for each in Replay(path=str(path)).open().episodes()])
            for path in (run, back)
        ]
        np.testing.assert_array_equal(*images)


def test_chunks_stay_in_a_replay_buffer(tmp_path: Path) -> None:
    run = checkpoint(tmp_path / "run", chunk=4)
    with pytest.raises(ConfigError, match=r"chunks of 4 steps.*Only --to replay"):
        replay(["convert", str(run), str(tmp_path / "no"), "--to", "numpy"])


def test_damage_is_named_and_skipped_only_if_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpoint(tmp_path / "run", actors=2)
    file = run / "checkpoints" / "global_step_20" / "actor" / "replay_0" / "reward.0000.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for action in (["inspect", str(run)], ["merge", str(run), str(tmp_path / "all")]):
        with pytest.raises(ConfigError, match=r"reward\.0000\.npy: .*damaged.*skip_damaged"):
            replay(action)
    assert not (tmp_path / "all").exists()
    assert replay(["merge", str(run), str(tmp_path / "all"), "--skip-damaged"]) == 1
    said = capsys.readouterr()
    assert said.err.count("skipped: ") == 1
    assert "reward.0000.npy" in said.err
    assert "8 of 8 episodes as replay" in said.out


def test_what_differs_is_not_put_together(tmp_path: Path) -> None:
    one, other = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "other", images=True)
    with pytest.raises(ConfigError, match=r"what is seen is \['states'\] in .*main_images"):
        replay(["merge", str(one), str(other), str(tmp_path / "all")])
    with pytest.raises(ConfigError, match="there is no folder"):
        replay(["inspect", str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="expected a replay buffer at"):
        replay(["inspect", str(tmp_path)])


def test_a_buffer_is_a_dataset_that_runs_learn_from(tmp_path: Path) -> None:
    config = Replay(path=str(checkpoint(tmp_path / "run")), episodes=3)
    config.check("algorithm.demo_buffer")
    source = config.open()
    assert (len(source), source.features, source.lacks) == (3, ("states",), ())
    assert list(source.episode_lengths()) == list(LENGTHS[:3])
    recorded = RecordedTransitions(source.episodes(), source.spec)
    assert len(recorded) == sum(LENGTHS[:3])
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer\.path: expected a replay buffer"):
        Replay(path=str(tmp_path / "nothing")).check("algorithm.demo_buffer")
