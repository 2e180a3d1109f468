import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf.core.errors import ConfigError, RefusedByWorker, WorkerError
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.workers.logs import TAIL_LINES, WORKERS, Console, Tail, WorkerLog, relay

BACKENDS = ["local", pytest.param("ray", marks=pytest.mark.ray)]


class Talker(Worker):
    def talk(self) -> None:
        self.log_debug("whisper")
        self.log_info("hello")
        self.log_warning("careful\nvery")
        self.log_on_first_rank("first")
        self.log_on_last_rank("last")

    def fail(self) -> None:
        self.log_error("it is getting hot")
        raise ValueError("broken")

    def refuse(self) -> None:
        raise ConfigError("env.train.x", "no task 5", "Use 4.")

    def sleep(self) -> None:
        self.log_info("good night")
        time.sleep(600.0)


def test_a_run_goes_on_when_its_logs_find_no_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "worker_logs"
    (folder / "talker").mkdir(parents=True)
    (folder / "talker" / "rank_0.log").symlink_to("/dev/full")
    (folder / "other").write_text("")  # where a folder should be
    with Cluster(cluster_cfg={"backend": "local", "log_dir": str(tmp_path)}) as cluster:
        for name in ("talker", "other"):
            Talker.create_group().launch(cluster, name=name, placement_strategy=NodePlacementStrategy([0])).talk().wait()
    lost = [message for message in caplog.messages if "can't be written" in message]
    assert len(lost) == 2
    assert lost[0].endswith("rank_0.log' can't be written: No space left on device. What follows is not in it.")
    assert "careful\nvery" in caplog.messages


def test_what_a_worker_refuses_is_told_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        group = Talker.create_group().launch(cluster, name="talker", placement_strategy=NodePlacementStrategy([0]))
        with pytest.raises(RefusedByWorker, match=r"^talker\[0\] failed in refuse\(\): ConfigError: env\.train\.x: ") as caught:
            group.refuse().wait()
    assert caught.value.exit_code == 2
    assert caught.value.problem == "ConfigError: env.train.x: no task 5. Use 4."
    told = [message for message in caplog.messages if "no task 5" in message]
    assert told == ["talker[0] failed in refuse(): ConfigError: env.train.x: no task 5. Use 4."]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_workers_log_and_the_last_lines_of_one_that_fails(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(cluster_cfg={"backend": backend, "timeout_s": 60.0, "log_dir": str(tmp_path)}) as cluster:
        group = Talker.create_group().launch(cluster, name="talker", placement_strategy=NodePlacementStrategy([0, 0]))
        group.talk().wait()
        with pytest.raises(WorkerError) as caught:
            group.execute_on(1).fail().wait()
        remote = caught.value.remote_traceback
        assert "ValueError: broken\nLast lines of its log:\n" in remote
        assert "INFO rlinf.worker.talker.1: hello" in remote
        assert "ERROR rlinf.worker.talker.1: it is getting hot" in remote
        deadline = time.monotonic() + 60.0
        while "it is getting hot" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        if backend == "ray":
            handle = group.execute_on(0).sleep()
            while "good night" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(group.worker_infos[0].pid, signal.SIGKILL)
            with pytest.raises(WorkerError, match="died") as caught:
                handle.wait()
            assert "Last lines of its log:\nINFO: hello" in caught.value.remote_traceback
            assert "INFO: good night" in caught.value.remote_traceback
    words: dict[int, list[str]] = {0: ["hello", "careful", "first"], 1: ["hello", "careful", "last"]}
    for rank in (0, 1):
        text = (tmp_path / "worker_logs" / "talker" / f"rank_{rank}.log").read_text()
        logged = [r.message.partition("\n")[0] for r in caplog.records if r.name == f"rlinf.worker.talker.{rank}"]
        # the driver tells of a failure at once, and may do so before it has read what the worker logged
        assert [line for line in logged if not line.startswith("talker[")][:3] == words[rank]
        assert all(word in text for word in words[rank])
        assert ("first" in text, "last" in text, "whisper" in text) == (rank == 0, rank == 1, False)
    assert "WARNING rlinf.worker.talker.0: careful\nvery" in (tmp_path / "worker_logs" / "talker" / "rank_0.log").read_text()


SCRIPT = """
import logging, sys
from rlinf.scheduler import Cluster, Worker

class Talker(Worker):
    def talk(self):
        self.log_debug("whisper")
        self.log_info("hello\\nworld")

if __name__ == "__main__":
    if "own" in sys.argv:
        logging.basicConfig(format="mine %(name)s %(message)s")
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        Talker.create_group().launch(cluster, name="talk.er").talk().wait()
    assert not logging.getLogger("rlinf.worker").handlers
    assert not logging.getLogger("rlinf.worker.talk.er.0").handlers
"""


@pytest.mark.parametrize(
    ("argument", "level", "shown"),
    [
        ("", "INFO", "talk.er[0] INFO: hello\ntalk.er[0] INFO: world\n"),
        ("", "debug", "talk.er[0] DEBUG: whisper\ntalk.er[0] INFO: hello\ntalk.er[0] INFO: world\n"),
        ("", "WARNING", ""),
        ("own", "INFO", "mine rlinf.worker.talk.er.0 hello\nworld\n"),
    ],
)
def test_the_console(argument: str, level: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "RLINF_LOG_LEVEL": level}
    command = [sys.executable, str(path), argument]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert done.stderr == shown


def test_a_level_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_LOG_LEVEL", "LOUD")
    with pytest.raises(ConfigError, match=r"RLINF_LOG_LEVEL: expected the name of a log level, found 'LOUD'\. Use one of"):
        Cluster(cluster_cfg={"backend": "local"}).create_channel("c")


def test_a_tail_keeps_the_last_lines() -> None:
    tail = Tail()
    assert tail.text() == ""
    for i in range(TAIL_LINES + 5):
        tail.add(str(i))
    assert tail.text() == "\n".join(["Last lines of its log:", *map(str, range(5, TAIL_LINES + 5)), ""])


def test_a_closed_log_holds_no_file_and_hears_nothing(tmp_path: Path) -> None:
    forwarded: list[tuple[int, str]] = []
    logger = logging.getLogger(f"{WORKERS}.deaf.0")
    log = WorkerLog(logger.name, str(tmp_path), "deaf", 0, forward=lambda level, text: forwarded.append((level, text)))
    logger.info("%s one", "number")
    log.close()
    logger.info("number two")
    assert forwarded == [(logging.INFO, "number one")]
    assert "two" not in (tmp_path / "worker_logs" / "deaf" / "rank_0.log").read_text()
    assert logger.handlers == []


def test_the_console_leaves_the_logger_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(WORKERS)
    before = (logger.level, list(logger.handlers))
    console = Console()
    relay("env.1", logging.INFO, "100 %s")
    console.close()
    assert (logger.level, logger.handlers) == before
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("rlinf.worker.env.1", "100 %s")]
