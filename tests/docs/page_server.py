"""Runs scripts, each in a process of its own that has imported torch already: for most pages that import is most of their work.

Reads lines `["script", "folder"]` and answers each with the exit code; what a script says goes to `said` in its folder.
"""

import json
import os
import runpy
import signal
import sys

import torch  # noqa: F401  # what a page imports of ours it imports itself, as its reader does
import transformers  # noqa: F401

LONGEST_S = 280


def become(script: str, folder: str) -> None:
    """Makes this process what `python script` would be in a folder, but for the modules that are imported."""
    signal.alarm(LONGEST_S)
    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, target in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
        os.dup2(target, number)
    sys.argv, sys.path[0] = [script], os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(*json.loads(line))
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
