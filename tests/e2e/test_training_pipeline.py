"""The actor trains on rollout epochs while later ones are played: what changes, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf.engines.fsdp import _trainer
from rlinf.runners.embodied import env_worker

RUN = ("cluster.backend=local", "runner.task_type=embodied", "runner.max_steps=2", "env.train.rollout_epoch=3")
PIPELINE = "runner.use_training_pipeline=true"
TWO = "cluster.component_placement={actor: 0-1, rollout: '0', env: 0-1}"
NUMBERS = ("train/loss", "train/grad_norm", "train/approx_kl", "rollout/returns_mean", "env/return")


def learned(app: Any, tiny: list[str], *overrides: str) -> list[dict[str, float]]:
    code, said = app.train_here(*tiny, *RUN, *overrides)
    assert code == 0, said
    return app.metrics("tiny")[:2]


def test_training_begins_before_the_rollout_is_over_and_repeats(app: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of each; the second run in the same order with the same numbers."""
    events: list[str] = []
    shares, step = env_worker.shares, _trainer.FSDPTrainer.step

    def sent(*args: Any, **kwargs: Any) -> Any:
        events.append("sent")
        return shares(*args, **kwargs)

    def stepped(trainer: Any, *args: Any) -> Any:
        events.append("step")
        return step(trainer, *args)

    monkeypatch.setattr(env_worker, "shares", sent)
    monkeypatch.setattr(_trainer.FSDPTrainer, "step", stepped)
    run = (TWO, PIPELINE, "algorithm.update_epoch=2")
    first, order = learned(app, tiny, *run), list(events)
    assert len({row["train/loss"] for row in first}) == 2
    assert first[0]["time/actor/train_on_arrival"] > 0
    assert events.count("sent") == 2 * 2 * 3
    assert events.count("step") == 2 * 2 * (6 + 6), "as many optimizer steps as without, on each rank"
    iteration = order[: len(order) // 2]
    assert iteration.index("step") < len(iteration) - 1 - iteration[::-1].index("sent")
    events.clear()
    second = learned(app, tiny, *run)
    assert events == order
    assert [[row[name] for name in NUMBERS] for row in second] == [[row[name] for name in NUMBERS] for row in first]


def test_what_does_not_depend_on_the_order_is_as_without(app: Any, tiny: list[str]) -> None:
    """Steps too small to change a number, one for each rollout epoch, and advantages that nothing is taken off."""
    still = (
        "actor.optim.lr=1e-30",
        "actor.global_batch_size=80",
        "algorithm.update_epoch=1",
        "algorithm.normalize_advantages=false",
    )
    plain, piped = (learned(app, tiny, *still, *pipeline) for pipeline in ((), (PIPELINE,)))
    for one, other in zip(plain, piped, strict=True):
        for name in (
            "train/loss",
            "train/policy_loss",
            "train/value_loss",
            "rollout/rewards",
            "rollout/returns_mean",
            "env/return",
        ):
            assert other[name] == pytest.approx(one[name], rel=1e-5), name
    assert plain[0]["train/policy_loss"] != pytest.approx(0, abs=1e-3)
