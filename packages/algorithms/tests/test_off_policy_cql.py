"""CQL by name: its losses beside the formulas of the paper, on a policy whose values are written down."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_cases import GAMMA, GOES_ON, NEXT, A, Linear, R, S, batch, expect_weighed, seeded
from torch import nn

from rlinf.algorithms.off_policy import CQL, SAC
from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Learner
from rlinf.core.registry import OBJECTIVES

BOX = ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -2.0, np.float32), high=np.full(1, 3.0, np.float32))
ALPHA = {"alpha": math.log(0.2)}


class Curved(Linear):
    """Qₙ(s, a) = wₙ s a², so that actions far away are overvalued."""

    def q_values(self, env_obs: Any, action: Any) -> Any:
        return env_obs["states"] * action[:, 0].square() * self.q_head


def learner(spec: ArraySpec = BOX, **free: float) -> Learner:
    parameters = {name: nn.Parameter(torch.tensor(value)) for name, value in (ALPHA | free).items()}
    return Learner(policy=Curved(0.5, [0.1, 0.2]), target=Curved(9.0, [0.3, 0.4]), parameters=parameters, action=spec)


def by_hand(samples: int, temperature: float) -> tuple[Any, Any]:
    """Target y `[B]` and penalty `[B, N]` of eq. 4 and app. F, sample by sample, with what the objective draws in its order."""
    generator, w = seeded(), torch.tensor([0.1, 0.2])
    noise = torch.randn(3, 1, generator=generator)[:, 0]
    y = R + GAMMA * GOES_ON * 0.3 * NEXT * (0.5 * NEXT + noise).square()
    noise = torch.randn(3 * samples, 1, generator=generator).reshape(3, samples)
    even = -2.0 + 5.0 * torch.rand(3 * samples, 1, 1, generator=generator).reshape(3, samples)
    penalty = torch.empty(3, 2)
    for row in range(3):
        own = 0.5 * S[row] + noise[row]
        for n in range(2):
            corrected = [math.exp(float(w[n] * S[row] * a**2 + math.log(5.0)) / temperature) for a in even[row]]
            corrected += [
                math.exp(float(w[n] * S[row] * a**2 + 0.5 * e**2) / temperature) for a, e in zip(own, noise[row], strict=True)
            ]
            penalty[row, n] = temperature * math.log(sum(corrected) / (2 * samples)) - w[n] * S[row] * A[row] ** 2
    return y, penalty


def test_it_has_its_name_and_trains_what_sac_trains() -> None:
    objective = OBJECTIVES.build("cql", {}, place="algorithm")
    assert isinstance(objective, CQL)
    assert objective.trained(Curved(0.0, [1.0])) == SAC().trained(Curved(0.0, [1.0]))
    assert (objective.due(1), set(objective.parameters())) == (("critic", "actor", "alpha"), {"alpha"})
    trained = CQL(cql_gap=1.0, cql_alpha=2.0)
    assert trained.due(1) == ("critic", "cql_alpha", "actor", "alpha")
    assert trained.parameters()["cql_alpha"] == pytest.approx(math.log(2.0))


@pytest.mark.parametrize(("samples", "temperature"), [(4, 1.0), (2, 0.5)])
def test_critics_value_what_the_data_does_above_what_else_could_be_done(samples: int, temperature: float) -> None:
    given = learner()
    objective = CQL(cql_alpha=3.0, cql_samples=samples, cql_temperature=temperature)
    output = objective.loss("critic", given, batch(), generator=seeded())
    y, penalty = by_hand(samples, temperature)
    q = (S * A.square())[:, None] * torch.tensor([0.1, 0.2])
    torch.testing.assert_close(output.total.detach(), (0.5 * (q - y[:, None]).square() + 3.0 * penalty).sum())
    assert output.td_error is not None
    torch.testing.assert_close(output.td_error, (q - y[:, None]).abs().mean(1))
    output.total.backward()
    assert given.policy.actor.grad is None
    assert given.target.q_head.grad is None


def test_without_a_penalty_it_is_sac_that_pays_for_no_entropy_of_what_follows() -> None:
    plain = SAC(backup_entropy=False).loss("critic", learner(), batch(), generator=seeded())
    without = CQL(cql_alpha=0.0).loss("critic", learner(), batch(), generator=seeded())
    torch.testing.assert_close(without.total, plain.total)
    for part in ("actor", "alpha"):
        expected = SAC().loss(part, learner(), batch(), generator=seeded()).total
        torch.testing.assert_close(CQL().loss(part, learner(), batch(), generator=seeded()).total, expected)


def test_a_penalty_above_the_gap_counts_more_and_more() -> None:
    """Eq. 30: the weight α climbs α (p − g)."""
    _, penalty = by_hand(4, 1.0)
    for gap in (0.0, 1e3):
        given = learner(cql_alpha=math.log(3.0))
        objective = CQL(cql_gap=gap, cql_samples=4)
        output = objective.loss("critic", given, batch(), generator=seeded())
        fixed = CQL(cql_alpha=3.0, cql_samples=4).loss("critic", given, batch(), generator=seeded())
        torch.testing.assert_close(output.total, fixed.total - 3.0 * gap * 6)
        assert torch.autograd.grad(output.total, given.parameters["cql_alpha"], allow_unused=True) == (None,)
        weighing = objective.loss("cql_alpha", given, batch(), generator=seeded())
        weighing.total.backward()
        assert given.policy.q_head.grad is None
        grad = given.parameters["cql_alpha"].grad
        assert (grad < 0) == (gap == 0.0), "gradient descent makes it greater below, and smaller above"
    assert float(penalty.min()) > 0.0


def test_weights_of_a_buffer_count_where_values_are_learned() -> None:
    expect_weighed(lambda weight: CQL(cql_samples=2).loss("critic", learner(), batch(weight), generator=seeded()))


def test_targets_move_after_every_update() -> None:
    found = CQL(tau=0.25).moved({"q": torch.tensor(4.0)}, {"q": torch.tensor(8.0)}, 1)
    assert found is not None
    assert float(found["q"]) == 5.0


def test_it_needs_bounds_to_draw_evenly_within() -> None:
    with pytest.raises(ConfigError, match="expected actions with bounds"):
        CQL().loss("critic", learner(ArraySpec(shape=(1,), dtype="float32")), batch(), generator=seeded())


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"cql_alpha": -1.0}, "cql_alpha"),
        ({"cql_alpha": 0.0, "cql_gap": 1.0}, "cql_alpha"),
        ({"cql_gap": -1.0}, "cql_gap"),
        ({"cql_samples": 0}, "cql_samples"),
        ({"cql_temperature": 0.0}, "cql_temperature"),
        ({"tau": 0.0}, "tau"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        CQL(**settings)
