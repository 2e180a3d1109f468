"""What advantages and losses declare to need is what they fail without, and nothing else."""

from dataclasses import replace

import pytest
import torch

from rlinf.core.data import Batch, Credit, Rescored, Trajectory
from rlinf.core.declarations import HasTargets, needs_of
from rlinf.core.errors import ShapeError
from rlinf.core.registry import ADVANTAGES, LOSSES

ROWS, HORIZON = 4, 3
PARAMS = {"grpo_video": {"advantage_mode": "frame"}, "reinpp": {"reinpp_kl_beta": 0.1, "use_reinpp_baseline": True}}
EVERY_TERM = {"kl_beta": 0.1, "entropy_bonus": 0.01, "correction": {"mode": "truncate"}}


def ours(registry):
    return [name for name in registry.names() if registry.owner(name).startswith("rlinf.algorithms.")]


def trajectory() -> Trajectory:
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=g)

    never = torch.zeros(ROWS, HORIZON, dtype=torch.bool)
    logprob = normal(ROWS, HORIZON) - 1.0
    return Trajectory(
        context={},
        action=normal(ROWS, HORIZON, 1, 1),
        logprob=logprob,
        reward=normal(ROWS, HORIZON),
        terminated=never,
        truncated=never,
        mask=~never,
        version=torch.zeros(ROWS, HORIZON, dtype=torch.int64),
        group=torch.tensor([0, 0, 1, 1]),
        task=torch.zeros(ROWS, dtype=torch.int64),
        value=normal(ROWS, HORIZON + 1),
        reference=logprob - 0.1,
        proximal=logprob + 0.1,
    )


def refused(call) -> bool:
    try:
        call()
    except ShapeError:
        return True
    return False


@pytest.mark.parametrize("name", ours(ADVANTAGES))
@pytest.mark.parametrize("params", [{}, None])
def test_an_advantage_needs_what_it_declares(name, params):
    params = PARAMS.get(name, {}) if params is None or name == "grpo_video" else params
    advantage = ADVANTAGES.build(name, params, place="algorithm")
    needs, whole = needs_of(advantage), trajectory()
    assert set(needs.values()) <= {"", *params}
    if {"baseline", "sum_pi_squared"} & set(needs):
        assert refused(lambda: advantage(whole))  # this trajectory has neither
        return
    for field in ("value", "reference", "proximal"):
        assert refused(lambda field=field: advantage(replace(whole, **{field: None}))) == (field in needs), field
    assert isinstance(advantage, HasTargets)
    assert (advantage(whole).target is not None) == advantage.has_targets
    if "group" in needs:
        paid_last = whole.reward * torch.tensor([0.0, 0.0, 1.0])
        alone = replace(whole, group=torch.arange(ROWS), reference=whole.logprob, reward=paid_last)
        assert advantage(alone).advantage.abs().max() == 0


@pytest.mark.parametrize("name", [name for name in ours(LOSSES) if not hasattr(LOSSES.get(name), "of_policy")])
@pytest.mark.parametrize("params", [{}, EVERY_TERM, {"proximal": "interpolated"}])
def test_a_loss_needs_what_it_declares(name, params):
    if "proximal" in params and not name.startswith("decoupled"):
        return
    loss = LOSSES.build(name, params, place="algorithm")
    needs = needs_of(loss)
    assert set(needs.values()) <= {"", *params}
    whole, credit = trajectory(), torch.ones(ROWS, HORIZON)
    evaluation = Rescored(logprob=whole.logprob + 0.2, entropy=credit, value=credit, version=3)

    def calls(t=whole, e=evaluation, target=credit):
        return refused(lambda: loss(Batch(trajectory=t, credit=Credit(advantage=credit, target=target)), e))

    assert not calls()
    found = {
        "reference": calls(t=replace(whole, reference=None)),
        "proximal": calls(t=replace(whole, proximal=None)),
        "value": calls(t=replace(whole, value=None)) and calls(e=replace(evaluation, value=None)),
        "target": calls(target=None),
        "entropy": calls(e=replace(evaluation, entropy=None)),
        "version": calls(e=replace(evaluation, version=None)),
    }
    assert {need for need, without in found.items() if without} == set(needs)
