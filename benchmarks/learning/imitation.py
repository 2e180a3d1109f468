"""Teaching a policy by demonstrations."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from learning.recipe import Recipe
from learning.rollout import TAUGHT
from rlinf.core.capabilities import HasSFTLoss
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.envs.tabletop import Demonstrations, demonstrate


def imitate(recipe: Recipe, policy: Any, *, chunk: int, seed: int) -> float:
    """Trains on what the scripted expert did, in chunks; returns the mean loss of the last tenth of the steps.

    Args:
        recipe: with an `imitation`.
        policy: an `HasSFTLoss` module.
        chunk: K, consecutive actions that are learnt together.
        seed: of demonstrations, their order, and whatever the loss draws.
    """
    how = recipe.imitation
    assert how is not None
    assert isinstance(policy, HasSFTLoss)
    first = TAUGHT + 10_000 * seed
    observation, action, mask = chunks(demonstrate(recipe.env, how.episodes, seed=first, speed=how.speed, noise=how.noise), chunk)
    order = keyed_generator(seed, "imitation")
    generator = torch.Generator().manual_seed(keyed_seed(seed, "imitation-noise"))
    parameters = [p for p in cast("torch.nn.Module", policy).parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=how.lr, weight_decay=0.0)
    losses: list[float] = []
    for step in range(how.steps):
        for group in optimizer.param_groups:
            group["lr"] = how.lr * 0.5 * (1.0 + math.cos(math.pi * step / how.steps))
        rows = order.integers(len(action), size=min(how.batch_size, len(action)))
        seen = {key: values[rows] for key, values in observation.items()}
        found = policy.sft_loss(seen, torch.as_tensor(action[rows]), mask=torch.as_tensor(mask[rows]), generator=generator)
        loss = found.total / found.weight
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-max(1, how.steps // 10) :]))


def chunks(demos: Demonstrations, size: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32], NDArray[np.bool_]]:
    """Every observation up to success with the K actions from there on.

    Returns:
        Observations `[S, *]`, actions `[S, K, A]`, and a mask `[S, K]`, False where the demonstration is over.
    """
    limit = demos.action.shape[1]
    before = cast("NDArray[np.bool_]", np.arange(limit) < demos.length[:, None])
    episode, start = np.nonzero(before)
    steps = start[:, None] + np.arange(size)
    action = demos.action[episode[:, None], np.minimum(steps, limit - 1)]
    return {key: values[episode, start] for key, values in demos.observation.items()}, action, steps < limit
