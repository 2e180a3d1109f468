"""Films of what was not solved: whose there are, and what they are called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlinf.core.evaluation import EpisodeKey, EpisodeProtocol, EpisodeResult, EvalReport
from rlinf.runners.embodied.evaluation import EmbodiedEvaluator

ALIKE = (
    "pick up the black bowl on the stove and put it on the plate",
    "pick up the black bowl on the stove and put it away",
)


class Done:
    label = "films"

    def __init__(self, found: Any) -> None:
        self.found = found

    def wait(self, timeout: float | None = None) -> Any:
        return self.found

    def done(self) -> bool:
        return True


def test_tasks_that_begin_alike_have_a_film_each(tmp_path: Path) -> None:
    protocol = EpisodeProtocol(env="toy", tasks=ALIKE, init_ids=(0,))
    keys = [EpisodeKey(number=number, task=task, init_id=0, seed=0) for number, task in enumerate(ALIKE)]
    results = tuple(
        EpisodeResult(episode=key, task=key.task, success_once=False, success_at_end=False, episode_return=0.0, episode_len=1)
        for key in keys
    )

    def film(protocol: Any, films: Any, *channels: Any) -> Done:
        for _, file in films:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).touch()
        return Done([[result for result in results if result.episode in dict(films)]])

    cfg: Any = SimpleNamespace(runner=SimpleNamespace(timeout_s=1.0), env=SimpleNamespace(eval=SimpleNamespace(init_params={})))
    rollout: Any = SimpleNamespace(evaluate=lambda *given: Done([None]))
    env: Any = SimpleNamespace(film=film)
    channel: Any = None
    evaluator = EmbodiedEvaluator(rollout, env, requests=channel, answers=channel, cfg=cfg)
    films = evaluator.film_failures(EvalReport(protocol=protocol, results=results), tmp_path / "failures", 2)
    assert len(set(films)) == 2
    assert sorted(films) == sorted((tmp_path / "failures").iterdir())
