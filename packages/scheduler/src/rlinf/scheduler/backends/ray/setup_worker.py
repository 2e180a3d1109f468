"""Becomes a worker's process as Ray asks for it: the raylet runs this script in place of Ray's own, which imports all of Ray first.

python setup_worker.py <default_worker.py> --serialized-runtime-env-context={…} --language=PYTHON …
"""

import json
import os
import shlex
import sys

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


def main(arguments: list[str]) -> None:
    """Sets the environment of the process, and runs its interpreter, which may be a command of several words."""
    context = next((argument.removeprefix(CONTEXT) for argument in arguments if argument.startswith(CONTEXT)), "") or "{}"
    asked = json.loads(context)
    os.environ.update(asked.get("env_vars") or {})
    passed = [argument for argument in arguments if not argument.startswith((CONTEXT, LANGUAGE))]
    command = ["exec", asked.get("py_executable") or sys.executable, *map(shlex.quote, passed)]
    os.execvp("bash", ["bash", "-c", " ".join(command)])  # noqa: S606, S607 - as Ray does; the driver wrote `py_executable`


if __name__ == "__main__":
    main(sys.argv[1:])
