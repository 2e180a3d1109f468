"""The recorder and its files, without a cluster."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_queue import OneQueue

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.scheduler import Cluster
from rlinf.scheduler.trace import Span, merge, spans
from rlinf.scheduler.trace.chrome import write
from rlinf.scheduler.trace.reading import is_full, parts
from rlinf.scheduler.trace.recorder import Recorder, recorded
from rlinf.scheduler.trace.recording import Recording
from rlinf.scheduler.trace.transfers import traced_locks, traced_transport
from rlinf.scheduler.transport.transport import OPEN_TRANSPORTS
from rlinf.scheduler.transport.waits import ThreadMonitor
from rlinf.scheduler.workers.calls import Outcome, perform
from rlinf.scheduler.workers.device_lock import Locks


def record(folder: Path, process: str = "env.0") -> Recorder:
    return Recorder(folder, process)


def test_a_span_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    start = time.monotonic_ns()
    recorder.record("put", "env[0]", 'a "name"\n', "é", start, waited=5, sizes=(2, 30), failed=True, ids=(1 << 62, 4), route="tcp")
    end = time.monotonic_ns()
    recorder.close()
    (span,) = spans(tmp_path)
    assert (span.kind, span.who, span.group, span.rank, span.name, span.key) == ("put", "env[0]", "env", 0, 'a "name"\n', "é")
    assert (span.start, span.waited, span.items, span.bytes, span.status) == (start, 5, 2, 30, "failed")
    assert span.route == "tcp"
    assert span.ids == (1 << 62, 4)
    assert start < span.end <= end
    assert span.worked == span.end - start - 5


def test_the_driver_is_rank_zero_of_its_own_group() -> None:
    span = Span(kind="put", who="driver", thread=1, name="c", start=0, end=1)
    assert (span.group, span.rank) == ("driver", 0)
    assert Span(kind="put", who="a-b.c[12]", thread=1, name="c", start=0, end=1).rank == 12


def test_calls_contain_what_happens_in_them(tmp_path: Path) -> None:
    recorder = record(tmp_path)

    def work() -> Outcome:
        with recorder.timers("env[0]")("simulate"):
            recorder.record("get", "env[0]", "c", "", time.monotonic_ns(), waited=7)
        recorder.record("lock", "env[0]", "device 0", "", time.monotonic_ns(), waited=3)
        return perform(lambda: 1 // 0, (), {})

    outcome = recorded(recorder, "env[0]", "interact", work)
    assert outcome.failure is not None
    recorder.record("get", "env[0]", "c", "", time.monotonic_ns(), waited=100)
    recorder.close()
    get, timer, lock, call, after = spans(tmp_path)
    assert [get.within, timer.within, lock.within, call.within, after.within] == ["interact", "interact", "interact", "", ""]
    assert (timer.waited, call.waited, call.status) == (7, 10, "failed")
    assert call.start <= timer.start <= get.start <= get.end <= timer.end <= lock.start <= lock.end <= call.end


def test_without_a_recorder_nothing_is_in_the_way() -> None:
    transport, locks = OneQueue(), Locks(lambda: ThreadMonitor(5.0))
    assert traced_transport(transport, None) is transport
    assert traced_locks(locks, None) is locks
    outcome = Outcome(value=1, seconds=0.0)
    assert recorded(None, "env[0]", "f", lambda: outcome) is outcome


def test_a_torn_last_line_is_left_out_and_what_never_ended_is_shown(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    recorder.record("put", "env[0]", "c", "", time.monotonic_ns(), ids=(1,))
    file = parts(tmp_path)[0].path
    recorder.flush()
    recorder.call("env[0]", "first", lambda: Outcome(value=None, seconds=0.0))
    recorder.close()
    begin = next(line for line in file.read_text().splitlines() if "begin" in line).replace("first", "second")
    whole = f"{file.read_text()}{begin}\n"
    last = '["put","env[0]",1,"c","",5,6,0,1,9,0,[2]]'
    file.write_text(f"{whole}{last}\n")
    found = list(spans(tmp_path))
    assert [(span.name, span.status) for span in found] == [("c", "ok"), ("first", "ok"), ("c", "ok"), ("second", "unfinished")]
    assert (found[2].within, found[3].within) == ("second", "")
    for cut in range(len(last) + 1):
        file.write_text(whole + last[:cut])
        assert [span.name for span in spans(tmp_path)] == ["c", "first", "second"]


def test_a_file_without_a_whole_header_is_left_out(tmp_path: Path) -> None:
    record(tmp_path).close()
    (tmp_path / "rollout.0-1.jsonl").write_text('{"format": "rlinf-tr')
    (tmp_path / "rollout.0-2.jsonl").write_text("")
    (tmp_path / "rollout.0-3.jsonl").write_text('{"format": "other"}\n')
    assert [part.process for part in parts(tmp_path)] == ["env.0"]
    with pytest.raises(RLinfError, match="no process has recorded"):
        merge(tmp_path / "nothing", tmp_path / "trace.json")


def test_a_call_under_way_says_that_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf.scheduler.trace.recorder.ALIVE_S", 0.0)
    recorder = record(tmp_path)

    def slow() -> Outcome:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            (span,) = spans(tmp_path)
            if span.end - span.start > 0.3e9:
                return Outcome(value=span, seconds=0.0)
            time.sleep(0.02)
        raise TimeoutError

    seen = recorder.call("env[0]", "sleep", slow).value
    assert (seen.name, seen.status) == ("sleep", "unfinished")
    recorder.close()


def test_the_clocks_of_other_machines_are_shifted_to_the_drivers(tmp_path: Path) -> None:
    for process, host, start, offset in (("driver", "a", 1000, 50), ("env.0", "a", 1010, 50), ("env.1", "b", 5, 1100)):
        header = {"format": "rlinf-trace-1", "process": process, "pid": 1, "host": host, "start": start, "wall_offset": offset}
        line = ["put", "x[0]", 1, "c", "", start, start + 1, 0, 1, 9, 0, [1]]
        (tmp_path / f"{process}-1.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    assert [part.process for part in parts(tmp_path)] == ["driver", "env.0", "env.1"]
    assert [span.start for span in spans(tmp_path)] == [1000, 1010, 5 + 1050]


def test_a_process_stops_at_its_limit_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf.scheduler.trace.recorder.LIMIT_BYTES", 4000)
    recorder = Recorder(tmp_path, "env.0")
    for _ in range(5000):
        recorder.record("put", "env[0]", "c", "", time.monotonic_ns())
    recorder.close()
    (part,) = parts(tmp_path)
    assert part.path.stat().st_size < 4200
    assert is_full(part)
    path = merge(tmp_path, tmp_path / "trace.json")
    assert json.loads(path.read_text())["otherData"]["full"] == ["env.0"]


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"env.0-{os.getpid()}.jsonl").symlink_to("/dev/full")
    recorder = record(tmp_path)
    for _ in range(2):
        recorder.record("put", "env[0]", "c", "", time.monotonic_ns())
        recorder.flush()
    recorder.close()
    (message,) = caplog.messages
    assert "env.0-" in message
    assert "can't be written: No space left on device. What follows is not in the trace; the run goes on." in message


def test_a_trace_without_room_is_lost_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(tmp_path / "trace.json", "run")
    unfinished = tmp_path / f"trace.json.{os.getpid()}.tmp"
    unfinished.symlink_to("/dev/full")
    with pytest.raises(RLinfError, match=r"write_trace: can't write '.*trace\.json': No space left on device\. Make room, or"):
        recording.write()
    unfinished.symlink_to("/dev/full")
    recording.end()
    (message,) = caplog.messages
    assert "the trace of this run is lost: " in message
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    recorder.record("put", "env[0]", "before", "", time.monotonic_ns())
    child = os.fork()
    if child == 0:
        recorder.record("put", "env[0]", "child", "", time.monotonic_ns())
        recorder.flush()
        os._exit(0)
    os.waitpid(child, 0)
    recorder.close()
    assert [span.name for span in spans(tmp_path)] == ["before"]


def test_after_its_end_a_recorder_writes_nothing_and_holds_no_file(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    assert str(parts(tmp_path)[0].path) in open_files()
    recorder.close()
    recorder.close()
    recorder.record("put", "env[0]", "late", "", time.monotonic_ns())
    recorder.flush()
    assert list(spans(tmp_path)) == []
    assert str(parts(tmp_path)[0].path) not in open_files()


def open_files() -> list[str]:
    folder = "/proc/self/fd"
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]


def test_a_merged_trace_is_chromes_format(tmp_path: Path) -> None:
    for process, who in (("driver", "driver"), ("env.3", "env[3]")):
        recorder = record(tmp_path, process)
        recorder.call(who, "f", lambda: Outcome(value=None, seconds=0.0)) if who != "driver" else None
        kind, number = ("put", 5) if who == "driver" else ("get", 5)
        recorder.record(kind, who, "c", "'k'", time.monotonic_ns(), sizes=(1, 8), ids=(number,))  # type: ignore[arg-type]
        recorder.close()
    document = json.loads(merge(tmp_path, tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert named == {
        ("process_name", 1, 0): "driver",
        ("thread_name", 1, 0): "rank 0",
        ("process_name", 2, 0): "env",
        ("thread_name", 2, 3000): "rank 3",
    }
    shown = [(e["name"], e["cat"], e["pid"], e["tid"]) for e in events if e["ph"] == "X"]
    assert shown == [("put c", "put", 1, 0), ("f", "call", 2, 3000), ("get c", "get", 2, 3000)]
    start, end = (next(e for e in events if e["ph"] == ph) for ph in ("s", "f"))
    assert start["id"] == end["id"] == "5"
    assert (start["name"], end["name"], start["cat"], end["cat"], end["bp"]) == ("c", "c", "item", "item", "e")
    slices = {e["name"]: e for e in events if e["ph"] == "X"}
    assert slices["put c"]["ts"] <= start["ts"] <= slices["put c"]["ts"] + slices["put c"]["dur"]
    assert slices["get c"]["ts"] <= end["ts"] <= slices["get c"]["ts"] + slices["get c"]["dur"]
    assert min(e["ts"] for e in events if "ts" in e) >= 0


@pytest.mark.parametrize("stopped", [ConfigError("trace", "not one"), KeyboardInterrupt()])
def test_a_trace_that_is_not_finished_leaves_nothing(tmp_path: Path, stopped: BaseException) -> None:
    def broken() -> Iterator[Span]:
        raise stopped
        yield

    with pytest.raises(type(stopped)):
        write(tmp_path / "trace.json", broken(), {"start_ns": 0})
    assert list(tmp_path.iterdir()) == []


SPANS = st.builds(
    Span,
    kind=st.sampled_from(["put", "get", "send", "recv", "lock", "timer"]),
    who=st.sampled_from(["driver", "env[0]", "env[1]", "a.b-c[3]"]),
    thread=st.integers(1, 3),
    name=st.text(max_size=5),
    key=st.text(max_size=5),
    start=st.integers(0, 10**15),
    end=st.integers(10**15, 2 * 10**15),
    waited=st.integers(0, 10**9),
    items=st.integers(0, 5),
    bytes=st.integers(0, 10**12),
    status=st.sampled_from(["ok", "failed"]),
    ids=st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
)


@given(st.lists(SPANS, max_size=8))
def test_a_merged_trace_has_the_same_spans(tmp_path_factory: pytest.TempPathFactory, written: list[Span]) -> None:
    folder = tmp_path_factory.mktemp("parts")
    header = {"format": "rlinf-trace-1", "process": "driver", "pid": 1, "host": "a", "start": 0, "wall_offset": 0}
    lines = [
        [s.kind, s.who, s.thread, s.name, s.key, s.start, s.end, s.waited, s.items, s.bytes, int(s.status == "failed"), s.ids]
        for s in written
    ]
    (folder / "driver-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    assert list(spans(folder)) == written
    assert list(spans(merge(folder, folder / "trace.json"))) == written


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(RLinfError, match=r"no such file\. Run with cluster\.tracer\.enabled=true"):
        list(spans(path))
    recording = Recording(path, "run1")
    with pytest.raises(RLinfError, match=r"The run did not come to its end.*trace\.json\.run1\.parts"):
        list(spans(path))
    assert list(spans(recording.folder)) == []
    recording.end()
    assert list(spans(path)) == []
    assert not recording.folder.exists()
    for text in ("{}", "[]", "no json", '{"otherData": {"format": "another"}}'):
        path.write_text(text)
        with pytest.raises(RLinfError, match="not a trace of the format"):
            list(spans(path))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tracer = {"enabled": True, "path": str(tmp_path / "file" / "trace.json")}
    cluster = Cluster(cluster_cfg={"backend": "local", "tracer": tracer})
    posts = len(OPEN_TRANSPORTS)
    with pytest.raises(ConfigError, match=r"cluster\.tracer\.path: can't write beside"):
        cluster.create_channel("c")
    assert len(OPEN_TRANSPORTS) == posts


def test_a_trace_that_nobody_records_cannot_be_written() -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster, pytest.raises(ConfigError, match=r"tracer\.enabled: it is false"):
        cluster.write_trace()
