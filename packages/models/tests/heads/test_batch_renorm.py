import numpy as np
import pytest
import torch

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.heads import BatchRenorm


def ramp(passes, start, end):
    return float(passes >= start) if start == end else float(np.clip((passes - start) / (end - start), 0, 1))


class Ioffe:
    """Algorithm 1 of arXiv:1702.03275 in NumPy, one feature at a time."""

    def __init__(self, size, r_max, d_max, alpha, r_ramp, d_ramp, eps):
        self.mean, self.std, self.passes = np.zeros(size), np.ones(size), 0
        self.r_max, self.d_max, self.alpha, self.r_ramp, self.d_ramp, self.eps = r_max, d_max, alpha, r_ramp, d_ramp, eps

    def train(self, x):
        y = np.empty_like(x)
        r_max = 1 + (self.r_max - 1) * ramp(self.passes, *self.r_ramp)
        d_max = self.d_max * ramp(self.passes, *self.d_ramp)
        for j in range(x.shape[1]):
            m = len(x)
            mu = sum(x[:, j]) / m
            sigma = np.sqrt(self.eps + sum((x[:, j] - mu) ** 2) / m)
            r = min(max(sigma / self.std[j], 1 / r_max), r_max)
            d = min(max((mu - self.mean[j]) / self.std[j], -d_max), d_max)
            y[:, j] = (x[:, j] - mu) / sigma * r + d
            self.mean[j] += self.alpha * (mu - self.mean[j])
            self.std[j] += self.alpha * (sigma - self.std[j])
        self.passes += 1
        return y

    def infer(self, x):
        return (x - self.mean) / self.std


def test_against_the_paper():
    random = np.random.default_rng(0)
    settings = {"r_max": 2.0, "d_max": 0.7, "momentum": 0.2, "r_ramp": (2, 6), "d_ramp": (3, 3), "eps": 1e-3}
    ours = BatchRenorm(4, **settings).double()
    theirs = Ioffe(4, *settings.values())
    scale, shift = np.array([0.1, 1, 3, 10]), np.array([0, -3, 5, 0.5])
    for _ in range(12):
        x = random.standard_normal((7, 4)) * scale + shift
        np.testing.assert_allclose(ours(torch.as_tensor(x), training=True).detach(), theirs.train(x), atol=1e-12)
        np.testing.assert_allclose(ours(torch.as_tensor(x), training=False).detach(), theirs.infer(x), atol=1e-12)
    assert ours.passes == 12


def test_without_renormalisation_it_is_batch_normalisation():
    x = torch.randn(16, 3, dtype=torch.float64) * 4 + 2
    ours, theirs = BatchRenorm(3).double(), torch.nn.BatchNorm1d(3, eps=1e-3).double()
    torch.testing.assert_close(ours(x, training=True), theirs(x))


def test_unclipped_training_agrees_with_inference():
    """Where r and d are not clipped, the output is that of the running statistics before the pass."""
    norm = BatchRenorm(3, r_max=1e6, d_max=1e6, r_ramp=(0, 0), d_ramp=(0, 0), momentum=0.5).double()
    for _ in range(3):
        x = torch.randn(8, 3, dtype=torch.float64) * 2 + 1
        before = norm(x, training=False)
        torch.testing.assert_close(norm(x, training=True), before)


def test_r_and_d_carry_no_gradient():
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    norm = BatchRenorm(2, r_ramp=(0, 0), d_ramp=(0, 0), r_max=9.0, d_max=9.0).double()
    norm(x, training=True).square().sum().backward()
    rows = x.detach().clone().requires_grad_()
    mean, std = rows.mean(0), (rows.var(0, correction=0) + norm.eps).sqrt()
    ((rows - mean) / std * std.detach() + mean.detach()).square().sum().backward()
    torch.testing.assert_close(x.grad, rows.grad)


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training):
    """With a bound of 1 and 0 every term is differentiated, so that finite differences apply."""
    norm = BatchRenorm(2, momentum=0.5, r_max=1.0, d_max=0.0).double()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    norm(x.detach() * 3, training=True)
    assert torch.autograd.gradcheck(lambda y: norm(y, training=training), x)


def test_modes():
    norm, x = BatchRenorm(2), torch.randn(4, 2)
    norm.eval()(x)
    norm.train()(x, training=False)
    assert norm.passes == 0
    assert torch.equal(norm.mean, torch.zeros(2))
    norm.eval()(x, training=True)
    norm.train()(x)
    assert norm.passes == 2


def test_many_networks_side_by_side():
    x = torch.randn(6, 3, 2, dtype=torch.float64) + torch.arange(3.0)[:, None]
    norm = BatchRenorm((3, 2)).double()
    together = norm(x, training=True)
    for n in range(3):
        alone = BatchRenorm(2).double()
        torch.testing.assert_close(together[:, n], alone(x[:, n], training=True))
        torch.testing.assert_close(norm.mean[n], alone.mean)


def test_statistics_travel_with_the_weights():
    assert set(BatchRenorm(2).state_dict()) == {"weight", "bias", "mean", "std", "passes"}


def test_what_it_refuses():
    with pytest.raises(ShapeError, match=r"BatchRenorm\(x\): expected \[\*, 3\], found \(2, 4\)"):
        BatchRenorm(3)(torch.zeros(2, 4))
    with pytest.raises(ShapeError, match="expected at least 2 rows in training, found 1"):
        BatchRenorm(3)(torch.zeros(1, 3), training=True)
    with pytest.raises(ConfigError, match=r"expected r_max ≥ 1.*found r_max 0\.5"):
        BatchRenorm(3, r_max=0.5)
    with pytest.raises(ConfigError, match=r"BatchRenorm\(d_ramp\): expected 0 ≤ start ≤ end, found \(5, 2\)"):
        BatchRenorm(3, d_ramp=(5, 2))
