import math

import pytest
import torch

from rlinf.algorithms.objectives import imitation
from rlinf.core.errors import ConfigError, ShapeError

LOGPROB = torch.tensor([[-1.0, -3.0], [-5.0, -7.0]])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_cloning_by_hand():
    assert imitation.bc_loss(LOGPROB[:, 0]).total.item() == 6.0
    # means 2 and 6
    assert imitation.bc_loss(LOGPROB).total.item() == 8.0
    some = imitation.bc_loss(LOGPROB, executed=torch.tensor([[True, False], [True, True]]))
    assert (some.total.item(), some.weight.item(), some.metrics["bc_loss"].mean) == (7.0, 2.0, 3.5)
    human = imitation.bc_loss(LOGPROB, executed=torch.tensor([[False, False], [False, True]]))
    assert (human.total.item(), human.weight.item()) == (7.0, 1.0)


def test_distances_by_hand():
    action, data = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    # 0, 2, 3, 4
    assert imitation.action_loss(action, data).total.item() == 29 / 4
    assert imitation.action_loss(action, data, norm="l1").total.item() == 9 / 4
    first = torch.tensor([[True, False]])
    assert imitation.action_loss(action, data, executed=first).total.item() == 2.0
    assert imitation.action_loss(action, data, executed=first, norm="l1").total.item() == 1.0


@pytest.mark.parametrize("chunk", [(2,), (2, 3), (5, 1)])
def test_neither_k_nor_a_enters_the_size(chunk):
    logprob = torch.tensor([-1.0, -2.5])
    fine = logprob.reshape(2, *[1] * len(chunk)).expand(2, *chunk)
    steps = torch.ones(2, chunk[0], dtype=torch.bool)
    expected = imitation.bc_loss(logprob)
    for found in (imitation.bc_loss(fine), imitation.bc_loss(fine, executed=steps)):
        assert (found.total.item(), found.weight.item()) == (pytest.approx(expected.total.item()), 2.0)


def test_garbage_in_steps_that_were_not_executed_stays_out():
    leaves = [torch.randn(2, 2, 3, generator=seeded(i)) for i in range(2)]
    for leaf in leaves:
        leaf[:, 1] = math.nan
        leaf.requires_grad_()
    executed = torch.tensor([[True, False], [True, False]])
    losses = imitation.action_loss(*leaves, executed=executed), imitation.bc_loss(leaves[0], executed=executed)
    (losses[0].total + losses[1].total).backward()
    assert all(math.isfinite(x.total.item()) and math.isfinite(x.metrics["bc_loss"].mean) for x in losses)
    assert all(leaf.grad.isfinite().all() and not leaf.grad[:, 1].any() for leaf in leaves)


BOOL = torch.ones(2, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: imitation.bc_loss(torch.zeros(2), executed=BOOL), ShapeError, r"bc_loss\(executed\): expected None"),
        (lambda: imitation.bc_loss(LOGPROB, executed=BOOL[:1]), ShapeError, r"bc_loss\(executed\)"),
        (lambda: imitation.bc_loss(torch.zeros(())), ShapeError, r"bc_loss\(logprob\)"),
        (lambda: imitation.action_loss(LOGPROB, LOGPROB, norm="l3"), ConfigError, r"action_loss\(norm\)"),
        (lambda: imitation.action_loss(LOGPROB, LOGPROB[:1]), ShapeError, r"action_loss\(action_data\)"),
        (lambda: imitation.action_loss(LOGPROB[0], LOGPROB[0]), ShapeError, r"action_loss\(action\)"),
        (lambda: imitation.action_loss(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)), ShapeError, r"action_loss\(action\)"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
