"""`rlinf report`: what a run did, as one HTML file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.errors import ConfigError
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reporting.report.page import write_page


def report(args: Sequence[str]) -> int:
    """Writes what runs did as one HTML file: `rlinf report RUN [RUN …] [--out FILE]`.

    It holds results, curves, times, films or transcripts, and configuration. Each RUN is the folder of a run, which may still
    go on; several are drawn in the same pictures. Without `--out` the file is `report.html` in the folder of a single run, or in
    the current folder.
    """
    parser = ArgumentParser(prog="rlinf report", description=report.__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the folder of a single run)")
    given = parser.parse_intermixed_args(list(args))
    runs: list[Path] = given.runs
    target = given.out or RunFolder(runs[0] if len(runs) == 1 else Path()).report
    try:
        sys.stdout.write(f"{write_page(runs, target)}\n")
    except OSError as error:
        raise ConfigError(
            "rlinf report --out", f"can't write '{target}' ({error.strerror})", "Name a file that you may write."
        ) from error
    return 0
