import pytest
import torch

from rlinf.core.errors import ShapeError
from rlinf.models.flow import draw_time, interpolate, matching_loss


def test_times_are_those_of_beta():
    time = draw_time(20_000, torch.empty(0), torch.Generator().manual_seed(0))
    reference = 0.999 * torch.distributions.Beta(1.5, 1.0).sample((20_000,)) + 0.001
    assert 0.001 <= time.min().item() <= time.max().item() <= 1.0
    # The mean of Beta(1.5, 1) is 0.6, its variance 0.24 / 3.5.
    assert time.mean().item() == pytest.approx(0.999 * 0.6 + 0.001, abs=0.006)
    assert time.var().item() == pytest.approx(0.24 / 3.5, abs=0.003)
    for quantile in (0.1, 0.5, 0.9):
        assert time.quantile(quantile).item() == pytest.approx(reference.quantile(quantile).item(), abs=0.015)


def test_the_path_leads_from_action_to_noise():
    action, noise = torch.randn(3, 2, 2), torch.randn(3, 2, 2)
    x, velocity = interpolate(action, noise, torch.tensor([0.0, 1.0, 0.25]))
    torch.testing.assert_close(x[0], action[0])
    torch.testing.assert_close(x[1], noise[1])
    torch.testing.assert_close(x[2], 0.25 * noise[2] + 0.75 * action[2])
    torch.testing.assert_close(velocity, noise - action)
    # From any point of it, one straight step along the velocity is the action.
    torch.testing.assert_close(x[2] - 0.25 * velocity[2], action[2])


def test_the_loss_counts_known_steps():
    prediction, target = torch.zeros(2, 2, 2), torch.tensor([[[1.0, 3.0], [2.0, 2.0]], [[9.0, 9.0], [0.0, 2.0]]])
    found = matching_loss(prediction, target)
    assert (found.total.item(), found.weight.item()) == (5.0 + 4.0 + 81.0 + 2.0, 4.0)
    some = matching_loss(prediction, target, torch.tensor([[True, True], [False, True]]))
    assert (some.total.item(), some.weight.item()) == (11.0, 3.0)
    with pytest.raises(ShapeError, match=r"matching_loss\(mask\)"):
        matching_loss(prediction, target, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"matching_loss\(target\)"):
        matching_loss(prediction, target[:1])
