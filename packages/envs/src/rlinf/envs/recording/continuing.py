"""A collection that goes on where it was interrupted: which episodes a folder holds, by the seeds of their resets.

.collection.jsonl     the settings of the collection
                      a line for each episode, in the order in which they are written
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rlinf.core.errors import ConfigError
from rlinf.envs.recording.episode import Episode, Writer
from rlinf.envs.recording.files import JOURNAL, replaced

_REMEDY = "Name another folder."


class Continued:
    """Writes episodes, and beside them what a later collection must know to go on with them.

    The line of an episode is written before the episode itself, and a writer that dies loses its last episodes and no others. So
    the first lines, as many as there are episodes, are theirs, and what the lines behind them stand for is played again.

    Args:
        writer: of a folder; closed if its episodes can't be gone on with.
        folder: the same.
        settings: all that decides what an episode is, as plain values.
        resume: goes on with the episodes in the folder, if there are any.

    Raises:
        ConfigError: they were collected with other settings, or not by this class.
    """

    def __init__(self, writer: Writer, folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self._writer, self._path = writer, folder / JOURNAL
        try:
            lines = self._known(settings) if resume and writer.count else []
            self.done = frozenset(lines)
            """The seeds of the episodes in the folder."""
            with replaced(self._path) as part:
                part.write_text("".join(f"{json.dumps(line)}\n" for line in (dict(settings), *lines)), encoding="utf-8")
        except BaseException:
            writer.close()
            raise
        # Open for the whole collection: an episode more costs a write.
        self._journal = self._path.open("a", encoding="utf-8")

    @property
    def count(self) -> int:
        return self._writer.count

    def write(self, episode: Episode) -> None:
        """Adds an episode, whose seed is known."""
        self._journal.write(f"{episode.seed}\n")
        self._journal.flush()
        self._writer.write(episode)

    def close(self) -> None:
        """Completes what was written; a second call does nothing."""
        self._journal.close()
        if not self._writer.count:
            # A folder without episodes is gone with its lock.
            self._path.unlink(missing_ok=True)
        self._writer.close()

    def _known(self, settings: Mapping[str, Any]) -> list[int]:
        """The seeds of the episodes that are there."""
        place, count = str(self._path.parent), self._writer.count
        if not self._path.is_file():
            raise ConfigError(place, f"holds {count} episodes, of which nothing says how they were collected", _REMEDY)
        found, *seeds = self._read()
        before = cast("Mapping[str, Any]", found)
        other = [name for name in dict.fromkeys([*before, *settings]) if before.get(name) != settings.get(name)]
        if other:
            told = ", ".join(f"{name} {before.get(name)!r:.60} (now {settings.get(name)!r:.60})" for name in other)
            raise ConfigError(place, f"its episodes were collected with {told}", "Say the same, or name another folder.")
        if len(seeds) < count:
            raise ConfigError(place, f"holds {count} episodes, of which {len(seeds)} are of this collection", _REMEDY)
        return cast("list[int]", seeds[:count])

    def _read(self) -> Iterator[object]:
        """The settings, then the seeds; the process may have died within a line, which ends the file."""
        for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
