"""What it buys to ask GR00T's backbone once for a decision: `uv run --group bench benchmarks/models_gr00t_latency.py`.

Milliseconds for a chunk of actions in mode "eval", against the naive loop that reads images and prompt again for each denoising
step. The two take turns, so that a busy machine disturbs both alike; the median counts. `--preset base --device cuda --precision
bf16` measures the published sizes, with random weights; nothing is downloaded but the tokenizer, which `--tokenizer` names.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models_pi0_latency import decide
from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.flow import FlowSampling, sample_chain
from rlinf.models.gr00t import GR00TPolicyConfig
from turns import expect_same, medians


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 10], help="denoising steps")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--preset", default="tiny", choices=["tiny", "base"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--tokenizer", default=None, help="a folder; base needs that of Eagle 2.5")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(" rows  steps   once ms   naive ms   ratio\n")
    for steps in given.steps:
        policy = build(given, steps)
        for rows in given.rows:
            obs = observation(rows)
            ways = {"once": partial(decide, policy, obs), "naive": partial(decide_naively, policy, obs)}
            expect_same(ways, 1e-2)
            once, naive = medians(ways, given.repeats).values()
            sys.stdout.write(f"{rows:5d} {steps:6d} {1e3 * once:9.1f} {1e3 * naive:10.1f} {naive / once:7.2f}\n")
            sys.stdout.flush()


def build(given: argparse.Namespace, steps: int) -> Any:
    """The policy for two cameras and seven actions."""
    camera, action = ArraySpec(shape=(224, 224, 3), dtype="uint8"), ArraySpec(shape=(7,), dtype="float32")
    observation = {
        "main_images": camera,
        "wrist_images": camera,
        "states": ArraySpec(shape=(8,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    }
    config = GR00TPolicyConfig(
        preset=given.preset,
        tokenizer_path=given.tokenizer,
        num_action_chunks=4,
        precision=given.precision,
        sampling=FlowSampling(num_steps=steps),
    )
    return config.build(EnvSpec(observation=observation, action=action, max_episode_steps=8), seed=0).to(given.device)


def observation(rows: int) -> dict[str, Any]:
    """Random pictures and one instruction."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2, rows, 224, 224, 3)).astype(np.uint8)
    states = generator.standard_normal((rows, 8)).astype(np.float32)
    tasks = np.array(["open the drawer"] * rows)
    return {"main_images": images[0], "wrist_images": images[1], "states": states, "task_descriptions": tasks}


@torch.no_grad()
def decide_naively(policy: Any, obs: dict[str, Any]) -> Tensor:
    """The same chunk, with all of the network for each step."""
    context = policy._context(obs)
    rows = len(context["states"])

    def field(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        return policy._field(policy._condition(context))(x, time)

    noise = torch.zeros(rows, *policy.noise_shape, device=context["states"].device)
    chain = sample_chain(field, noise, policy.config.sampling, noise_level=0.5, train=False)
    return policy._to_env(chain.action).cpu()


if __name__ == "__main__":
    main()
