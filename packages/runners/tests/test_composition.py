from pathlib import Path

import pytest

from rlinf.core.config.provenance import explain
from rlinf.core.errors import ConfigError, UnknownName
from rlinf.runners.composition import compose_recipe, parse_command_line


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text("runner: {max_steps: 10, seed: 1}\nenv: {train: {n: 4}}\n")
    (tmp_path / "child.yaml").write_text("defaults: [base, _self_]\nrunner: {seed: 2}\n")
    return tmp_path


def test_a_recipe_builds_on_another_and_the_command_line_wins(recipes: Path) -> None:
    composed = compose_recipe(recipes, "child", ["runner.max_steps=20", "env.train.new_key=[1,2]"])
    assert composed.data["runner"] == {"max_steps": 20, "seed": 2}
    assert composed.data["env"]["train"] == {"n": 4, "new_key": [1, 2]}


def test_every_value_knows_where_it_came_from(recipes: Path) -> None:
    composed = compose_recipe(recipes, "child", ["runner.max_steps=20"])
    assert explain(composed.data, composed.provenance, "runner.max_steps") == "runner.max_steps = 20  (command line)"
    assert explain(composed.data, composed.provenance, "runner.seed").endswith("(child.yaml)")
    assert explain(composed.data, composed.provenance, "env").endswith("(base.yaml)")


def test_an_unknown_recipe_names_the_nearest(recipes: Path) -> None:
    with pytest.raises(UnknownName, match=r"no recipe 'chld'\. Did you mean 'child'"):
        compose_recipe(recipes, "chld")


@pytest.mark.parametrize("override", ["runner.max_steps", "runner.max_steps=[1", "a=b=c{"])
def test_a_malformed_override_is_a_configuration_error(recipes: Path, override: str) -> None:
    with pytest.raises(ConfigError):
        compose_recipe(recipes, "base", [override])


def test_malformed_yaml_is_a_configuration_error(recipes: Path) -> None:
    (recipes / "broken.yaml").write_text("runner: {max_steps: 1\nx: [")
    with pytest.raises(ConfigError, match="broken"):
        compose_recipe(recipes, "broken")


def test_options_and_overrides_mix(recipes: Path) -> None:
    command = parse_command_line(
        ["runner.seed=5", "--config-name", "base", "--explain", "runner"],
        config_dir=recipes,
        default="child",
        description="",
    )
    assert command.composition.name == "base"
    assert command.composition.data["runner"]["seed"] == 5
    assert command.explain == "runner"
