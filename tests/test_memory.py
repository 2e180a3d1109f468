"""What `rlinf config --memory` says of a recipe's weights is what the model has, and the templates fit their GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners import read_embodied
from rlinf.runners.commands import config
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.memory import ROBOT, weight_sizes

CONFIG = Path(__file__).parents[1] / "apps/embodied/config"
TEMPLATES = ["libero_10_ppo_openvla_oft", "libero_spatial_ppo_pi05", "maniskill_ppo_pi0"]


def model_of(recipe: str, *overrides: str) -> Any:
    return read_embodied(compose_recipe(CONFIG, recipe, overrides).data).actor.model


@pytest.mark.parametrize("recipe", ["tabletop_openvla_oft_ppo", "tabletop_pi0_ppo", "tabletop_gr00t_ppo", "tabletop_cnn_ppo"])
def test_the_weights_are_those_of_the_model_that_is_built(recipe: str) -> None:
    precision = () if "cnn" in recipe else ("actor.model.precision=bf16", "actor.model.lora={rank: 2}")
    larger = ("actor.model.max_state_dim=8", "actor.model.max_action_dim=8") if "pi0" in recipe else ()
    model = model_of(recipe, *precision, *larger)
    real = model.build(ROBOT, seed=0)
    expected = [(p.numel(), p.element_size(), p.requires_grad) for p in real.parameters()]
    assert [(each.elements, each.bytes_each, each.trained) for each in weight_sizes(model)] == expected


@pytest.mark.parametrize("recipe", TEMPLATES)
def test_a_template_leaves_half_of_a_gpu_of_80_gb(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert config([str(CONFIG / f"{recipe}.yaml"), "--memory", "cluster.virtual_accelerators.count=8"]) == 0
    said = capsys.readouterr().out
    (actor,) = re.findall(r"actor, each of 8: .* = ([\d.]+) GiB", said)
    (rollout,) = re.findall(r"rollout, each of 8: weights ([\d.]+) GiB", said)
    billions = float(re.findall(r": ([\d.]+) billion", said)[0])
    assert float(rollout) == pytest.approx(billions * 1e9 * 2 / 2**30, rel=0.05), "bfloat16"
    assert 0 < float(actor) + float(rollout) < 40


def test_all_weights_of_openvla_oft_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """7.5 billion trained in float32 on 8 ranks: 4 bytes a weight, 4 for its gradient, 8 for its moments."""
    more = ("actor.model.lora=null", "cluster.virtual_accelerators.count=8", "actor.fsdp_config.enable_gradient_accumulation=false")
    assert config([str(CONFIG / "libero_10_ppo_openvla_oft.yaml"), "--memory", *more]) == 0
    said = capsys.readouterr().out
    numbers = [float(number) for number in re.findall(r"(?:weights|gradients|optimizer) ([\d.]+)", said)][:3]
    share = 7.5e9 * 4 / 8 / 2**30
    assert numbers == pytest.approx([share, share, 2 * share], rel=0.01)


def test_a_language_model_is_refused() -> None:
    recipe = str(CONFIG.parents[1] / "reasoning/config/grpo_arithmetic.yaml")
    with pytest.raises(ConfigError, match=r"^actor\.model\.model_type: 'causal_lm' is a language model"):
        config([recipe, "--memory"])
