"""`rlinf report`: what a run did, as one HTML file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.errors import ConfigError
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reporting.report.page import write_page

USAGE = "rlinf report RUN [RUN …] [--out report.html]"


def report(args: Sequence[str]) -> int:
    """Writes what runs did as one HTML file: `rlinf report RUN [RUN …] [--out FILE]`.

    It holds results, curves, times, films or transcripts, and configuration. Each RUN is the folder of a run, which may still
    go on; several are drawn in the same pictures. Without `--out` the file is `report.html` in the folder of a single run, or in
    the current folder.
    """
    arguments, out = list(args), None
    if "--out" in arguments:
        at = arguments.index("--out")
        if at + 1 == len(arguments):
            raise ConfigError("rlinf report --out", "a file is missing", USAGE)
        out = Path(arguments.pop(at + 1))
        arguments.pop(at)
    unknown = [each for each in arguments if each.startswith("-")]
    if unknown or not arguments:
        raise ConfigError("rlinf report", f"unknown option '{unknown[0]}'" if unknown else "a run is missing", USAGE)
    runs = [Path(each) for each in arguments]
    target = out or RunFolder(runs[0] if len(runs) == 1 else Path()).report
    try:
        sys.stdout.write(f"{write_page(runs, target)}\n")
    except OSError as error:
        raise ConfigError(
            "rlinf report --out", f"can't write '{target}' ({error.strerror})", "Name a file that you may write."
        ) from error
    return 0
