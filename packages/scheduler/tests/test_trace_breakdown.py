"""Where a step's time went, worked out by hand, and the page that shows it."""

import json
import re
from pathlib import Path

import pytest

from rlinf.core.errors import RLinfError
from rlinf.scheduler.planner import Machine, Options, Slot, Workload
from rlinf.scheduler.planner.timeline import write_trace
from rlinf.scheduler.trace import Span
from rlinf.scheduler.trace.breakdown import Breakdown
from rlinf.scheduler.trace.chrome import write
from rlinf.scheduler.trace.commands import trace
from rlinf.scheduler.trace.reading import spans

MS = 1_000_000
STEP = 100


def step(begin: int, number: int) -> list[Span]:
    """100 ms: 10 between calls, 50 of env, of which rollout decides for 20, then 40 of training, of which 5 unpack and 5 wait."""

    def span(kind: str, who: str, name: str, start: int, end: int, waited: int = 0, ids: tuple[int, ...] = ()) -> Span:
        return Span(
            kind=kind,  # pyright: ignore[reportArgumentType]
            who=who,
            thread=1,
            name=name,
            within="" if kind == "call" else "any",
            start=(begin + start) * MS,
            end=(begin + end) * MS,
            waited=waited * MS,
            items=len(ids),
            ids=ids,
        )

    request, answer, rows = 3 * number + 1, 3 * number + 2, 3 * number + 3
    return [
        span("call", "env[0]", "interact", 10, 60, 20),
        span("put", "env[0]", "requests", 30, 30, ids=(request,)),
        span("get", "env[0]", "answers", 30, 50, 20, (answer,)),
        span("put", "env[0]", "rows", 60, 60, ids=(rows,)),
        span("call", "rollout[0]", "decide", 10, 50, 20),
        span("get", "rollout[0]", "requests", 10, 30, 20, (request,)),
        span("put", "rollout[0]", "answers", 50, 50, ids=(answer,)),
        span("call", "actor[0]", "train", 10, 100, 55),
        span("get", "actor[0]", "rows", 10, 65, 50, (rows,)),
        span("lock", "actor[0]", "device 0", 65, 70, 5),
    ]


RUN = [span for number in range(4) for span in step(number * STEP, number)]


def test_shares_of_a_step() -> None:
    found = Breakdown.of(RUN, source="by hand")
    assert found.step_s == pytest.approx((0.1, 0.1, 0.1))
    shares = {(share.group, share.doing): round(1000 * share.seconds, 6) for share in found.shares}
    assert shares == {
        ("actor", "is not called"): 10,
        ("actor", "waits for env (channel rows)"): 50,
        ("actor", "waits for device 0"): 5,
        ("actor", "works"): 35,
        ("env", "is not called"): 50,
        ("env", "waits for rollout (channel answers)"): 20,
        ("env", "works"): 30,
        ("rollout", "is not called"): 60,
        ("rollout", "waits for env (channel requests)"): 20,
        ("rollout", "works"): 20,
    }


def test_the_critical_path_goes_through_those_who_were_waited_for() -> None:
    found = Breakdown.of(RUN, source="by hand")
    legs = {leg.what: 1000 * leg.seconds for leg in found.path}
    assert sum(legs.values()) == pytest.approx(100)
    by_hand = {
        "actor.train": 30,  # after the lock
        "actor waits for device 0": 5,  # nobody's call ended meanwhile
        "env → actor (channel rows)": 5,
        "env.interact": 30,  # 10 before the answer came, 20 before the request
        "rollout.decide": 20,
        "between calls": 10,
    }
    assert {what: milliseconds for what, milliseconds in legs.items() if milliseconds > 0.01} == pytest.approx(by_hand, abs=1e-3)


def test_a_handed_over_device_is_on_the_path() -> None:
    run = [
        Span(kind=kind, who=who, thread=1, name=name, start=(at + start) * MS, end=(at + end) * MS, waited=waited * MS)  # pyright: ignore[reportArgumentType]
        for at in (0, 100, 200, 300)
        for kind, who, name, start, end, waited in (
            ("call", "rollout[0]", "generate", 0, 60, 0),
            ("call", "actor[0]", "train", 0, 100, 60),
            ("lock", "actor[0]", "device 0", 0, 60, 60),
        )
    ]
    legs = {leg.what: round(1000 * leg.seconds) for leg in Breakdown.of(run, source="by hand").path if leg.seconds > 1e-4}
    assert legs == {"actor.train": 40, "rollout.generate": 60}


def test_a_run_of_one_step_is_refused() -> None:
    with pytest.raises(RLinfError, match=r"trace 'here': found 1 steps, expected at least 3"):
        Breakdown.of(step(0, 0), source="here")


def page_data(path: Path) -> list[dict[str, object]]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found.group(1))


def test_one_page_shows_a_measured_and_a_predicted_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "trace.json", RUN, {"start_ns": 0})
    components = {"env": {"items": 1, "costs": {"1": {"item_s": 0.05}}}, "actor": {"items": 1, "costs": {"1": {"item_s": 0.04}}}}
    workload = Workload.of({"components": components, "channels": [{"producer": "env", "consumer": "actor", "whole": True}]})
    layout = {"env": Slot(0, 1), "actor": Slot(1, 1)}
    predicted = write_trace(workload, Machine(devices=2), layout, Options(), tmp_path / "predicted.json")
    assert Breakdown.of(spans(predicted), source=predicted).step_s == pytest.approx([0.09] * 3)

    assert trace(["open", str(tmp_path), str(predicted), "--no-browser"]) == 0
    page = tmp_path / "timeline.html"
    assert f"timeline written to {page}" in capsys.readouterr().out
    assert not re.search(r"https?://|src=|href=", page.read_text(encoding="utf-8"))  # nothing from outside
    one, two = page_data(page)
    assert one["rows"] == ["actor[0]", "env[0]", "rollout[0]"]
    assert one["steps"] == pytest.approx([0, 100_000, 200_000, 300_000])  # microseconds from the end of the first step
    assert "actor.train" in str(one["said"])
    assert two["steps"] == pytest.approx([0, 90_000, 180_000, 270_000])


def test_a_name_can_not_end_the_data_of_the_page(tmp_path: Path) -> None:
    run = [span for number in range(3) for span in step(number * STEP, number)]
    run.append(Span(kind="call", who="env[0]", thread=1, name="</script><b>", start=0, end=MS))
    target = write(tmp_path / "trace.json", run, {"start_ns": 0})
    trace(["open", str(target), "--html", str(tmp_path / "page.html"), "--no-browser"])
    (one,) = page_data(tmp_path / "page.html")
    assert "</script><b>" in one["names"]  # pyright: ignore[reportOperatorIssue]
