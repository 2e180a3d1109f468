from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.evaluation import (
    EpisodeProtocol,
    EpisodeResult,
    EvalProtocol,
    EvalReport,
    Mean,
    ProblemProtocol,
    ProblemResult,
    Rate,
    RealTimeChunking,
    pass_at_k,
    t_interval,
    wilson_interval,
)
from rlinf.core.evaluation.intervals import t_quantile

FIELDS = {"env": "tabletop/slots rgb 32", "tasks": ("red", "blue"), "init_ids": (0, 1, 2), "max_episode_steps": 8}
OTHER = {
    "env": {"env_type": "tabletop", "init_params": {"image_size": 64}},
    "tasks": ("blue", "red"),
    "init_ids": (0, 1),
    "seeds": (1,),
    "max_episode_steps": 9,
    "initial_states": "seed",
    "ignore_terminations": True,
    "mode": "train",
    "success": "at_end",
    "real_time_chunking": RealTimeChunking(delay=1, execution_horizon=2, guidance=False),
    "model": {"num_action_chunks": 1},
}
ASKED = {"data": {"type": "arithmetic"}, "problems": (0, 1, 2), "sampling": {"temperature": 0.0}, "reward": {"success": 1.0}}
OTHERWISE = {
    "agent": {"workflow_type": "tools"},
    "data": {"type": "countdown"},
    "split": "test",
    "problems": (0, 1),
    "samples": 2,
    "sampling": {"temperature": 1.0},
    "reward": {"success": 0.5},
    "model": {"precision": "bf16"},
}


def protocol(**changes):
    return EpisodeProtocol(**{**FIELDS, **changes})


def asked(**changes):
    return ProblemProtocol(**{**ASKED, **changes})


def result(episode, solved=True, at_end=True):
    task = episode.task
    return EpisodeResult(episode=episode, task=task, success_once=solved, success_at_end=at_end, episode_return=1.5, episode_len=3)


def answered(problem, *right):
    finish = tuple("stop" if r else "length" for r in right)
    return ProblemResult(
        problem=problem, success=right, reward=tuple(map(float, right)), tokens=tuple(4 + r for r in right), finish=finish
    )


def test_the_hash_is_pinned():
    """A change of these numbers makes all published numbers incomparable: it needs a new format, and a reason."""
    assert (protocol().hash, asked().hash) == ("27152691766d", "047dc9f5b415")


@pytest.mark.parametrize(
    ("make", "cls", "other", "free"),
    [(protocol, EpisodeProtocol, OTHER, set()), (asked, ProblemProtocol, OTHERWISE, {"pass_k"})],
)
def test_each_field_changes_the_hash(make, cls, other, free):
    assert set(other) | free == {field.name for field in dataclasses.fields(cls)}
    hashes = [make(**{name: value}).hash for name, value in other.items()] + [make().hash]
    assert len(set(hashes)) == len(other) + 1


def test_the_hash_knows_types_and_kinds_and_not_what_is_reported():
    assert protocol(tasks=(0, 1)).hash != protocol(tasks=("0", "1")).hash
    assert asked(samples=4, pass_k=(1, 4)).hash == asked(samples=4).hash


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_hash_is_the_same_in_another_process_and_another_order(hash_seed):
    fields = dict(reversed(protocol().to_dict().items()))
    fields.pop("hash")
    code = "import json, sys; from rlinf.core.evaluation import EvalProtocol; p = EvalProtocol.from_dict(json.load(sys.stdin)); "
    code += "print(p.hash, *(e.env_seed for e in p.work_list()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(fields),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == [protocol().hash, *(str(e.env_seed) for e in protocol().work_list())]


@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9))
def test_the_work_list_has_everything_once_however_it_is_shared(tasks, inits, seeds, workers):
    plan = protocol(tasks=tuple(range(tasks)), init_ids=tuple(range(inits)), seeds=tuple(range(seeds)))
    lines = plan.work_list()
    assert [line.number for line in lines] == list(range(plan.to_dict()["episodes"]))
    assert {(e.task, e.init_id, e.seed) for e in lines} == {
        (t, i, s) for t in (range(tasks) if tasks else [None]) for i in range(inits) for s in range(seeds)
    }
    shares = [line for rank in range(workers) for line in lines[rank::workers]]
    assert sorted(shares, key=lambda line: line.number) == list(lines)


def test_an_episodes_seed_depends_on_what_it_is_and_not_on_where_it_stands():
    full, part = protocol(seeds=(0, 1)).work_list(), protocol(tasks=("blue",), init_ids=(2,)).work_list()
    assert full[5].env_seed == part[0].env_seed
    assert len({line.env_seed for line in full}) == len(full)
    assert all(0 <= line.env_seed < 2**31 for line in full)
    assert protocol(tasks=()).work_list()[1].words == (1,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_episode_steps": 0}, "max_episode_steps: expected at least 1, found 0"),
        ({"init_ids": ()}, "init_ids: there is none"),
        ({"seeds": ()}, "seeds: there is none"),
        ({"seeds": (1, 1)}, "seeds: 1 is there more than once. Each is played exactly once; name each once."),
        ({"init_ids": (1, 1)}, "init_ids: 1 is there more than once"),
        ({"tasks": ("red", "red")}, "tasks: red is there more than once"),
        ({"init_ids": (-1,)}, "init_ids: expected numbers from 0, found -1"),
    ],
)
def test_wrong_protocols(changes, message):
    with pytest.raises(ConfigError, match=message):
        protocol(**changes)


@pytest.mark.parametrize(
    ("delay", "horizon", "message"),
    [
        (-1, 2, "delay: expected at least 0, found -1"),
        (0, 0, "execution_horizon: expected at least 1 and delay = 0, found 0"),
        (3, 2, "execution_horizon: expected at least 1 and delay = 3, found 2"),
    ],
)
def test_wrong_times(delay, horizon, message):
    with pytest.raises(ConfigError, match=message):
        RealTimeChunking(delay=delay, execution_horizon=horizon)


def test_a_chunk_must_last_until_the_next_one_is_there():
    timing = RealTimeChunking(delay=2, execution_horizon=3)
    timing.expect_fitting(5, "here")
    with pytest.raises(ConfigError, match=r"here\.execution_horizon: 3, and with delay 2 a chunk of 4 steps ends before"):
        timing.expect_fitting(4, "here")


def test_wrong_problems():
    with pytest.raises(ConfigError, match="problems: there is none"):
        asked(problems=())
    with pytest.raises(ConfigError, match="pass_k: expected values from 1 to samples = 2, found 3"):
        asked(samples=2, pass_k=(1, 3))
    with pytest.raises(ConfigError, match=r"^samples: expected at least 1, found 0"):
        asked(samples=0, pass_k=(1,))


@pytest.mark.parametrize("plan", [protocol(), protocol(**OTHER), protocol(init_ids=(0,)), asked(), asked(problems=(0, 2))])
def test_a_protocol_comes_back_from_json(plan):
    assert EvalProtocol.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_numbers_from_0_on_are_written_as_one():
    assert protocol().to_dict()["init_ids"] == 3
    assert EvalProtocol.from_dict({**FIELDS, "init_ids": 3}) == protocol()


def test_a_changed_protocol_is_noticed():
    data = protocol().to_dict()
    with pytest.raises(ConfigError, match=r"protocol\.hash: the fields give .* changed by hand"):
        EvalProtocol.from_dict({**data, "max_episode_steps": 9})
    with pytest.raises(ConfigError, match=r"protocol\.max_episode_stps: unknown key\. Did you mean 'max_episode_steps'"):
        EvalProtocol.from_dict({**FIELDS, "max_episode_stps": 9})
    with pytest.raises(ConfigError, match=r"protocol\.kind: expected one of episodes, problems, found 'games'"):
        EvalProtocol.from_dict({**data, "kind": "games"})


def test_report(tmp_path):
    lines = protocol().work_list()
    report = EvalReport(
        protocol=protocol(), results=tuple(result(e, e.number in (0, 4, 5), e.number == 4) for e in reversed(lines))
    )
    assert [r.episode for r in report.results] == list(lines)
    assert (report.total.n, report.total.successes, report.total.rate) == (6, 3, 0.5)
    assert report.means["success_once"] == 0.5
    report.write(tmp_path / "new" / "eval.json")
    assert EvalReport.load(tmp_path / "new" / "eval.json") == report
    written = json.loads((tmp_path / "new" / "eval.json").read_text())
    assert written["protocol"]["hash"] == protocol().hash
    assert written["success"]["wilson_95"] == [report.total.low, report.total.high]
    assert [(task["task"], task["successes"]) for task in written["tasks"]] == [("red", 1), ("blue", 2)]
    assert str(report) == f"success_once 50.0% [18.8%, 81.2%] of 6 episodes (protocol {protocol().hash})"


def test_what_is_written_beside_comes_first(tmp_path):
    report = EvalReport(protocol=asked(), results=tuple(answered(i, True) for i in range(3)))
    report.write(tmp_path / "summary.json", {"experiment": "one", "seed": 3})
    assert list(json.loads((tmp_path / "summary.json").read_text()))[:2] == ["experiment", "seed"]
    assert EvalReport.load(tmp_path / "summary.json") == report


def test_problems_by_hand():
    results = (answered(2, True, True), answered(0, True, False), answered(1, False, False))
    report = EvalReport(protocol=asked(samples=2, pass_k=(1, 2)), results=results)
    assert [r.problem for r in report.results] == [0, 1, 2]
    assert report.means == pytest.approx(
        {"accuracy": 0.5, "response_length": 4.5, "truncated": 0.5, "pass@1": 0.5, "pass@2": 2 / 3}
    )
    assert (report.total.n, report.total.successes) == (3, 1.5), "the interval is that of problems and not of responses"
    assert report.scalars()["eval/problems"] == 3


@pytest.mark.parametrize(("samples", "right"), [(5, 0), (5, 2), (5, 5), (4, 1)])
def test_pass_at_k_counts_the_subsets_that_hold_a_right_one(samples, right):
    for k in range(1, samples + 1):
        subsets = list(combinations(range(samples), k))
        solved = sum(any(member < right for member in subset) for subset in subsets)
        assert pass_at_k(samples, right, k) == pytest.approx(solved / len(subsets))


def test_a_task_that_knows_no_success_is_judged_by_its_return():
    plan = protocol(tasks=())
    results = tuple(dataclasses.replace(result(e), success_once=None, success_at_end=None) for e in plan.work_list())
    report = EvalReport(protocol=plan, results=results)
    assert (report.metric, report.total) == ("return", None)
    assert report.means == {"return": 1.5, "episode_len": 3.0}
    assert str(report).startswith("return 1.50 [1.50, 1.50] of 3 episodes")


def test_success_at_the_end_is_another_rate():
    plan = protocol(success="at_end")
    report = EvalReport(protocol=plan, results=tuple(result(e, True, e.number == 4) for e in plan.work_list()))
    assert report.total.successes == 1


def test_a_report_with_an_episode_too_few_or_too_many_is_refused():
    lines = protocol().work_list()
    for results, message in [
        (lines[1:], r"missing \[0\]"),
        ((*lines, lines[2]), r"twice \[2\]"),
        (protocol(init_ids=(0, 1, 7)).work_list(), r"missing \[2, 5\].*not of this protocol \[2, 5\]"),
    ]:
        with pytest.raises(RLinfError, match=message):
            EvalReport(protocol=protocol(), results=tuple(result(e) for e in results))


def test_a_file_that_is_no_report(tmp_path):
    for text in ("[", "{}", "[]"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ConfigError, match="not the report of an evaluation"):
            EvalReport.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (0, 0, 0.0, 1.0)],
)
def test_wilson_interval(successes, n, low, high):
    """The fourth line is the example in Newcombe, "Two-sided confidence intervals for the single proportion" (1998)."""
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 400), st.data())
def test_the_interval_holds_the_rate_and_mirrors(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n + 1e-12
    assert k / n - 1e-12 <= high <= 1
    assert wilson_interval(n - k, n) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423), (120, 1.9799), (100_000, 1.9600)]
)
def test_student_by_his_table(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=6e-5)
    assert t_quantile(0.5, freedom) == 0.0


def test_the_interval_of_a_mean():
    """Of 1, 2, 3, 4, 5: the deviation is √2.5, and half the interval 2.7764 √(2.5 / 5)."""
    assert t_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - 1.9633, 3 + 1.9633), abs=1e-4)
    assert t_interval([2.0]) == (-math.inf, math.inf)
    assert t_interval([2.0, 2.0]) == (2.0, 2.0)
    assert json.loads(json.dumps(Mean.of([2.0]).to_dict())) == {"n": 1, "mean": 2.0, "t_95": None}
    assert math.isnan(Mean.of([]).mean)


def test_the_interval_of_a_mean_holds_it_as_often_as_it_says():
    """2000 samples of five numbers from N(0, 1): 95 % ± four standard errors."""
    held = [low <= 0 <= high for low, high in map(t_interval, np.random.default_rng(0).normal(size=(2000, 5)).tolist())]
    assert 0.93 < sum(held) / 2000 < 0.97


def test_rows_of_tasks_and_of_all():
    lines = protocol().work_list()
    report = EvalReport(protocol=protocol(), results=tuple(result(e, e.number in (0, 4, 5), False) for e in lines))
    assert [(row.name, row.n, row.judged.rate) for row in report.rows] == [("red", 3, 1 / 3), ("blue", 3, 2 / 3), ("all", 6, 0.5)]
    nothing = {"success_once": None, "success_at_end": None}
    unknown = [dataclasses.replace(r, **nothing, episode_return=float(r.episode.number)) for r in report.results]
    returns = EvalReport(protocol=protocol(), results=tuple(unknown))
    assert [(row.name, row.judged.mean) for row in returns.rows] == [("red", 1.0), ("blue", 4.0), ("all", 2.5)]
    assert returns.rows[-1].judged == Mean.of([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert returns.to_dict()["return"]["t_95"] == list(t_interval(range(6)))
    assert [task["mean"] for task in returns.to_dict()["tasks"]] == [row.judged.mean for row in returns.rows[:2]]
    assert "return 2.50 [0.54, 4.46] of 6 episodes" in str(returns)


def test_tasks_that_seeds_drew_are_in_the_order_of_their_numbers():
    drawn = EpisodeProtocol(env="e", init_ids=(0, 1, 2), initial_states="seed")
    results = tuple(dataclasses.replace(result(e, True, True), task=2 - e.number) for e in drawn.work_list())
    assert [row.name for row in EvalReport(protocol=drawn, results=results).rows] == ["0", "1", "2", "all"]
    asked = dataclasses.replace(drawn, init_ids=(0,), tasks=(2, 0))
    results = tuple(result(e, True, True) for e in asked.work_list())
    assert [row.name for row in EvalReport(protocol=asked, results=results).rows] == ["2", "0", "all"]


def test_numbered_tasks_are_called_by_their_names(tmp_path):
    numbered = dataclasses.replace(protocol(), tasks=(0, 7))
    results = tuple(result(e, True, True) for e in numbered.work_list())
    report = EvalReport(protocol=numbered, results=results, names={0: "reach", 3: "push"})
    assert [row.name for row in report.rows] == ["0 reach", "7", "all"]
    assert [task.get("name") for task in report.to_dict()["tasks"]] == ["reach", None]
    report.write(tmp_path / "summary.json")
    loaded = EvalReport.load(tmp_path / "summary.json")
    assert (loaded, [row.name for row in loaded.rows]) == (report, ["0 reach", "7", "all"])


def test_impossible_counts():
    with pytest.raises(RLinfError, match="found 4"):
        wilson_interval(4, 3)
    assert Rate.of([]).rate != Rate.of([]).rate
