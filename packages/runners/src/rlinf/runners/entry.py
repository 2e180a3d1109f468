"""The edge of a program: errors become one screen and an exit code, Ctrl-C becomes a clean stop."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback as tb
from collections.abc import Callable, Sequence
from types import FrameType

from rlinf.core.errors import RefusedByWorker, RLinfError, WorkerError, error_text
from rlinf.core.installing import import_from_here
from rlinf.runners.bytecode import keep_bytecode
from rlinf.runners.config.compat import VARIABLES

INTERRUPTED = 130
_SPINS = "10000"
"""How often a thread of libgomp, which torch computes with, looks for the others before it sleeps, a tenth of a millisecond in all.

By itself it looks 300,000 times. On a machine whose cores other programs use, too, it then holds a core that the thread needs for
which it waits: training in the default recipe took 20 to 45 times as long at load 4. On idle cores this costs a tenth of it.
"""


def run_app(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> None:
    """Runs an app's `main` on the arguments of this process, or those of `argv`, and exits with its code.

    An error of ours is shown without our traceback, and a worker's with the frames of its own code only, unless `--traceback` or
    `RLINF_TRACEBACK=1` asks for all of both. Modules of the current folder can be imported, as with `python -m`. SIGINT and SIGTERM
    stop the run in order; while it stops, further ones are ignored. Threads of torch soon sleep where they wait for each other
    (`GOMP_SPINCOUNT`, unless it or `OMP_WAIT_POLICY` is set): libgomp reads that when torch is first imported. Where
    `PYTHONDONTWRITEBYTECODE` is set, compiled code is kept in a cache folder of the user's.
    """
    keep_bytecode()
    import_from_here()
    for name in sorted(VARIABLES.keys() & os.environ.keys()):
        sys.stderr.write(f"{name} is set, and has no effect: {VARIABLES[name]}.\n")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        code = main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted: everything that this run started has been stopped.\n")
        code = INTERRUPTED
    except RLinfError as error:
        sys.stderr.write(f"\n{describe(error)}\n")
        code = error.exit_code
    except OSError as error:
        # Of all that a system refuses, a full disk is no fault of the program, whichever file it meets.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.stderr.write(f"\n{describe(_full(error))}\n")
        code = RLinfError.exit_code
    sys.stdout.flush()
    sys.exit(code)


def describe(error: RLinfError) -> str:
    """One screen about an error: what failed first, the worker's own part of its traceback, and what followed from it.

    Of a value that a worker refuses, its place and the way out are all that is needed.
    """
    notes: Sequence[str] = getattr(error, "__notes__", ())
    if isinstance(error, RefusedByWorker):
        lines = [f"{error.problem} (Found by {error.group}[{error.rank}] in {error.method}.)"]
    else:
        lines = [error_text(error), *notes]
    # Not the parsed arguments, as an error may come before they are read.
    if "--traceback" in sys.argv or os.environ.get("RLINF_TRACEBACK") == "1":
        if isinstance(error, WorkerError) and error.remote_traceback:
            lines += ["", f"All frames of {error.group}[{error.rank}]:", error.remote_traceback.rstrip()]
        lines += ["", *tb.format_exception(error)]
    return "\n".join(lines)


def _full(error: OSError) -> RLinfError:
    told = RLinfError(str(error.filename or "disk"), f"can't be written ({error.strerror})", "Make room.")
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
