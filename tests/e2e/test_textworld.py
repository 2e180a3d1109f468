"""Text games: what the library's logic says is what the player reads, and the recipe runs as a user would run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from reasoning_app import ReasoningApp

from rlinf.core.errors import ConfigError
from rlinf.envs.textworld import TextWorld
from rlinf.envs.textworld.games import House

pytest.importorskip("textworld", reason="needs rlinf-envs[textworld], whose dependency jericho is built by a C compiler")
SMALL = (
    "sft.runner={max_steps: 1, steps_per_iteration: 12}",
    "sft.actor.global_batch_size=32",
    "data.train=400",
    "data.validation=32",
    "data.val_problems=8",
    "data.final_problems=8",
)


def test_what_is_seen_is_what_the_library_says() -> None:
    from rlinf.envs.textworld._textworld import Game

    problems = TextWorld(train=4, validation=2).problems("train")
    for problem in problems:
        house: House = problem.row["textworld"]
        game = Game(house)
        assert problem.prompt == house.begins() == f"take {house.wanted}\n{game.look()}\n"
        assert [game.play(command) for command, _ in house.looked_for()] == [answer for _, answer in house.looked_for()]
        assert game.won
        for choice in range(len(house.around)):
            moves, other = house.one_room(choice), Game(house)
            assert [other.play(command) for command, _ in moves] == [answer for _, answer in moves]
            assert other.won == (moves[-1][1] == "taken.")
    game = Game(problems[0].row["textworld"])
    before = game.look()
    assert (game.play("fly away"), game.play("take everything"), game.look()) == ("no.", "no.", before)


def test_splits_share_no_game_and_worked_examples_are_mixed() -> None:
    task = TextWorld(train=200, validation=40)
    train, held_out = task.problems("train"), task.problems("validation")
    assert not {problem.prompt + str(problem.row) for problem in train} & {p.prompt + str(p.row) for p in held_out}
    assert train == TextWorld(train=300, validation=40).problems("train")[:200]
    wins = [problem for problem in train if problem.turns[-1].calls]
    assert all(problem.turns[-1].results[0].text == "taken." for problem in wins)
    assert 60 < len(wins) < 110, "a quarter looks, and a quarter of the others is lucky: 7/16 of 200"
    given_up = [problem for problem in train if problem not in wins]
    assert {(len(problem.turns), problem.turns[-1].text) for problem in given_up} == {(3, "not here")}
    with pytest.raises(ConfigError, match=r"rooms"):
        TextWorld(rooms=5)


def test_the_recipe_runs(tmp_path: Path) -> None:
    app = ReasoningApp(tmp_path, app="agent", recipe=("--config-name", "textworld_grpo"))
    once = ("runner.max_steps=1", "runner.val_check_interval=0")
    app.train(*SMALL, *once, "data.rollout_batch_size=2", "actor.global_batch_size=16")
    (row,) = app.rows().values()
    assert row["rollout/failed"] == 0
    assert 1 <= row["rollout/turns"] <= 15
    assert row["rollout/tool_calls"] > 0
    assert 0 <= app.summary()["eval/accuracy"] < 0.9, "after 12 steps of imitation it has not learned the game"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_to_look(tmp_path: Path, seed: int) -> None:
    """Measured: 39 to 98 %, 35 to 97 % and 27 to 92 %."""
    app = ReasoningApp(tmp_path, app="agent", recipe=("--config-name", "textworld_grpo"))
    app.train(f"runner.seed={seed}")
    assert app.metrics()[0]["eval/accuracy"] <= 0.45
    assert app.summary()["eval/accuracy"] >= 0.85
