"""Runs scripts, each in a process of its own that has imported torch and what models are built of: most pages do little else.

Reads lines `["script", "folder"]` and answers each with the exit code; what a script says goes to `said` in its folder.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import traceback

import peft  # noqa: F401  # what a page imports of ours it imports itself, as its reader does
import torch  # noqa: F401
import transformers.modeling_utils  # noqa: F401

LONGEST_S = 280


def become(script: str, folder: str) -> None:
    """Makes this process what `python script` would be in a folder, but for the modules that are imported."""
    signal.alarm(LONGEST_S)
    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, target in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
        os.dup2(target, number)
    sys.argv, sys.path[0] = [script], os.path.dirname(script)
    code: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # told as Python tells it
        traceback.print_exc()
        code = 1
    end(code if isinstance(code, int) else int(code is not None))


def end(code: int) -> None:
    """Ends as a program does, but takes nothing apart of what was imported before, which is two seconds of work."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
