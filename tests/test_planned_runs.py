"""A run whose placement the planner chooses is held to the same rules as one that is placed by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError
from rlinf.runners import read_embodied, read_reasoning
from rlinf.runners.commands import run_recipe
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.paths import absolute_paths
from rlinf.scheduler.planner import Workload

APPS = Path(__file__).parents[1] / "apps"
RECIPE = APPS / "embodied/config/cartpole_ppo.yaml"
AUTO = "cluster.component_placement=auto"


def profile(folder: Path, *components: str) -> str:
    found = {name: {"items": 1, "costs": {"1": {"item_s": 1.0}}} for name in components}
    return str(Workload.of({"components": found, "loops": [], "channels": []}).write(folder / "profile.json"))


def started(folder: Path, *components: str) -> None:
    overrides = [AUTO, f"cluster.planner.profile={profile(folder, *components)}", "cluster.backend=local"]
    run_recipe(compose_recipe(RECIPE.parent, RECIPE.stem, [*overrides, f"runner.logger.log_path={folder}/logs"]))


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (("actor", "rollout"), r"placement\.env: by cluster\.planner\.profile auto placed actor, rollout: .* is not placed\."),
        (("actor", "rollout", "env", "reward"), r"placement\.reward: .*: this run has no such component\. Profile this recipe"),
    ],
)
def test_a_profile_of_another_run_is_refused_before_a_worker_starts(
    tmp_path: Path, components: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        started(tmp_path, *components)
    assert not (tmp_path / "logs").exists()


def test_the_command_refuses_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = profile(tmp_path, "actor", "rollout", "env", "reward")
    assert main(["plan", str(RECIPE), "--profile", other]) == ConfigError.exit_code
    assert "the profile has actor, rollout, env, reward, and the recipe places no reward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("app", "recipe", "own", "planner"),
    [
        ("embodied", "cartpole_ppo", "rollout.pipeline_stage_num=2", "stages=2"),
        ("embodied", "pushcube_async_ppo", "rollout.max_lag=2", "max_lag=2"),
        ("reasoning", "grpo_arithmetic_async", "rollout.max_lag=2", "max_lag=2"),
    ],
)
def test_the_planner_plans_the_run_as_it_will_be(app: str, recipe: str, own: str, planner: str) -> None:
    read: Any = {"embodied": read_embodied, "reasoning": read_reasoning}[app]

    def composed(*overrides: str) -> Any:
        return read(compose_recipe(APPS / app / "config", recipe, [own, *overrides]).data)

    key, value = planner.split("=")
    message = rf"^cluster\.planner\.{key}: the planner would place a run with \d, and {own.split('=')[0]} is 2\. Set it to 2\."
    with pytest.raises(ConfigError, match=message):
        composed(AUTO)
    composed(AUTO, f"cluster.planner.{key}={value}")
    composed()


def test_a_planner_that_is_no_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.planner: expected a section, found 'profile\.json'"):
        read_embodied(compose_recipe(RECIPE.parent, RECIPE.stem, [AUTO, "cluster.planner=profile.json"]).data)


def test_a_checkpoint_finds_the_profile_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile(tmp_path, "actor")
    assert absolute_paths({"planner": {"profile": "profile.json"}}) == {"planner": {"profile": os.path.abspath("profile.json")}}
