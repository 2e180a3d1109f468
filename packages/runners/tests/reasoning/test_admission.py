"""By hand: who is trained on, and how old it may be."""

import pytest

from rlinf.runners.reasoning.generation.admission import GroupReport, Response, admit, assign, wave_size
from rlinf.runners.training.versions import Versions


def report(group: int, *rewards: float, oldest: int | None = 0) -> GroupReport:
    responses = tuple(Response(reward=r, success=r > 0, tokens=3, finish="stop") for r in rewards)
    return GroupReport(group=group, problem=group, responses=responses, oldest=oldest)


def test_the_lag_counts_updates_and_not_optimizer_steps() -> None:
    versions = Versions()
    versions.publish(0, 8, 8)
    versions.publish(24)
    assert [versions.lag(v) for v in (24, 30, 23, 8, 7, 0, -1)] == [0, 0, 1, 1, 2, 2, 3]
    assert versions.lag(None) == 0
    assert versions.state(2) == [8, 24]
    resumed = Versions()
    resumed.publish(*versions.state(2))
    assert [resumed.lag(v) for v in (24, 8, 0)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("max_lag", "admitted", "stale"), [(0, (3,), 3), (1, (2, 3), 2), (2, (0, 1, 2, 3), 0), (9, (0, 1, 2, 3), 0)]
)
def test_what_is_older_than_allowed_is_refused_and_counted(max_lag: int, admitted: tuple[int, ...], stale: int) -> None:
    versions = Versions()
    versions.publish(0, 4, 8)
    reports = [report(3, 1, 0, oldest=8), report(0, 1, 0, oldest=0), report(1, 1, 0, oldest=3), report(2, 1, 0, oldest=4)]
    found = admit(reports, versions, max_lag=max_lag, needed=4, must_vary=False)
    assert (found.admitted, found.stale) == (admitted, stale)


def test_groups_that_agree_are_refused_where_that_is_asked_for() -> None:
    reports = [report(0, 1, 1), report(1, 0, 1), report(2, 0, 0), report(3, 0.5, 0.25), report(4, 0, 1)]
    versions = Versions()
    versions.publish(0)
    free = admit(reports, versions, max_lag=0, needed=5, must_vary=False)
    strict = admit(reports, versions, max_lag=0, needed=2, must_vary=True)
    assert (free.admitted, free.alike) == ((0, 1, 2, 3, 4), 2), "counted, and trained on"
    assert (strict.admitted, strict.alike) == ((1, 3), 2)
    assert free.stale == strict.stale == 0, "they are not too old"
    single = admit([report(0, 1), report(1, 0)], versions, max_lag=0, needed=2, must_vary=False)
    assert single.alike == 0, "one response is compared with nothing"


def test_the_next_wave_is_as_large_as_the_share_that_was_admitted_asks_for() -> None:
    assert wave_size(8, 4, 8, batch=8) == 8
    assert wave_size(8, 7, 8, batch=8) == 2
    assert wave_size(8, 0, 8, batch=8) == 8
    assert wave_size(8, 0, 8, batch=99) == 64, "as if one had been admitted"
    assert wave_size(8, 6, 8, batch=8) == 3


def test_shares_have_as_many_groups_and_nearly_as_many_tokens() -> None:
    assert assign({2: 1, 4: 1, 5: 1, 7: 1, 9: 1}, 2) == {2: 0, 4: 1, 5: 0, 7: 1, 9: 0}
    assert assign({0: 9, 1: 5, 2: 4, 3: 3, 4: 3}, 2) == {0: 0, 1: 1, 2: 1, 3: 0, 4: 1}
    assert assign({0: 100, 1: 1, 2: 1, 3: 1}, 2) == {0: 0, 1: 1, 2: 1, 3: 0}, "the short ones don't all go elsewhere"
    assert assign({6: 7}, 1) == {6: 0}
