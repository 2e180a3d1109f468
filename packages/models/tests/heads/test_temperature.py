import math

import pytest
import torch

from rlinf.core.errors import ConfigError
from rlinf.models.heads import EntropyTemperature


@pytest.mark.parametrize("parametrisation", ["exp", "softplus", "fixed"])
@pytest.mark.parametrize("initial", [1e-4, 0.2, 1.0, 30.0])
def test_it_starts_where_it_is_told(parametrisation, initial):
    assert EntropyTemperature(3, initial, parametrisation)().item() == pytest.approx(initial, rel=1e-3)


def test_the_target():
    assert EntropyTemperature(6).target_entropy == -6.0
    assert EntropyTemperature(6, target_entropy=-2.5).target_entropy == -2.5


@pytest.mark.parametrize(("parametrisation", "slope"), [("exp", 0.2), ("softplus", 1 - math.exp(-0.2))])
def test_slopes(parametrisation, slope):
    """dα/dx is α for exp, and 1 − exp(−α) for softplus."""
    temperature = EntropyTemperature(3, 0.2, parametrisation)
    temperature().backward()
    assert temperature.raw.grad.item() == pytest.approx(slope, rel=1e-4)


def test_a_fixed_one_is_no_parameter():
    temperature = EntropyTemperature(3, 0.2, "fixed")
    assert not list(temperature.parameters())
    assert not temperature().requires_grad
    assert set(temperature.state_dict()) == {"raw"}


def test_it_follows_the_entropy():
    """A policy of entropy −8 is to have −3: the temperature rises; one of entropy 2: it falls."""
    for logprob, rises in ((8.0, True), (-2.0, False)):
        temperature = EntropyTemperature(3, 0.5)
        optimizer = torch.optim.Adam(temperature.parameters(), 0.05)
        for _ in range(10):
            optimizer.zero_grad()
            (-temperature() * (logprob + temperature.target_entropy)).backward()
            optimizer.step()
        assert (temperature().item() > 0.5) is rises


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="expected more than 0, found 0"):
        EntropyTemperature(3, 0.0)
    with pytest.raises(ConfigError, match="expected exp, softplus or fixed, found 'log'"):
        EntropyTemperature(3, parametrisation="log")
