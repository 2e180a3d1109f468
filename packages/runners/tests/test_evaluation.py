import numpy as np
import pytest

from rlinf.runners.evaluation import described, episode_results, headline, summarise

INFO = {
    "episode": {
        "success_once": np.array([True, False, True]),
        "success_at_end": np.array([False, False, True]),
        "return": np.array([1.0, 5.0, 3.0]),
        "episode_len": np.array([4, 5, 6]),
    }
}
ENDED = np.array([True, False, True])


def test_a_task_that_knows_success_is_judged_by_it() -> None:
    found = summarise(episode_results(INFO, ENDED, 10, knows_success=True), "eval/")
    assert found == {
        "eval/success_once": 1.0,
        "eval/success_at_end": 0.5,
        "eval/return": 2.0,
        "eval/episode_len": 5.0,
        "eval/episodes": 2.0,
    }
    assert headline(found) == "eval/success_once"
    assert described(found) == "success 100%"


def test_a_task_that_knows_none_is_judged_by_its_return() -> None:
    results = episode_results(INFO, ENDED, 10, knows_success=False)
    assert [(r.number, r.success_once, r.success_at_end) for r in results] == [(10, None, None), (12, None, None)]
    found = summarise(results, "eval/")
    assert found == {"eval/return": pytest.approx(2.0), "eval/episode_len": 5.0, "eval/episodes": 2.0}
    assert headline(found) == "eval/return"
    assert described(found) == "return 2.00"
