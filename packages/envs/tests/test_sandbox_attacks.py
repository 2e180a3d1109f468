"""Programs that try to get out of the sandbox, or to do harm from within.

An escape prints ESCAPED where it has worked. Each is first tried without a sandbox, so that none fails for another reason.
"""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sandbox_escapes import ESCAPES

from rlinf.core.process import is_running
from rlinf.envs.sandbox import LEVELS, Execution, ExecutionLimits, ProcessSandbox

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request):
    config = ProcessSandbox(level=request.param, workers=1, scratch_mb=2)
    refusal = config.refusal()
    if refusal:
        pytest.skip(f"this machine does not allow {request.param}: {refusal}")
    with config.build() as running:
        yield running


def at_least(sandbox, level):
    if LEVELS.index(sandbox.level) < LEVELS.index(level):
        pytest.skip(f"{sandbox.level} does not promise it")


def run(sandbox, program, stdin="", **limits):
    limits = ExecutionLimits(**{"wall_s": 60.0, **limits})
    (result,) = sandbox.run([Execution(program=textwrap.dedent(program), stdin=stdin, limits=limits)])
    return result


def left_over(sandbox):
    """Processes of the sandbox beside its server. All have its command line, which names its folder."""
    (worker,) = sandbox._workers
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and worker._scratch.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(set(found) - {worker.pid, os.getpid()})


@pytest.fixture(autouse=True)
def nothing_is_left(sandbox):
    yield
    assert left_over(sandbox) == []
    assert os.listdir(sandbox._workers[0]._scratch) == []
    assert run(sandbox, "print(1)").stdout == "1\n"


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What is worth getting at: a process, a file, a folder and two sockets that a program of this user could reach."""
    tmp_path = tmp_path_factory.mktemp("outside")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "open").mkdir()
    for path in (tmp_path, tmp_path / "open", *tmp_path.parents[:2]):
        path.chmod(0o777)
    victim = subprocess.Popen(["sleep", "600"], env={**os.environ, "SECRET": "hidden"})
    loopback, unix, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "s"))
    abstract.bind(f"\0rlinf-test-{os.getpid()}")
    unix.listen()
    abstract.listen()
    places = {"folder": tmp_path, "victim": victim.pid, "port": loopback.getsockname()[1], "abstract": f"rlinf-test-{os.getpid()}"}
    yield {name: str(place) for name, place in places.items()}
    assert victim.poll() is None
    assert (tmp_path / "secret").read_text() == "secret"
    assert os.listdir(tmp_path / "open") == []
    victim.kill()
    victim.wait()
    for opened in (loopback, unix, abstract):
        opened.close()


WORKED = set()


def expect_to_work(name, program, folder):
    """Sees once that an escape gets out where nothing keeps it, so that it is refused for no other reason."""
    if name in WORKED:
        return
    with open(os.path.join(folder, "secret")) as secret:
        os.set_inheritable(secret.fileno(), True)
        command, free = [sys.executable, "-S", "-c", program], {**os.environ, "RLINF_TEST_SECRET": "1"}
        tried = subprocess.run(
            command, cwd=folder, env=free, capture_output=True, text=True, close_fds=False, check=False, timeout=60
        )
    assert "ESCAPED" in tried.stdout, tried.stderr
    WORKED.add(name)


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_refused(sandbox, outside, name):
    level, program = ESCAPES[name]
    at_least(sandbox, level)
    program = textwrap.dedent(program).format(**outside)
    expect_to_work(name, program, outside["folder"])
    result = run(sandbox, program)
    assert "ESCAPED" not in result.stdout
    assert result.reason in ("ok", "error", "processes"), result


def test_the_parent_outlives_it(sandbox):
    at_least(sandbox, "seccomp")
    program = "import os, signal\nfor pid in (os.getppid(), 1, -1):\n    for number in (2, 15, 9):\n        os.kill(pid, number)"
    assert run(sandbox, program).reason in ("ok", "error", "killed")
    assert is_running(sandbox._workers[0].pid)


def test_a_fork_bomb(sandbox):
    result = run(sandbox, "import os\nwhile True:\n    os.fork()")
    assert (result.reason, result.status) == ("processes", 1)
    stubborn = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    assert run(sandbox, stubborn, wall_s=0.5).reason == "timeout"


def test_a_fork_bomb_that_may_have_processes(sandbox):
    at_least(sandbox, "namespaces")
    bomb = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.1)"
    assert run(sandbox, bomb, processes=8, wall_s=1.0).reason == "timeout"
    leaving = "import os, time\nfor _ in range(50):\n    if os.fork() == 0:\n        time.sleep(100)"
    result = run(sandbox, leaving, processes=8)
    assert (result.reason, result.status) == ("processes", 1)


def test_processes_are_counted(sandbox):
    at_least(sandbox, "namespaces")
    program = """
        import os, time
        count = 1
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(100)
                count += 1
        except BlockingIOError:
            print(count)
        """
    assert run(sandbox, program, processes=5).stdout == "5\n"


def test_several_processes_only_where_they_can_be_ended(sandbox):
    if sandbox.level != "namespaces":
        with pytest.raises(Exception, match=r"limits\.processes: expected 1 with level"):
            run(sandbox, "", processes=2)


def test_a_daemon(sandbox):
    at_least(sandbox, "namespaces")
    program = """
        import os, sys, time
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print("daemon", flush=True)
                os.write(writing, b"x")
                time.sleep(600)
            os._exit(0)
        os.wait()
        os.read(reading, 1)
        """
    result = run(sandbox, program, processes=8)
    assert (result.reason, result.stdout) == ("ok", "daemon\n")


def test_loops(sandbox):
    assert run(sandbox, "while True: pass", wall_s=0.5).reason == "timeout"
    assert run(sandbox, "import time\ntime.sleep(600)", wall_s=0.5).reason == "timeout"


def test_processor_time(sandbox):
    if sandbox.level == "rlimits":
        assert run(sandbox, "while True: pass", cpu_s=1.0).reason == "timeout"
    at_least(sandbox, "namespaces")
    deaf = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = run(sandbox, deaf, cpu_s=1.0)
    assert (result.reason, result.status) == ("timeout", -9)


@pytest.mark.parametrize(
    "program",
    [
        "bytearray(10 * 2**30)",
        "kept = []\nwhile True:\n    kept.append(bytearray(2**20))",
        "x = 'a'\nwhile True:\n    x += x",
        "import mmap\nmmap.mmap(-1, 10 * 2**30)",
    ],
)
def test_memory(sandbox, program):
    result = run(sandbox, program, memory_mb=128)
    assert (result.reason, result.status) == ("error" if "mmap" in program else "memory", 1)
    assert "ENOMEM" in result.stderr or "MemoryError" in result.stderr or "Cannot allocate memory" in result.stderr


def test_printing_without_end(sandbox):
    for file in (1, 2):
        result = run(sandbox, f"import os\nwhile True:\n    os.write({file}, b'x' * 2**16)", output_kb=8)
        assert result.reason == "output"
        assert len(result.stdout if file == 1 else result.stderr) == 8192
    assert run(sandbox, "print('x' * 8191)", output_kb=8).reason == "ok"


def test_no_core_is_dumped(sandbox, outside):
    result = run(sandbox, "import os\nos.abort()")
    assert (result.reason, result.status) == ("killed", -6)
    assert "core" not in os.listdir()


def test_the_scratch_folder_is_bounded(sandbox):
    result = run(sandbox, "open('x', 'wb').write(bytes(3 * 2**20))")
    assert result.reason == "error"
    assert "File too large" in result.stderr or "No space left" in result.stderr
    at_least(sandbox, "namespaces")
    several = "for number in range(5):\n    open(str(number), 'wb').write(bytes(2**20))"
    assert "No space left" in run(sandbox, several).stderr
    many = "for number in range(10_000):\n    open(str(number), 'w').close()"
    assert "No space left" in run(sandbox, many).stderr


def test_what_a_scratch_folder_may_be_left_like(sandbox):
    deep = "import os\nfor _ in range(40):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\nopen('f', 'w').close()"
    assert run(sandbox, deep).ok
    closed = "import os\nos.mkdir('a', 0)\nos.mkdir('b')\nos.mkdir('b/c', 0o500)\nos.umask(0o777)\nos.mkdir('b/d')"
    assert run(sandbox, closed).ok


def test_nothing_is_left_for_the_next(sandbox):
    first = "import builtins, json, os\njson.dumps = None\nbuiltins.len = None\nopen('left', 'w').close()\nos.environ['LEFT'] = '1'"
    assert run(sandbox, first).ok
    second = "import json, os\nprint(json.dumps(len([1])), os.listdir('.'), 'LEFT' in os.environ)"
    assert run(sandbox, second).stdout == "1 [] False\n"


def test_a_program_is_in_no_memory_that_the_next_has(sandbox):
    marker = "7d1f" * 8
    assert run(sandbox, f"print('{marker}'[:4])").stdout == "7d1f\n"
    pid = sandbox._workers[0].pid
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if "rw-p" in line:
                memory.seek(begin)
                assert marker.encode() not in memory.read(end - begin)
