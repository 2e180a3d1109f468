"""Every recipe is read into types and placed; what it names is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.runners import read_embodied
from rlinf.runners.composition import compose_recipe
from rlinf.runners.reading import resolved
from rlinf.scheduler import Cluster, HybridComponentPlacement

CONFIG = Path(__file__).parents[1] / "apps/embodied/config"
RECIPES = sorted(path.stem for path in CONFIG.glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_valid_and_can_be_placed(recipe: str) -> None:
    cfg = read_embodied(compose_recipe(CONFIG, recipe).data)
    cfg.env.train.init_params.check("env.train")
    assert cfg.runner.experiment_name == recipe
    assert resolved(read_embodied(resolved(cfg))) == resolved(cfg)
    placement = HybridComponentPlacement(cfg, Cluster(cluster_cfg=cfg.cluster))
    assert {"actor", "rollout", "env"} == set(placement.components)
    assert "env[0" in placement.describe()


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 5
