import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import MODELS
from rlinf.models.commands import TINY
from rlinf.models.normalization import Normalizer

SCHEMES = {"quantile": ("q01", "q99"), "min_max": ("min", "max"), "mean_std": ("mean", "std")}


def made(scheme, first, second, **more):
    normalizer = Normalizer(len(first), scheme, clip=more.pop("clip", False))
    one, other = SCHEMES[scheme]
    normalizer.set_statistics({one: first, other: second, **more})
    return normalizer


@pytest.mark.parametrize("scheme", ["quantile", "min_max"])
def test_bounds_become_ones(scheme):
    normalizer = made(scheme, [-2.0, 0.0], [2.0, 10.0])
    low, middle, high = torch.tensor([[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0]]).unbind()
    torch.testing.assert_close(
        normalizer.normalize(torch.stack([low, middle, high])), torch.tensor([[-1.0] * 2, [0.0] * 2, [1.0] * 2])
    )
    torch.testing.assert_close(normalizer.unnormalize(torch.zeros(2)), middle)


def test_mean_and_deviation():
    normalizer = made("mean_std", [1.0, -1.0], [2.0, 0.5])
    torch.testing.assert_close(normalizer.normalize(torch.tensor([3.0, -2.0])), torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(normalizer.unnormalize(torch.tensor([1.0, -2.0])), torch.tensor([3.0, -2.0]))


def test_masked_dimensions_pass():
    normalizer = made("quantile", [0.0, 0.0], [4.0, 4.0], mask=[True, False], clip=True)
    torch.testing.assert_close(normalizer.normalize(torch.tensor([4.0, 3.0])), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(normalizer.unnormalize(torch.tensor([1.0, 3.0])), torch.tensor([4.0, 3.0]))


def test_clip():
    x = torch.tensor([-9.0, 0.5, 9.0]).view(3, 1)
    assert made("quantile", [0.0], [1.0], clip=True).normalize(x).flatten().tolist() == [-1.0, pytest.approx(0.0), 1.0]
    assert made("mean_std", [0.0], [1.0], clip=True).normalize(x).flatten().tolist() == pytest.approx([-9.0, 0.5, 9.0])


def test_nothing_changes_before_statistics_are_set():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for scheme in (*SCHEMES, "identity"):
        normalizer = Normalizer(3, scheme)
        torch.testing.assert_close(normalizer.normalize(x), x)
        torch.testing.assert_close(normalizer.unnormalize(x), x)


@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    first=st.floats(-100.0, 100.0),
    spread=st.floats(1e-3, 100.0),
    x=st.lists(st.floats(-200.0, 200.0), min_size=1, max_size=5),
)
def test_unnormalize_undoes_normalize(scheme, first, spread, x):
    normalizer = made(scheme, [first], [spread if scheme == "mean_std" else first + spread])
    values = torch.tensor(x).view(-1, 1)
    torch.testing.assert_close(normalizer.unnormalize(normalizer.normalize(values)), values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dimension_that_never_varied_does_not_explode(scheme):
    """A joint that stood still in the data moves by a millimetre on the robot."""
    normalizer = made(scheme, [0.3, 0.0], [0.0 if scheme == "mean_std" else 0.3, 1.0])
    only = 0.0 if scheme == "mean_std" else -1.0
    for value in (0.3, 0.301, -5.0):
        assert normalizer.normalize(torch.tensor([value, 0.5]))[0].item() == only
    for value in (-1.0, 0.0, 1.0):
        assert normalizer.unnormalize(torch.tensor([value, 0.5]))[0].item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        ("openvla", "normalizer", 0.0),
        ("openvla_oft", "normalize_actions", 0.0),
        ("gr00t", "action_norm", 0.0),
        ("gr00t", "state_norm", 0.0),
        ("pi0", "actions", 0.0),
        ("pi05", "actions", -1.0),
        ("pi05", "states", -1.0),
    ],
)
def test_a_dimension_that_never_varied_is_what_the_model_was_trained_with(name, part, expected):
    normalizer = getattr(MODELS.build(name, {"preset": "tiny"}, place=name).build(TINY, seed=0), part)
    size = len(normalizer.first)
    first = torch.full((size,), 0.3)
    one, other = SCHEMES[normalizer.scheme]
    normalizer.set_statistics({one: first, other: torch.zeros(size) if other == "std" else first, "mask": [True] * size})
    for value in (0.3, 0.301, -5.0):
        assert normalizer.normalize(torch.full((size,), value)).tolist() == [expected] * size
        assert normalizer.unnormalize(torch.full((size,), value)).tolist() == pytest.approx([0.3] * size)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_statistics_travel_with_the_weights(scheme):
    normalizer = made(scheme, [0.25, -3.0], [0.5, 7.0], mask=[True, False])
    other = Normalizer(2, scheme)
    other.load_state_dict(normalizer.state_dict())
    x = torch.tensor([[0.3, 0.4], [-1.0, 9.0]])
    torch.testing.assert_close(other.normalize(x), normalizer.normalize(x))


def test_statistics_stay_precise_in_a_coarse_policy():
    policy = nn.Sequential(nn.Linear(1, 1), made("min_max", [0.123456789], [1.000001]))
    for change in (lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.cpu()):
        change(policy)
        assert policy[1].first.dtype == torch.float32
        assert policy[1].first.item() == pytest.approx(0.123456789)
    assert policy[0].weight.dtype == torch.float16
    assert policy.double()[1].first.dtype == torch.float64
    empty = nn.Sequential(made("min_max", [0.1], [1.0])).to("meta").to_empty(device="cpu")
    assert empty[0].first.device.type == "cpu"


def test_numpy_statistics_are_copied():
    low = np.array([0.0, 1.0])
    normalizer = made("min_max", low, np.array([2.0, 3.0]))
    low[:] = 9.0
    assert normalizer.first.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("statistics", "error", "message"),
    [
        ({"q01": [0.0, 0.0]}, ConfigError, r"statistics\.q99: missing; 'quantile' needs it\. There are \['q01'\]"),
        ({"q01": [0.0, 0.0], "q99": [1.0]}, ShapeError, r"statistics\.q99: expected \(2,\), found \(1,\)"),
        ({"q01": [0.0, 0.0], "q99": [1.0, float("nan")]}, ConfigError, r"q99: expected finite numbers, found \[1\.0, nan\]"),
        ({"q01": [0.0, 0.0], "q99": [1.0, -1.0]}, ConfigError, r"q99: expected none below q01"),
        ({"q01": [0.0, 0.0], "q99": [1.0, 1.0], "mask": [True]}, ShapeError, r"statistics\.mask"),
    ],
)
def test_wrong_statistics_change_nothing(statistics, error, message):
    normalizer = made("quantile", [3.0, 3.0], [4.0, 4.0])
    with pytest.raises(error, match=message):
        normalizer.set_statistics(statistics)
    assert normalizer.first.tolist() == [3.0, 3.0]
    assert normalizer.second.tolist() == [4.0, 4.0]
