import subprocess
import sys

import pytest

from rlinf.core.errors import ConfigError, WorkerError
from rlinf.runners.entry import describe


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = f"from rlinf.runners.entry import run_app\nfrom rlinf.core.errors import *\ndef main(argv):\n    {body}\nrun_app(main)\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("return 0", 0, ""),
        ("raise ConfigError('runner.x', 'unknown key', 'Remove it.')", 2, "ConfigError: runner.x: unknown key. Remove it."),
        ("raise WorkerError('env', 1, 'interact', 'ValueError: no')", 1, "env[1] failed in interact(): ValueError: no"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, "Interrupted"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 130, "Interrupted"),
    ],
)
def test_exit_codes_and_one_screen_errors(body: str, code: int, text: str) -> None:
    done = run(body)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_consequences_fold_under_the_first_cause() -> None:
    error = WorkerError("env", 0, "interact", "ValueError: no", remote_traceback="  File x")
    error.add_note("In consequence: rollout[0] …")
    text = describe(error)
    assert text.index("ValueError") < text.index("In consequence") < text.index("File x")
    assert "Traceback" not in describe(ConfigError("a", "b"))
