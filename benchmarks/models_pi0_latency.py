"""What reading the prefix once buys, and what compilation buys.

    uv run --group bench benchmarks/models_pi0_latency.py                  # tiny, on one CPU thread
    uv run --group bench benchmarks/models_pi0_latency.py --compile        # and torch.compile of the denoising step
    uv run --group bench benchmarks/models_pi0_latency.py --device cuda    # a model of π0's size, random weights, bfloat16

On the CPU the naive loop reads images and prompt again at every denoising step, as without a cache one must. On a GPU the plain
path is set against `torch.compile` and against CUDA graphs ("reduce-overhead"). Variants take turns; the median counts.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.flow import FlowSampling, sample_chain
from rlinf.models.pi0 import PI0PolicyConfig
from turns import expect_same, medians

STATES, ACTIONS, STEPS = 8, 7, 10
Work = Callable[[], Tensor]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="observations at once")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="also torch.compile, on the CPU")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for rows in given.rows:
        obs = observation(rows, 32 if given.device == "cpu" else 224)
        works = on_cpu(obs, compiled=given.compile) if given.device == "cpu" else on_gpu(obs)
        expect_same(works, 1e-4 if given.device == "cpu" else 0.1)
        report(rows, medians(works, given.repeats))


def on_cpu(obs: dict[str, Any], *, compiled: bool) -> dict[str, Work]:
    """The tiny policy and the naive loop around it."""
    policy = build("tiny", "fp32", 32)
    works: dict[str, Work] = {"naive": lambda: decide_naively(policy, obs), "prefix once": lambda: decide(policy, obs)}
    if compiled:
        fast = copy.copy(policy)
        fast.enable_torch_compile()
        works["prefix once, compiled"] = lambda: decide(fast, obs)
    return works


def on_gpu(obs: dict[str, Any]) -> dict[str, Work]:
    """One set of weights, three ways of asking."""
    policy = build("base", "bf16", 224).cuda()
    works: dict[str, Work] = {"plain": lambda: decide(policy, obs)}
    for label, mode in (("compiled", "default"), ("CUDA graphs", "reduce-overhead")):
        fast = copy.copy(policy)
        fast.enable_torch_compile(mode)
        works[label] = lambda fast=fast: decide(fast, obs)
    return works


def build(preset: Any, precision: Any, size: int) -> Any:
    """π0 with two cameras."""
    camera = ArraySpec(shape=(size, size, 3), dtype="uint8")
    states = ArraySpec(shape=(STATES,), dtype="float32")
    action = ArraySpec(shape=(ACTIONS,), dtype="float32", low=-np.ones(ACTIONS), high=np.ones(ACTIONS))
    spec = EnvSpec(
        observation={"main_images": camera, "wrist_images": camera, "states": states}, action=action, max_episode_steps=8
    )
    config = PI0PolicyConfig(preset=preset, precision=precision, add_value_head=False, sampling=FlowSampling(num_steps=STEPS))
    return config.build(spec, seed=0).eval()


def observation(rows: int, size: int) -> dict[str, Any]:
    """Random pictures and one instruction."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (2, rows, size, size, 3)).astype(np.uint8)
    states = random.uniform(-1, 1, (rows, STATES)).astype(np.float32)
    text = np.array(["put the bowl in the drawer and close it"] * rows)
    return {"main_images": images[0], "wrist_images": images[1], "states": states, "task_descriptions": text}


def decide(policy: Any, obs: dict[str, Any]) -> Tensor:
    """A chunk, as the policy decides it."""
    return policy.predict_action_batch(obs, "eval").action.cpu()


@torch.no_grad()
def decide_naively(policy: Any, obs: dict[str, Any]) -> Tensor:
    """The same chunk, reading everything again at each denoising step."""
    context = policy.context(obs)

    def field(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        prefix, state = policy.read(context)
        return policy.network.velocity(x, time, state, prefix)

    noise = torch.zeros(len(context["states"]), *policy.noise_shape)
    chain = sample_chain(field, noise, policy.config.sampling, noise_level=0.0, train=False)
    return policy.actions.unnormalize(chain.action[..., :ACTIONS])


def report(rows: int, seconds: Mapping[str, float]) -> None:
    """One line for each variant; the ratio is to the first."""
    base = next(iter(seconds.values()))
    for label, value in seconds.items():
        line = f"{rows:4d} rows  {label:24s} {1e3 * value:9.1f} ms  {rows / value:8.1f} chunks/s  {base / value:5.2f} ×\n"
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
