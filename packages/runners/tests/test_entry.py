import subprocess
import sys

import pytest

from rlinf.core.errors import ConfigError, WorkerError
from rlinf.runners.entry import describe


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = f"from rlinf.runners.entry import run_app\nfrom rlinf.core.errors import *\ndef main(argv):\n    {body}\nrun_app(main)\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("return 0", 0, ""),
        ("raise ConfigError('runner.x', 'unknown key', 'Remove it.')", 2, "ConfigError: runner.x: unknown key. Remove it."),
        ("raise WorkerError('env', 1, 'interact', 'ValueError: no')", 1, "env[1] failed in interact(): ValueError: no"),
        (
            "raise RefusedByWorker('env', 1, 'init_worker', 'ConfigError: env.train.x: no task 5. Use 4.', folded='Traceback (…')",
            2,
            "\nConfigError: env.train.x: no task 5. Use 4. (Found by env[1] in init_worker.)\n",
        ),
        (
            "raise OSError(28, 'No space left on device', '/logs/x/summary.json')",
            1,
            "RLinfError: /logs/x/summary.json: can't be written (No space left on device). Make room.\n",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, "Interrupted"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 130, "Interrupted"),
    ],
)
def test_exit_codes_and_one_screen_errors(body: str, code: int, text: str) -> None:
    done = run(body)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_fault_of_the_system_is_shown_whole() -> None:
    done = run("raise FileNotFoundError(2, 'No such file or directory', 'x')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "seen"), [("OTHER", "1", "10000"), ("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "active", "None")]
)
def test_threads_that_wait_for_each_other_soon_sleep(name: str, value: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before torch is imported, as nobody reads it afterwards; what the user says stands."""
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    done = run("import os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules); return 0")
    assert done.stdout.split() == [seen, "False"]


def test_a_variable_of_rlinf_that_nobody_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_TIMEOUT", "180")
    done = run("return 0")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("RLINF_TIMEOUT is set, and has no effect: set cluster.timeout_s")


def test_a_workers_own_frames_come_first_and_all_frames_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, own = "Traceback (most recent call last):\n  File calls\n  File x", "Traceback (most recent call last):\n  File x"
    error = WorkerError("env", 0, "interact", "ValueError: no", remote_traceback=whole, folded=own)
    error.add_note("In consequence: rollout[0] …")
    assert describe(error) == (
        "WorkerError: env[0] failed in interact(): ValueError: no\n"
        "Traceback of env[0] (most recent call last):\n  File x\n"
        "In consequence: rollout[0] …"
    )
    assert "Traceback" not in describe(ConfigError("a", "b"))
    monkeypatch.setenv("RLINF_TRACEBACK", "1")
    assert f"All frames of env[0]:\n{whole}" in describe(error)


def test_the_driver_of_a_run_does_without_torch() -> None:
    """It names the classes of the workers, which import torch in their own processes, and writes curves for TensorBoard."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tempfile import TemporaryDirectory\n"
        "from rlinf.runners.embodied import actor_worker, env_worker, rollout_worker\n"
        "from rlinf.runners.off_policy import actor_worker, exploration\n"
        "from rlinf.runners.agent import reward_worker, rollout_worker, tool_worker\n"
        "from rlinf.runners.reasoning import actor_worker, inference_worker, reward_worker, rollout_worker\n"
        "from rlinf.runners.sft import actor_worker, reward_model_worker\n"
        "from rlinf.runners.embodied_sft import actor_worker\n"
        "from rlinf.runners.reporting.loggers.files import TensorBoardLogger\n"
        "from rlinf.runners.reporting.loggers.registry import LoggedRun\n"
        "with TemporaryDirectory() as folder:\n"
        "    logger = TensorBoardLogger(LoggedRun(folder=Path(folder), project='a', name='b', config={}))\n"
        "    logger.write(1, {'a': 1.0})\n"
        "    logger.close()\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=240, check=False).returncode == 0


def test_torch_is_loaded_for_a_run_and_not_for_help() -> None:
    code = (
        "import sys, rlinf.runners.commands\n"
        "from importlib.metadata import entry_points\n"
        "found = [point for point in entry_points(group='rlinf.runners') if point.value.startswith('rlinf.')]\n"
        "assert found\n"
        "for point in found:\n"
        "    point.load()\n"
        "    assert 'torch' not in sys.modules, point\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
