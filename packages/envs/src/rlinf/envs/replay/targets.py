"""What `rlinf replay` writes: a replay buffer, LeRobot, Minari or NumPy files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.core.replay import ReplayBuffer, available_memory, bytes_of_slot
from rlinf.core.replay.episodes import episode_rows
from rlinf.envs.recording.episode import Episode, Writer
from rlinf.envs.recording.lerobot import LeRobotWriter
from rlinf.envs.recording.plain import NumpyWriter
from rlinf.envs.replay.sources import TEXTS

Episodes = Callable[[], Iterable[OfflineEpisode]]
"""The same episodes each time it is called."""
_GIB: Final = 2**30


def write_target(kind: str, folder: Path, episodes: Episodes, spec: EnvSpec, *, fps: int) -> int:
    """Writes a dataset that appears as a whole or not at all; returns how many episodes it has.

    Args:
        kind: one of `TARGETS`.
        folder: where; made.
        episodes: what is written.
        spec: what each holds.
        fps: control steps a second, which LeRobot wants to know.

    Raises:
        ConfigError: there is something already, nothing is to be written, or the format can't hold it.
        MissingExtra: a package that the format needs is not installed.
    """
    if folder.exists():
        raise ConfigError("rlinf replay", f"'{folder}' is there already", "Name another folder.")
    if kind != "replay" and len(spec.action.shape) > 1:
        problem = f"decisions are chunks of {spec.action.shape[0]} steps, with one observation and one reward for all of them"
        raise ConfigError("--to", problem, "Only --to replay keeps decisions.")
    with _whole(folder) as part:
        written = TARGETS[kind](part, episodes, spec, fps)
        if not written:
            raise ConfigError("rlinf replay", "no episode passes", "Look at what there is: rlinf replay inspect.")
    return written


def _write_replay(folder: Path, episodes: Episodes, spec: EnvSpec, fps: int) -> int:
    """One ring that has a slot for each decision and each final observation."""
    chunked = len(spec.action.shape) > 1
    seen = {key: of for key, of in spec.observation.items() if key != TEXTS}
    slots, need = sum(len(episode) + 1 for episode in episodes()), bytes_of_slot(seen, spec.action)
    if slots * need > available_memory():
        problem = f"{slots:,} slots take {slots * need / _GIB:.1f} GiB, and {available_memory() / _GIB:.1f} GiB of memory are free"
        raise ConfigError("rlinf replay", problem, "Filter more, or take fewer sources.")
    buffer, written = ReplayBuffer(capacity=max(2, slots)), 0
    kept = replace(spec, observation=seen, action=replace(spec.action, low=None, high=None))
    for number, episode in enumerate(episodes()):
        # Numbered anew: each source counts from 0.
        row = episode_rows(replace(episode, number=number), kept)
        buffer.add(replace(row, action=row.action[:, :, 0]) if chunked else row, [0])
        written += 1
    folder.mkdir()
    buffer.save(folder)
    return written


def _write_recording(writer: Writer, episodes: Episodes) -> int:
    try:
        for episode in episodes():
            writer.write(Episode.of(episode))
    finally:
        writer.close()
    return writer.count


def _write_lerobot(folder: Path, episodes: Episodes, spec: EnvSpec, fps: int) -> int:
    # Images as PNG, so that what is read is what was seen.
    return _write_recording(LeRobotWriter(folder, fps=fps, finalize_interval=100, use_videos=False), episodes)


def _write_numpy(folder: Path, episodes: Episodes, spec: EnvSpec, fps: int) -> int:
    written = _write_recording(NumpyWriter(folder), episodes)
    (folder / ".lock").unlink(missing_ok=True)
    return written


def _write_minari(folder: Path, episodes: Episodes, spec: EnvSpec, fps: int) -> int:
    require_modules("minari", "h5py", place="--to", extra="rlinf-envs[minari]")
    from rlinf.envs.replay._minari import write_minari

    return write_minari(folder, episodes(), spec)


TARGETS: Final[Mapping[str, Callable[[Path, Episodes, EnvSpec, int], int]]] = {
    "replay": _write_replay,
    "lerobot": _write_lerobot,
    "minari": _write_minari,
    "numpy": _write_numpy,
}


@contextmanager
def _whole(folder: Path) -> Generator[Path]:
    """A folder to write to that gets its name when all is written."""
    # In the same folder, so that it can be renamed; what a killed run has left there is removed.
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
