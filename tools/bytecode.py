"""What Python has compiled in one environment serves others that uv has linked the same sources to: torch alone takes 4 CPU-s."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def share_bytecode(environment: Path, others: Iterable[Path]) -> None:
    """Links what is compiled in other environments into one, where both have the same file as the source."""
    ours = next(environment.glob("lib/python*/site-packages"), None)
    if ours is None:  # not made yet
        return
    for theirs in {other / ours.relative_to(environment) for other in others} - {ours}:
        for folder, below, files in os.walk(theirs):
            mine = ours / Path(folder).relative_to(theirs)
            if mine.name != "__pycache__":
                below[:] = [name for name in below if name == "__pycache__" or (mine / name).is_dir()]
                continue
            for name in set(files).difference(os.listdir(mine) if mine.is_dir() else ()):
                compiled, source = Path(folder) / name, f"{name.split('.')[0]}.py"
                sources = compiled.parents[1] / source, mine.parent / source
                if all(map(Path.is_file, sources)) and sources[0].samefile(sources[1]):
                    mine.mkdir(exist_ok=True)
                    (mine / name).hardlink_to(compiled)
