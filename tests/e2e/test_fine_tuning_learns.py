"""Vision-language-action models from demonstrations by imitation to reinforcement learning, as the documentation does it."""

from __future__ import annotations

import json
from typing import Any

import pytest

ONE_PROCESS = ("cluster.backend=local", "cluster.component_placement.actor='0'", "runner.logger.logger_backends=[]")
RUNS = [
    ("openvla_oft", "ppo", ("--episodes=24",), 0.12),
    ("pi0", "ppo", ("--episodes=400", "--speed=0.5", "--noise=0.3"), 0.15),
    ("flow", "fpo", ("--episodes=300", "--noise=0.3"), 0.35),
]
"""A model, an algorithm, the demonstrations that are imitated, and what is added to the success rate at least."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("model", "algorithm", "demonstrations", "gain"), RUNS)
def test_reinforcement_learning_improves_what_imitation_has_learned(
    app: Any, model: str, algorithm: str, demonstrations: tuple[str, ...], gain: float, seed: int
) -> None:
    """On the same 256 initial states; the control is the policy that reinforcement learning starts from."""
    imitation, data = f"tabletop_{model}_sft", app.logs / "demonstrations"
    code, said = app.here("collect.py", "--config-name", imitation, f"--out={data}", *demonstrations)
    assert code == 0, said
    given = (*ONE_PROCESS, f"runner.logger.log_path={app.logs}", f"runner.seed={seed}")
    code, said = app.here("sft.py", "--config-name", imitation, f"data.path={data}", *given)
    assert code == 0, said
    before = json.loads((app.logs / imitation / "summary.json").read_text())
    silent = "env.eval.video_cfg.save_video=false"
    after = app.run(f"tabletop_{model}_{algorithm}", f"runner.ckpt_path={app.logs / imitation}", silent, *given)
    assert after["protocol"] == before["protocol"]
    assert after["eval/success_once"] >= before["eval/success_once"] + gain
