"""Policies from demonstrations by imitation to reinforcement learning, as the documentation does it."""

from __future__ import annotations

import json
from typing import Any

import pytest

ONE_PROCESS = ("cluster.backend=local", "cluster.component_placement.actor='0'", "runner.logger.logger_backends=[]")
MEASURED_WITH = {"metaworld_mt10_ppo": ("cluster.component_placement.env='0'",)}
"""Where the documented numbers are of one env worker."""
RUNS = [
    ("tabletop_openvla_oft_sft", "tabletop_openvla_oft_ppo", ("--episodes=24",), 0.12),
    ("tabletop_openvla_oft_sft", "tabletop_openvla_oft_grpo", ("--episodes=24",), 0.15),
    ("tabletop_openvla_sft", "tabletop_openvla_ppo", ("--episodes=400", "--speed=0.45", "--noise=0.3"), 0.3),
    ("tabletop_pi0_sft", "tabletop_pi0_ppo", ("--episodes=400", "--speed=0.5", "--noise=0.3"), 0.15),
    ("tabletop_pi05_sft", "tabletop_pi05_ppo", ("--episodes=400", "--speed=0.5", "--noise=0.3"), 0.15),
    ("tabletop_flow_sft", "tabletop_flow_ppo", ("--episodes=300", "--noise=0.3"), 0.4),
    ("tabletop_gr00t_sft", "tabletop_gr00t_ppo", ("--episodes=300", "--noise=0.3"), 0.08),
    ("tabletop_flow_sft", "tabletop_flow_fpo", ("--episodes=300", "--noise=0.3"), 0.35),
    ("metaworld_mt10_sft", "metaworld_mt10_ppo", ("--episodes=30", "--noise=0.5", "--labels=expert"), 0.08),
]
"""Recipes of imitation and of reinforcement learning, the demonstrations, and what is added to the success rate at least."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("imitation", "recipe", "demonstrations", "gain"), RUNS)
def test_reinforcement_learning_improves_what_imitation_has_learned(
    app: Any, imitation: str, recipe: str, demonstrations: tuple[str, ...], gain: float, seed: int
) -> None:
    """On the same initial states; the control is the policy that reinforcement learning starts from."""
    data = app.logs / "demonstrations"
    code, said = app.here("collect.py", "--config-name", imitation, f"--out={data}", *demonstrations)
    assert code == 0, said
    given = (*ONE_PROCESS, *MEASURED_WITH.get(recipe, ()), f"runner.logger.log_path={app.logs}", f"runner.seed={seed}")
    code, said = app.here("sft.py", "--config-name", imitation, f"data.path={data}", *given)
    assert code == 0, said
    before = json.loads((app.logs / imitation / "summary.json").read_text())
    silent = "env.eval.video_cfg.save_video=false"
    after = app.run(recipe, f"runner.ckpt_path={app.logs / imitation}", silent, *given)
    assert after["protocol"] == before["protocol"]
    assert after["eval/success_once"] >= before["eval/success_once"] + gain
