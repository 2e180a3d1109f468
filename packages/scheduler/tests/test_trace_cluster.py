"""What a cluster records, the same on both back-ends."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from rlinf.core import gather
from rlinf.core.errors import WorkerError
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf.scheduler.trace import Flow, Span, spans

SECRET = "pa55w0rd"
STEPS = 5
RANKS = 2
STEP_S = 0.02


class Env(Worker):
    def interact(self, observations: Channel, actions: Channel, token: str) -> str:
        with self.worker_timer("episode"):
            for step in range(STEPS):
                item = {"array": np.full(20_000, step, np.float32), "token": token}
                observations.put(item, key=self.rank, weight=1)
                with self.worker_timer("step"):
                    actions.get(key=self.rank)
        self.send(token, "rollout", 0, tag="end")
        return token

    def hang(self, channel: Channel) -> None:
        channel.put("last")
        time.sleep(600.0)


class Rollout(Worker):
    def generate(self, observations: Channel, actions: Channel) -> int:
        for _ in range(STEPS):
            for rank in range(RANKS):
                (item,) = observations.get_batch(1, key=rank)
                time.sleep(STEP_S)
                actions.put(item["token"], key=rank)
        for rank in range(RANKS):
            self.recv("env", rank, tag="end")
        with self.device_lock:
            return 1

    def fail(self, token: str) -> None:
        raise ValueError(token)


def config(backend: str, folder: Path, **more: Any) -> dict[str, Any]:
    tracer = {"enabled": True, "path": str(folder / "trace.json")}
    return {"backend": backend, "virtual_accelerators": {"count": 2}, "timeout_s": 60.0, "tracer": tracer, **more}


def launch(cluster: Cluster) -> tuple[Any, Any]:
    env = Env.create_group().launch(cluster, name="env", placement_strategy=PackedPlacementStrategy(0, 1))
    return env, Rollout.create_group().launch(cluster, name="rollout", placement_strategy=PackedPlacementStrategy(0, 0))


def inside(inner: Span, outer: Span) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_a_run_and_its_flow(backend: str, tmp_path: Path) -> None:
    with Cluster(cluster_cfg=config(backend, tmp_path)) as cluster:
        env, rollout = launch(cluster)
        observations, actions = cluster.create_channel("obs", near="rollout"), cluster.create_channel("act")
        gather(env.interact(observations, actions, SECRET), rollout.generate(observations, actions), timeout=60.0)
        with pytest.raises(WorkerError):
            rollout.fail(SECRET).wait()
        observations.put("left")
        so_far = Flow.from_trace(cluster.write_trace(tmp_path / "so_far.json"))
    assert [path.name for path in tmp_path.iterdir() if "parts" in path.name or "tmp" in path.name] == []
    text = (tmp_path / "trace.json").read_text()
    assert SECRET not in text
    found = list(spans(tmp_path / "trace.json"))
    check_spans(found)
    flow = Flow.from_spans(found)
    check_flow(flow)
    assert so_far == flow
    assert "env → rollout" in flow.describe()
    document = json.loads(text)
    processes = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert processes == {"driver", "env", "rollout"}


def check_spans(found: list[Span]) -> None:
    kinds = Counter((span.kind, span.who) for span in found)
    for rank in range(RANKS):
        who = f"env[{rank}]"
        counts = {kind: kinds[kind, who] for kind in ("call", "put", "get", "send", "timer")}
        assert counts == {"call": 2, "put": STEPS, "get": STEPS, "send": 1, "timer": STEPS + 1}
        (call,) = (span for span in found if span.who == who and span.name == "interact")
        inner = [span for span in found if span.who == who and span.within == "interact"]
        assert len(inner) == 3 * STEPS + 2
        assert all(inside(span, call) and span.thread == call.thread for span in inner)
        assert call.waited == sum(span.waited for span in inner if span.kind != "timer")
        (episode,) = (span for span in inner if span.name == "episode")
        assert sum(inside(span, episode) for span in inner if span.name == "step") == STEPS
    assert kinds["lock", "rollout[0]"] == 1
    assert kinds["recv", "rollout[0]"] == RANKS
    assert [span.status for span in found if span.name == "fail"] == ["failed"]
    for span in found:
        assert 0 <= span.waited <= span.end - span.start
    pairs = Counter(number for span in found for number in span.ids)
    assert Counter(pairs.values()) == {2: 2 * STEPS * RANKS + RANKS, 1: 1}


def check_flow(flow: Flow) -> None:
    calls = {(node.group, node.method): (node.ranks, node.calls, node.failed, node.unfinished) for node in flow.nodes}
    assert calls == {
        ("env", "__init__"): (2, 2, 0, 0),
        ("env", "interact"): (2, 2, 0, 0),
        ("rollout", "__init__"): (1, 1, 0, 0),
        ("rollout", "fail"): (1, 1, 1, 0),
        ("rollout", "generate"): (1, 1, 0, 0),
    }
    (generate,) = (node for node in flow.nodes if node.method == "generate")
    assert generate.worked_s >= RANKS * STEPS * STEP_S
    ends = [(edge.producer, edge.consumer, edge.kind, edge.via, edge.items) for edge in flow.edges]
    assert ends == [
        ("driver", None, "channel", "obs", 1),
        ("env", "rollout", "channel", "obs", STEPS * RANKS),
        ("env", "rollout", "message", "end", RANKS),
        ("rollout", "env", "channel", "act", STEPS * RANKS),
    ]
    obs, act = flow.edges[1], flow.edges[3]
    assert STEPS * RANKS * 80_000 < obs.bytes < STEPS * RANKS * 81_000
    assert (obs.producer_methods, obs.consumer_methods) == (("interact",), ("generate",))
    assert act.get_waited_s > STEPS * 0.1 * STEP_S, "of four times RANKS * STEPS * STEP_S, on an idle machine half"


@pytest.mark.ray
def test_a_killed_worker_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    with Cluster(cluster_cfg=config("ray", tmp_path)) as cluster:
        env, _ = launch(cluster)
        channel = cluster.create_channel("words")
        handle = env.execute_on(0).hang(channel)
        assert channel.get() == "last"
        (written,) = tmp_path.glob("trace.json.*.parts/env.0-*.jsonl")
        until(lambda: '["put"' in written.read_text())
        os.kill(env.worker_infos[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="died"):
            handle.wait()
    found = list(spans(tmp_path / "trace.json"))
    assert [span.status for span in found if span.name == "hang"] == ["unfinished"]
    flow = Flow.from_spans(found)
    (edge,) = flow.edges
    assert (edge.producer, edge.producer_methods, edge.consumer, edge.items) == ("env", ("hang",), "driver", 1)
    assert "1 unfinished" in flow.describe()


def test_nothing_is_recorded_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        channel = cluster.create_channel("c")
        channel.put(1)
        assert type(channel._transport).__name__ == "LocalTransport"
    assert list(tmp_path.iterdir()) == []


def test_the_trace_is_beside_the_logs_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for log_dir, place in ((None, tmp_path), (str(tmp_path / "run"), tmp_path / "run")):
        with Cluster(cluster_cfg={"backend": "local", "log_dir": log_dir, "tracer": {"enabled": True}}) as cluster:
            cluster.create_channel("c").put(1)
        (edge,) = Flow.from_trace(place / "trace.json").edges
        assert (edge.producer, edge.consumer, edge.items) == ("driver", None, 1)
