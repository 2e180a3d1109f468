"""A policy whose values are written down, and a batch for it, for off-policy algorithms by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rlinf.core.data import LossOutput
from rlinf.core.replay import Transitions

S, A, R = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 2.0, 4.0])
NEXT, GAMMA, GOES_ON = torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0.5**3, 0.5**2, 0.5]), torch.tensor([1.0, 1.0, 0.0])


class Linear(nn.Module):
    """a = m s + noise, with the log-probability of that noise; Qₙ(s, a) = wₙ (s + a)."""

    def __init__(self, mean: float, weights: list[float]) -> None:
        super().__init__()
        self.actor = nn.Parameter(torch.tensor(mean))
        self.q_head = nn.Parameter(torch.tensor(weights))

    def actor_parameters(self) -> list[str]:
        return ["actor"]

    def most_likely_action(self, env_obs: Any) -> Any:
        return (self.actor * env_obs["states"])[:, None]

    def sample_action(self, env_obs: Any, *, generator: Any = None) -> tuple[Any, Any]:
        noise = torch.randn(env_obs["states"].shape, generator=generator)
        return self.most_likely_action(env_obs) + noise[:, None], -0.5 * noise.square().sum(1)

    def q_values(self, env_obs: Any, action: Any) -> Any:
        return (env_obs["states"] + action[:, 0]) * self.q_head


def batch(weight: Any = None, *, action: Any = A[:, None, None]) -> Transitions[Any]:
    """One that goes on, one that was cut after two steps of three, one that ended."""
    return Transitions(
        observation={"states": S[:, None]},
        action=action,
        reward=R,
        observation_next={"states": NEXT[:, None]},
        terminated=GOES_ON == 0,
        discount=GAMMA,
        weight=weight,
    )


def expect_weighed(loss: Callable[[Any], LossOutput[Any]]) -> None:
    """A loss of a batch counts its rows by their weights."""
    alone = [loss(row).total for row in torch.eye(3)]
    torch.testing.assert_close(loss(torch.tensor([0.5, 0.0, 2.0])).total, 0.5 * alone[0] + 2.0 * alone[2])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)
