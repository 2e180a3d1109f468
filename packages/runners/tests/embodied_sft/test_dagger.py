"""The expert's share of the steps, by hand, and numbers that make no sense."""

from __future__ import annotations

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.embodied_sft.schema import DAggerConfig


@pytest.mark.parametrize(
    ("numbers", "shares"),
    [
        ({}, [0.5, 0.25, 0.125]),
        ({"init_beta": 1.0, "beta_decay": 0.0}, [1.0, 0.0, 0.0]),
        ({"init_beta": 0.8, "beta_decay": 1.0}, [0.8, 0.8, 0.8]),
        ({"init_beta": 0.5, "beta_decay": 0.5, "min_beta": 0.2}, [0.5, 0.25, 0.2]),
    ],
)
def test_the_share_falls_as_it_is_told(numbers, shares):
    config = DAggerConfig(episodes=1, **numbers)
    assert [config.beta(number) for number in range(3)] == shares


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        ("episodes", {"episodes": 0}),
        ("init_beta", {"episodes": 1, "init_beta": 1.1}),
        ("init_beta", {"episodes": 1, "init_beta": float("nan")}),
        ("beta_decay", {"episodes": 1, "beta_decay": -0.1}),
        ("min_beta", {"episodes": 1, "min_beta": 2}),
        ("learn", {"episodes": 1, "init_beta": 0.0, "learn": "interventions"}),
    ],
)
def test_shares_outside_0_and_1_and_interventions_that_never_come_are_refused(place, fields):
    with pytest.raises(ConfigError) as caught:
        DAggerConfig(**fields)
    assert caught.value.place == place
