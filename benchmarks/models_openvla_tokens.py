"""What the KV cache of OpenVLA buys: `uv run --group bench benchmarks/models_openvla_tokens.py`.

Action tokens per second of the tiny preset, with the cache against the naive loop that reads the whole sequence again for each
token; pictures are embedded once in both. The two take turns, so that a busy machine disturbs both alike; the median counts.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.openvla import OpenVLAPolicyConfig
from turns import expect_same, medians

ACTIONS, TASK = 7, "put the bowl in the drawer and close it"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 8], help="control steps in a decision")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64], help="observations at once")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write("tokens  rows   cached tokens/s   naive tokens/s   ratio\n")
    for chunks in given.chunks:
        policy = build(chunks)
        for rows in given.rows:
            obs, count = observation(rows), chunks * ACTIONS * rows
            ways = {"cached": partial(decide, policy, obs), "naive": partial(decide_naively, policy, obs)}
            expect_same(ways, 0.0)
            cached, naive = medians(ways, given.repeats).values()
            line = f"{chunks * ACTIONS:6d} {rows:5d} {count / cached:17.0f} {count / naive:16.0f} {naive / cached:7.1f}\n"
            sys.stdout.write(line)
            sys.stdout.flush()


def build(chunks: int) -> Any:
    """The tiny policy for seven actions."""
    observation = {
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    }
    action = ArraySpec(shape=(ACTIONS,), dtype="float32", low=-np.ones(ACTIONS), high=np.ones(ACTIONS))
    spec = EnvSpec(observation=observation, action=action, max_episode_steps=8)
    return OpenVLAPolicyConfig(preset="tiny", num_action_chunks=chunks).build(spec, seed=0)


def observation(rows: int) -> dict[str, Any]:
    """Random pictures and one instruction."""
    images = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8)
    return {"main_images": images, "task_descriptions": np.array([TASK] * rows)}


def decide(policy: Any, obs: dict[str, Any]) -> Tensor:
    """The most likely tokens, as the policy writes them."""
    return policy.predict_action_batch(obs, "eval").context["action_tokens"]


@torch.no_grad()
def decide_naively(policy: Any, obs: dict[str, Any]) -> Tensor:
    """The same tokens, reading everything again for each."""
    embedded, mask = policy.embed_context(policy.look(obs))
    tokens: list[Tensor] = []
    for _ in range(policy.chunk[0] * policy.chunk[1]):
        positions = mask.cumsum(1) - 1
        out = policy.vlm.language_model(inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False)
        options = out.logits[:, -1, policy.bins.first : policy.bins.vocabulary]
        tokens.append(options.argmax(-1) + policy.bins.first)
        embedded = torch.cat([embedded, policy.vlm.embed_tokens(tokens[-1][:, None])], dim=1)
        mask = torch.nn.functional.pad(mask, (0, 1), value=True)
    return torch.stack(tokens, dim=1)


if __name__ == "__main__":
    main()
