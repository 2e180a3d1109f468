"""The user's own code in a worker: where it is imported from, and its lines in errors, on the console and in the worker's log."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.backends.ray.process import search_path

BACKENDS = ["local", pytest.param("ray", marks=pytest.mark.ray)]

MODULE = """
from rlinf.scheduler import Worker

def look_up(table, key):
    return table[key]

class Broken(Worker):
    def bad(self):
        return look_up({"a": 1}, "b")  # the user's line

    async def later(self):
        return look_up({"a": 1}, "c")

class BornBroken(Worker):
    def __init__(self):
        look_up({}, "born")
"""
SCRIPT = """
import sys
from broken import BornBroken, Broken
from rlinf.core.errors import WorkerError
from rlinf.scheduler import Cluster, NodePlacementStrategy

if __name__ == "__main__":
    with Cluster(cluster_cfg={"backend": sys.argv[1], "timeout_s": 120.0, "log_dir": sys.argv[2]}) as cluster:
        for name, call in [("late", lambda group: group.later().wait()), ("born", None)]:
            try:
                if call is None:
                    BornBroken.create_group().launch(cluster, name=name)
                else:
                    call(Broken.create_group().launch(cluster, name=name))
            except WorkerError as error:
                print(error, *error.__notes__, sep="\\n")
        Broken.create_group().launch(cluster, name="w", placement_strategy=NodePlacementStrategy([0, 0])).bad().wait()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_users_own_line_is_shown_once_and_in_each_log(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), backend, str(tmp_path / "logs")]
    environment = {**os.environ, "COLUMNS": "200"}
    if backend == "ray":
        environment["RAY_ADDRESS"] = request.getfixturevalue("shared_ray")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 1
    # the driver: Python's own way to show an exception that nobody catches
    driver = done.stderr[done.stderr.rindex("WorkerError: w[") :]
    assert re.match(
        r"WorkerError: w\[[01]\] failed in bad\(\): KeyError: 'b'\nTraceback of w\[[01]\] \(most recent call last\):\n", driver
    )
    shown = driver.partition("Traceback of")[2]
    assert 'return look_up({"a": 1}, "b")  # the user\'s line' in shown
    assert f'File "{tmp_path / "broken.py"}", line 5, in look_up' in shown
    assert "calls.py" not in shown
    assert "of rlinf]" in shown
    # the console: a line for each rank, as soon as it fails; the traceback comes with the error
    console = [line for line in done.stderr.splitlines() if re.match(r"w\[\d\] ERROR: ", line)]
    assert 1 <= len(console) <= 2, console
    assert all(re.match(r"w\[(\d)\] ERROR: w\[\1\] failed in bad\(\): KeyError: 'b'$", line) for line in console), console
    assert done.stderr.count("the user's line") == 1
    # the log of each worker that failed, with the date and the call; of the two ranks, the one that failed first ends the other
    first = int(driver.removeprefix("WorkerError: w[")[0])
    for group, rank, method, line in [
        ("w", first, "bad", "# the user's line"),
        ("late", 0, "later", '"c"'),
        ("born", 0, "__init__", '"born"'),
    ]:
        text = (tmp_path / "logs" / "worker_logs" / group / f"rank_{rank}.log").read_text()
        assert text.count(line) == 1, text
        said = rf"^\d{{4}}-\S+ \S+ ERROR rlinf\.worker\.{group}\.{rank}: {method}\(\) failed: KeyError: "
        assert re.search(said, text, re.MULTILINE)
        assert "calls.py" not in text
    # and where a script catches the error
    assert 'return look_up({"a": 1}, "c")' in done.stdout
    assert 'look_up({}, "born")' in done.stdout


class Sleeper(Worker):
    def __init__(self) -> None:
        self.woken = False

    async def sleep(self) -> None:
        while not self.woken:
            await asyncio.sleep(0.01)

    def wake(self) -> None:
        self.woken = True


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_deadline_names_the_timeout_that_was_too_short(ranks: int) -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        group = Sleeper.create_group().launch(cluster, name="s", placement_strategy=NodePlacementStrategy([0] * ranks))
        cluster._backend.timeout_s = group._timeout_s = 0.3  # not for the launch, which may take longer
        handle = group.sleep()
        with pytest.raises(DeadlineExceeded, match=r"\. Raise cluster\.timeout_s if this is normal\."):
            handle.wait()
        with pytest.raises(DeadlineExceeded, match=r"\. Pass a longer timeout if this is normal\."):
            handle.wait(timeout=0.1)
        group.wake()
        handle.wait(timeout=60.0)


def test_a_worker_looks_first_where_the_driver_looks_first_but_takes_the_libraries_of_its_own_interpreter() -> None:
    standard = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    driver = ["/here", "/script", f"/usr/lib/{standard}", "/usr/lib/python", "/site", "/added"]
    own = ["/script", f"/other/lib/{standard}", "/other/lib/python", "/other/site"]
    found = ["/here", "/script", *own[1:], *driver[2:]]
    assert search_path(driver, own) == found
    assert search_path(["/here", "/site"], ["/site", "/own"]) == ["/site", "/own", "/here"]
