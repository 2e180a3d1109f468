from pathlib import Path

import numpy as np
import pytest

from rlinf.core.errors import CheckpointError
from rlinf.runners.checkpoints.checkpoint import write_checkpoint
from rlinf.runners.embodied.evaluation import described, episode_results, headline, summarise
from rlinf.runners.evaluation.command import parse_evaluation

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


def test_a_place_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_1"
    write_checkpoint(folder, lambda part: (part / "model.safetensors").write_bytes(b""), config={}, state={"step": 1})
    (tmp_path / "global_step_1_eval").write_text("a file")
    with pytest.raises(CheckpointError, match=r"global_step_1_eval: the evaluation can't be written there .* Copy the run"):
        parse_evaluation([str(folder)], description="", example="a=1")
