"""A tool that says in which process it runs, so that a test can end that in the middle of a call."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlinf.core.agents import Tool


@dataclass(frozen=True)
class Telling:
    """Says it twice, and takes its time; as long as there is a file `<folder>.hold`, which a test makes before it looks."""

    folder: str
    name: str = "t"

    def check(self, place: str) -> None: ...

    def build(self) -> Tool:
        def tell(x: str) -> str:
            """Says it twice."""
            mark = Path(self.folder) / str(os.getpid())
            mark.touch()
            time.sleep(0.05)
            while Path(f"{self.folder}.hold").exists():
                mark.touch()  # again: the test may have removed one that was made before it held calls
                time.sleep(0.05)
            return f"{x}{x}"[:6]

        return Tool.of(tell, name=self.name)


@dataclass(frozen=True)
class Deadly:
    """Ends the process in which it runs."""

    name: str = "t"

    def check(self, place: str) -> None: ...

    def build(self) -> Tool:
        def end(x: str) -> str:
            """Ends its process."""
            time.sleep(0.3)
            os._exit(3)

        return Tool.of(end, name=self.name)
