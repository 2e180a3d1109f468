"""No verifier stops a run, whatever it does, and nothing that it started is left behind."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest

from rlinf.algorithms.rewards.matching import ExactMatch
from rlinf.algorithms.rewards.pool import InFile, Task, VerifierPool, close_shared_pool, shared_pool
from rlinf.algorithms.rewards.scoring import OneByOne, Verified, score, score_async
from rlinf.core.errors import ConfigError, ShapeError, WorkerError
from rlinf.core.metrics import Metric

VERIFIERS = '''
import contextlib, os, subprocess, sys, time
from dataclasses import dataclass


def named(completion, answer, *, names):
    return float(completion in names)


def behave(completion, answer):
    """What a pair asks for."""
    kind, _, rest = completion.partition(":")
    if kind == "sleep":
        time.sleep(3600)
    if kind == "spin":
        while True:
            pass
    if kind == "stubborn":
        while True:
            with contextlib.suppress(BaseException):
                while True:
                    time.sleep(0.01)
    if kind == "exit":
        os._exit(int(rest))
    if kind == "sys.exit":
        sys.exit(1)
    if kind == "signal":
        os.kill(os.getpid(), int(rest))
    if kind == "raise":
        raise ValueError(rest)
    if kind == "recurse":
        return behave(completion, answer)
    if kind == "memory":
        return len(bytearray(64 << 30))
    if kind == "nan":
        return float("nan")
    if kind == "text":
        return "1.0"
    if kind == "print":
        print("{}" * 1000, flush=True)
    if kind == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        open(rest, "w").write(str(child.pid))
        time.sleep(3600)
    if kind == "pid":
        return os.getpid()
    if kind == "length":
        return len(rest)
    return float(completion == answer)


def batched(completions, answers):
    assert len(completions) == 1
    return [behave(c, a) for c, a in zip(completions, answers)]


async def judge(completion, answer):
    return behave(completion, answer)


@dataclass(frozen=True)
class Scaled:
    by: float

    def __call__(self, completion, answer):
        return self.by * (completion == answer)
'''
BROKEN = "import os\nos._exit(9)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "strange_verifiers.py").write_text(VERIFIERS, encoding="utf-8")
    (folder / "half_importable.py").write_text(
        "import os\nif 'GOOD' not in os.environ:\n    os._exit(9)\ndef f(c, a): return 1.0\n"
    )
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def strange(folder):
    return importlib.import_module("strange_verifiers")


@pytest.fixture(scope="module")
def pool(folder):
    with VerifierPool(2) as pool:
        yield pool
    assert pool.pids == []


def gone(pid, patience_s=60.0):
    """Whether a process ends soon; a zombie that nobody waited for doesn't count as ended."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            stat = Path(f"/proc/{pid}/stat")
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z" and os.getppid() != 1:
                return True
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_good_pairs_are_scored_in_order(strange, pool):
    scores = score(Verified(strange.behave), ["a", "b", "c", ""] * 5, ["a", "x", "c", ""] * 5, pool=pool)
    assert scores.values == [1.0, 0.0, 1.0, 1.0] * 5
    assert scores.metrics == {
        "score": Metric(15.0, 20.0),
        "verifier_error": Metric(0.0, 20.0),
        "verifier_timeout": Metric(0.0, 20.0),
    }
    assert scores.failures == {}


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        ("exit:3", "its process exited with status 3"),
        ("exit:0", "its process exited with status 0"),
        (f"signal:{int(signal.SIGSEGV)}", "its process was killed by SIGSEGV"),
        ("sys.exit", "SystemExit: 1"),
        ("raise:é\ud800", "ValueError: é\ud800"),
        ("recurse", "RecursionError: maximum recursion depth exceeded"),
        ("memory", "MemoryError"),
        ("nan", "expected a finite number, the verifier returned nan"),
        ("text", "expected a finite number, the verifier returned '1.0'"),
    ],
)
def test_a_crash_costs_one_pair(strange, pool, completion, problem):
    scores = score(Verified(strange.behave, lowest=-2.0), ["a", completion, "b"], ["a", "a", "b"], pool=pool)
    assert scores.values == [1.0, -2.0, 1.0]
    assert scores.metrics["verifier_error"] == Metric(1.0, 3.0)
    assert scores.metrics["verifier_timeout"] == Metric(0.0, 3.0)
    assert scores.metrics["score"] == Metric(0.0, 3.0)
    assert list(scores.failures) == [1]
    assert scores.failures[1].startswith(problem)


@pytest.mark.parametrize("completion", ["sleep", "spin", "stubborn", f"signal:{int(signal.SIGSTOP)}"])
def test_a_hang_costs_one_pair(strange, pool, completion):
    began = time.monotonic()
    scores = score(Verified(strange.behave), ["a", completion, "b"], ["a", "a", "b"], timeout_s=2.0, pool=pool)
    assert scores.values == [1.0, 0.0, 1.0]
    assert scores.metrics["verifier_timeout"] == Metric(1.0, 3.0)
    assert scores.metrics["verifier_error"] == Metric(0.0, 3.0)
    assert scores.failures == {1: "no answer within 2 s"}
    assert time.monotonic() - began < 60


def test_many_hangs_at_once(strange, pool):
    scores = score(Verified(strange.behave, timeout_s=2.0), ["spin", "stubborn", "exit:1", "a"] * 2, ["a"] * 8, pool=pool)
    assert scores.values == [0.0, 0.0, 0.0, 1.0] * 2
    assert scores.metrics["verifier_timeout"] == Metric(4.0, 8.0)
    assert scores.metrics["verifier_error"] == Metric(2.0, 8.0)


def test_processes_are_reused_and_at_most_so_many(strange, pool):
    first = set(score(Verified(strange.behave), ["pid:"] * 12, [""] * 12, pool=pool).values)
    again = set(score(Verified(strange.behave), ["pid:"] * 12, [""] * 12, pool=pool).values)
    assert len(first) <= 2
    assert again <= first | set(map(float, pool.pids))
    assert len(pool.pids) <= 2


def test_what_a_verifier_prints_does_not_disturb(strange, pool):
    assert score(Verified(strange.behave), ["print", "print"], ["print", "x"], pool=pool).values == [1.0, 0.0]


def test_a_million_characters(strange, pool):
    text = "length:" + "é" * 1_000_000
    assert score(Verified(strange.behave), [text, "length:"], ["", ""], pool=pool).values == [1e6, 0.0]


def test_a_dataclass_is_a_verifier_too(strange, pool):
    assert score(Verified(strange.Scaled(3.0)), ["a", "b"], ["a", "a"], pool=pool).values == [3.0, 0.0]


def test_a_strangers_batched_reward_is_asked_one_by_one(strange, pool):
    scores = score(strange.batched, ["a", "exit:1", "b"], ["a", "a", "b"], pool=pool)
    assert scores.values == [1.0, 0.0, 1.0]
    assert OneByOne(strange.batched).verify("a", "a") == 1.0
    assert Verified(strange.behave).verify("a", "a") == 1.0


def test_an_empty_batch_starts_nothing(strange):
    with VerifierPool(2) as pool:
        scores = score(Verified(strange.behave), [], [], pool=pool)
        assert scores.values == []
        assert pool.pids == []
        assert scores.metrics["score"].weight == 0.0


def test_what_a_verifier_started_ends_with_it(strange, tmp_path):
    with VerifierPool(1) as pool:
        scores = score(Verified(strange.behave), [f"child:{tmp_path / 'pid'}"], ["a"], timeout_s=5.0, pool=pool)
    assert scores.metrics["verifier_timeout"].sum == 1.0
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.fixture
def fresh(strange):
    with VerifierPool(2) as pool:
        yield pool


def test_closing_ends_all_processes_and_refuses_more(strange, fresh):
    score(Verified(strange.behave), ["a", "b"], ["a", "b"], pool=fresh)
    pids = fresh.pids
    assert pids
    fresh.close()
    fresh.close()
    assert all(gone(pid) for pid in pids)
    assert not fresh.usable
    with pytest.raises(ConfigError, match="closed"):
        fresh.run(Task(strange.behave), [("a", "b")], name="x")


def test_a_process_that_died_while_idle_is_replaced(strange, fresh):
    assert score(Verified(strange.behave), ["a"], ["a"], pool=fresh).values == [1.0]
    os.kill(fresh.pids[0], signal.SIGKILL)
    assert gone(fresh.pids[0])
    scores = score(Verified(strange.behave), ["a"] * 3, ["a"] * 3, pool=fresh)
    assert scores.values == [1.0] * 3
    assert scores.failures == {}


def test_workers_of_one_call_end_with_it(strange):
    found = score(Verified(strange.behave), ["pid:"], [""], max_workers=1).values
    assert gone(int(found[0]))


def test_the_shared_pool_is_one_until_it_is_closed():
    first = shared_pool()
    assert shared_pool() is first
    close_shared_pool()
    assert not first.usable
    second = shared_pool()
    assert second is not first
    assert second.usable


def test_an_interrupt_leaves_no_busy_process(strange, fresh):
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        score(Verified(strange.behave, timeout_s=60.0), ["sleep"], ["a"], pool=fresh)
    timer.join()
    assert fresh.pids == []
    assert score(Verified(strange.behave), ["a"], ["a"], pool=fresh).values == [1.0]


def test_threads_take_turns(strange):
    with VerifierPool(1) as pool:
        found = {}

        def work(number):
            found[number] = score(Verified(strange.behave), [str(number)] * 5, [str(number)] * 5, pool=pool).values

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {number: [1.0] * 5 for number in range(4)}


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from rlinf.algorithms.rewards.scoring import Verified, score
from rlinf.algorithms.rewards.pool import shared_pool
import strange_verifiers
print(score(Verified(strange_verifiers.behave), ["a", "b"], ["a", "a"]).values, *shared_pool().pids, flush=True)
"""


def test_processes_end_with_a_script_that_needs_no_main_guard(folder, strange):
    script = SCRIPT.format(folder=str(folder))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("[1.0, 0.0] "), done.stderr
    assert done.stderr == ""
    pids = [int(word) for word in done.stdout.split("]")[1].split()]
    assert pids
    assert all(gone(pid) for pid in pids)


def test_processes_end_by_themselves_when_their_parent_was_killed(strange):
    """A fork of this process, which must not touch this process's pool, dies while one of its processes is idle and one busy."""
    shared = shared_pool()
    assert score(Verified(strange.behave), ["a"], ["a"]).values == [1.0]
    ours = shared.pids
    read, write = os.pipe()
    fork = os.fork()
    if fork == 0:
        pool = shared_pool()
        score(Verified(strange.behave), ["a"], ["a"], pool=pool)
        with VerifierPool(1) as busy:
            score(Verified(strange.behave), ["a"], ["a"], pool=busy)
            os.write(write, f"{int(pool is not shared)} {pool.pids[0]} {busy.pids[0]}".encode())
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            score(Verified(strange.behave), ["spin"], ["a"], timeout_s=60.0, pool=busy)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == -signal.SIGKILL
    own, idle, busy = map(int, os.read(read, 100).split())
    os.close(read)
    os.close(write)
    assert own == 1
    assert gone(idle)
    assert gone(busy)
    assert shared.pids == ours
    assert score(Verified(strange.behave), ["a"], ["a"]).values == [1.0]
    close_shared_pool()


def test_what_can_not_be_sent_is_refused_with_a_way_out(strange, pool, monkeypatch):
    with pytest.raises(ConfigError, match="define it at the top of a module"):
        score(Verified(lambda c, a: 1.0), ["a"], ["a"], pool=pool)
    monkeypatch.setitem(sys.modules, "of_this_process", sys.modules[__name__])
    monkeypatch.setattr(_here, "__module__", "of_this_process")
    with pytest.raises(ConfigError, match="can't be loaded in a worker process"):
        VerifierPool(1).run(Task(_here), [("a", "a")], name="mine")


def test_what_stands_in_main_is_refused_and_a_text_that_names_it_is_not(strange, pool):
    options = {"names": ["__main__"]}
    assert pool.run(Task(InFile(strange.__file__, "named", options)), [("__main__", "")], name="mine")[0].score == 1.0
    inside = FunctionType(_here.__code__, {"__name__": "__main__"}, "inside")
    with pytest.raises(ConfigError, match="mine: is defined in __main__"):
        pool.run(Task(partial(strange.named, names=inside)), [("a", "a")], name="mine")


def _here(completion, answer):
    return 1.0


def test_a_process_that_does_not_start_is_an_error_not_a_score(folder, monkeypatch):
    monkeypatch.setenv("GOOD", "1")
    module = importlib.import_module("half_importable")
    monkeypatch.delenv("GOOD")
    with (
        VerifierPool(1) as pool,
        pytest.raises(WorkerError, match=r"verifier\[0\] failed in start\(\): its process exited with status 9 while loading mine"),
    ):
        pool.run(Task(module.f), [("a", "a")], name="mine")


@pytest.mark.parametrize(
    ("completions", "answers", "message"),
    [(["a"], [], r"\(answers\): expected 1, one for each completion"), ("a", ["a"], r"\(compl"), (["a"], "a", r"\(answers")],
)
def test_pairs_that_do_not_go_together(completions, answers, message):
    with pytest.raises(ShapeError, match=message):
        ExactMatch()(completions, answers)
    with pytest.raises(ShapeError):
        Verified(_here)(completions, answers)
    with pytest.raises(ShapeError):
        asyncio.run(score_async(_here, completions, answers, timeout_s=1.0))


@pytest.mark.parametrize("limits", [{"timeout_s": 0.0}, {"timeout_s": -1.0}, {"memory_mb": 0}])
def test_limits_that_are_none(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        Verified(_here, **limits)


def test_a_pool_of_nobody():
    with pytest.raises(ConfigError, match="max_workers"):
        VerifierPool(0)
    with pytest.raises(ConfigError, match="timeout_s"):
        score(Verified(_here), [], [], timeout_s=0.0)
