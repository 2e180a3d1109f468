"""The sandbox as somebody uses it: results, several programs at once, refusals, and the command."""

import functools
import gc
import json
import os
import signal
import socket
import sys
import threading

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.process import ConnectionLost, is_running
from rlinf.core.registry import SANDBOXES
from rlinf.core.sandbox import close_shared_sandboxes, shared_sandbox
from rlinf.envs.sandbox import LEVELS, Execution, ExecutionLimits, ProcessSandbox, watching
from rlinf.envs.sandbox.commands import sandbox as command

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"), pytest.mark.timeout(120)]


@functools.cache
def highest() -> str:
    """The highest level that this machine allows."""
    for level in reversed(LEVELS):
        if not ProcessSandbox(level=level).refusal():
            return level
    pytest.skip("this machine allows no level")


UNDEFINED = """Traceback (most recent call last):
  File "program.py", line 2, in <module>
    y
NameError: name 'y' is not defined
"""


@pytest.fixture(scope="module")
def sandbox():
    with ProcessSandbox(level=highest(), workers=2).build() as running:
        yield running


def run(sandbox, *programs, stdin="", **limits):
    limits = ExecutionLimits(**{"wall_s": 60.0, **limits})
    return sandbox.run([Execution(program=program, stdin=stdin, limits=limits) for program in programs])


def test_what_a_program_prints(sandbox):
    (result,) = run(sandbox, "import sys\nprint(input()[::-1])\nprint('é', file=sys.stderr)", stdin="abc\n")
    assert (result.reason, result.status, result.ok) == ("ok", 0, True)
    assert (result.stdout, result.stderr) == ("cba\n", "é\n")
    assert 0 < result.cpu_s < 60
    assert 0 < result.wall_s < 60


@pytest.mark.parametrize(
    ("program", "status", "stderr"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("import sys\nsys.exit(256 + 7)", 7, ""),
        ("import os\nos._exit(9)", 9, ""),
        ("class Own(int):\n    def __and__(self, other):\n        return 'no number'\nraise SystemExit(Own(3))", 3, ""),
        ("import os\nos._exit = lambda status: None\nraise SystemExit(5)", 5, ""),
        ("class Own(Exception):\n    __traceback__ = property(lambda self: 1 / 0)\nraise Own", 1, ""),
        ("1 +", 1, '  File "program.py", line 1\n    1 +\n       ^\nSyntaxError: invalid syntax\n'),
        ("x = 1\ny", 1, UNDEFINED),
    ],
)  # fmt: skip
def test_how_a_program_ends(sandbox, program, status, stderr):
    (result,) = run(sandbox, program)
    assert (result.reason, result.status) == ("error", status)
    assert result.stderr == stderr


def test_a_program_is_main_and_ends_as_the_interpreter_does(sandbox):
    program = "import atexit\natexit.register(print, 'last')\nif __name__ == '__main__':\n    print('main', end=' ')"
    assert run(sandbox, program)[0].stdout == "main last\n"
    assert run(sandbox, "import asyncio\n\nasync def f():\n    print('loop')\n\nasyncio.run(f())")[0].stdout == "loop\n"
    assert run(sandbox, "print(open(0).read())", stdin="x" * 300_000)[0].stdout == "x" * 300_000 + "\n"


def test_results_are_in_order(sandbox):
    programs = [f"import time\ntime.sleep({0.05 * (number % 3)})\nprint({number})" for number in range(12)]
    assert [int(result.stdout) for result in run(sandbox, *programs)] == list(range(12))
    assert sandbox.run([]) == []


def test_several_threads_ask(sandbox):
    found = {}

    def ask(number):
        found[number] = run(sandbox, f"print({number})")[0].stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" for number in range(8)}


def test_a_worker_that_dies_is_replaced(sandbox):
    for worker in list(sandbox._workers):
        os.kill(worker.pid, signal.SIGKILL)
    assert [result.stdout for result in run(sandbox, *["print(1)"] * 4)] == ["1\n"] * 4


def test_a_worker_that_dies_meanwhile_costs_that_program_alone(monkeypatch):
    read = watching.Watched._read
    with ProcessSandbox(level=highest(), workers=1).build() as running:
        pid = running._workers[0].pid

        def read_and_kill(watched, file):
            found = read(watched, file)
            if watched.began and is_running(pid):
                os.kill(pid, signal.SIGKILL)
            return found

        monkeypatch.setattr(watching.Watched, "_read", read_and_kill)
        (result,) = run(running, "import time\ntime.sleep(600)")
        assert (result.reason, result.status) == ("killed", None)
        assert run(running, "print(1)")[0].ok


def test_nothing_is_left_of_it():
    running = ProcessSandbox(level=highest(), workers=1).build()
    pid, folder = running._workers[0].pid, running._workers[0]._scratch
    running.close()
    running.close()
    assert not is_running(pid)
    assert not os.path.exists(folder)


def test_installed_packages_only_where_asked_for(sandbox):
    assert "ModuleNotFoundError" in run(sandbox, "import numpy")[0].stderr
    config = ProcessSandbox(level=highest(), workers=1, site_packages=True, preload=("numpy",))
    if config.refusal():
        pytest.skip(config.refusal())
    with config.build() as running:
        assert run(running, "import numpy\nprint(numpy.ones(3) @ numpy.ones(3))", memory_mb=256)[0].stdout == "3.0\n"


def test_by_name():
    config = SANDBOXES.build("process", {"level": highest(), "workers": 1}, place="reward.sandbox_params")
    assert shared_sandbox(config) is shared_sandbox(ProcessSandbox(level=highest(), workers=1))
    assert shared_sandbox(config).run([Execution(program="print(2)")])[0].stdout == "2\n"
    close_shared_sandboxes()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"level": "docker"}, r"p\.level: no choice 'docker'"),
        ({"workers": 0}, r"p\.workers"),
        ({"scratch_mb": 0}, r"p\.scratch_mb"),
        ({"preload": ["numpy"]}, r"p\.preload: numpy: without installed packages"),
    ],
)
def test_refused_parameters(params, message):
    with pytest.raises(ConfigError, match=message):
        SANDBOXES.build("process", params, place="p")


def test_a_machine_that_does_not_allow_the_level(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ConfigError, match=r"p\.level: this machine does not allow 'namespaces': bubblewrap: the program 'bwrap' is"
    ):
        ProcessSandbox(namespaces_by="bubblewrap").check("p")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "6.1", "", "vax")))
    with pytest.raises(
        ConfigError, match=r"no filter of system calls for vax\. It allows no lower level either\. See `rlinf sandbox`"
    ):
        ProcessSandbox().check("p")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="this interpreter is that of no virtual environment")
@pytest.mark.parametrize("packages", [True, False])
def test_bubblewrap_shows_the_interpreter_of_a_virtual_environment(monkeypatch, packages):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    words = ProcessSandbox(site_packages=packages)._launch(bubblewrap=True).command
    shown = {words[at + 1] for at, word in enumerate(words) if word == "--ro-bind"}
    assert words[words.index("--") + 1] in shown
    assert (f"{sys.prefix}/pyvenv.cfg" in shown) == packages


@pytest.mark.skipif(highest() != "namespaces", reason="this machine has no namespaces")
def test_nobody_keeps_open_what_a_program_was_given(sandbox):
    run(sandbox, *["print(1)"] * 5)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    run(sandbox, *["print(1)"] * 5)
    assert len(os.listdir("/proc/self/fd")) <= before, "files of earlier tests may be closed meanwhile"


@pytest.mark.parametrize("deed", ["os.write(0, b'y')", "os.ftruncate(0, 1 << 20)", "os.ftruncate(0, 0)"])
def test_a_program_can_not_change_what_it_was_given(sandbox, deed):
    """Not shrink it either, nor let it grow, which would be memory that nobody counts."""
    (result,) = run(sandbox, f"import os\n{deed}", stdin="x")
    assert (result.reason, result.status) == ("error", 1)
    assert "PermissionError" in result.stderr


def test_a_server_that_clears_nothing_away_is_given_up(monkeypatch):
    class Silent:
        def __init__(self) -> None:
            self.ours, self.theirs = socket.socketpair()

        def fileno(self) -> int:
            return self.ours.fileno()

    monkeypatch.setattr(watching, "END_S", 0.1)
    execution = Execution(program="", limits=ExecutionLimits(wall_s=0.02))
    with watching.Watched(execution, cpu_s=1.0) as watched, pytest.raises(ConnectionLost, match=r"not cleared away within 0\.3 s"):
        watched.follow(Silent(), ends=False)


def test_packages_may_be_where_temporary_files_are(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    config = ProcessSandbox(level="namespaces", site_packages=True, workers=1)
    with config.build() as sandbox:
        (result,) = sandbox.run([Execution(program="import tempfile; print(tempfile.gettempdir())")])
    assert result.stdout.strip() == "/scratch", result


def test_a_module_that_can_not_be_imported_beforehand():
    config = ProcessSandbox(level=highest(), site_packages=True, preload=("no_such_module",))
    assert "no_such_module" in config.refusal()


def test_the_command(tmp_path, capsys, monkeypatch):
    assert command([]) == 0
    told = capsys.readouterr().out
    assert [line.split()[1] for line in told.splitlines() if "not here" not in line] == list(LEVELS)
    assert f"yes  {highest()}" in told
    monkeypatch.setattr("sys.stdin", (tmp_path / "stdin").open("w+"))
    (tmp_path / "p.py").write_text("print('hello')\nraise SystemExit(2)")
    assert command([str(tmp_path / "p.py"), "--level", highest()]) == 1
    told = capsys.readouterr()
    assert told.out == "hello\n"
    assert told.err.startswith("error (status 2), ")
    with pytest.raises(ConfigError, match="no file"):
        command([str(tmp_path / "q.py")])


def test_a_result_is_data(sandbox):
    (result,) = run(sandbox, "print('x')")
    fields = {name: getattr(result, name) for name in ("reason", "status", "stdout", "stderr", "wall_s", "cpu_s")}
    assert json.loads(json.dumps(fields)) == fields
