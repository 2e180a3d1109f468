import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.objectives.critic import critic_loss
from rlinf.algorithms.objectives.targets import polyak, update_due
from rlinf.algorithms.objectives.td3 import (
    smoothed_action,
    td3_actor_loss,
    td3_bc_actor_loss,
    td3_bc_scale,
    td3_target,
)
from rlinf.core.errors import ConfigError, ShapeError

Q = torch.tensor([[1.0, 3.0], [-4.0, -6.0]])
NO = torch.tensor([False, False])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_target_by_hand():
    """1 + 0.5 · 1 and 2, for the task ended."""
    reward, ended = torch.tensor([1.0, 2.0]), torch.tensor([False, True])
    assert td3_target(reward, ended, Q, gamma=0.5).tolist() == [1.5, 2.0]
    assert td3_target(reward, ended, Q, gamma=0.5, aggregate="mean").tolist() == [2.0, 2.0]
    assert td3_target(reward, ended, Q, gamma=0.5, subset=[1], bootstrap="always").tolist() == [2.5, -1.0]
    assert reference.td3_target([1.0, 2.0], [False, True], Q.tolist(), gamma=0.5) == [1.5, 2.0]


def test_ddpg_is_one_critic_without_noise():
    action = torch.tensor([[0.3, -2.0]])
    assert smoothed_action(action, std=0.0, noise_clip=0.5, low=-1.0, high=1.0, generator=seeded()).tolist() == [
        [pytest.approx(0.3), -1.0]
    ]
    q = torch.tensor([[2.0]])
    assert td3_target(torch.ones(1), NO[:1], q, gamma=0.9).item() == pytest.approx(2.8)
    assert critic_loss(q, torch.tensor([5.0])).total.item() == 4.5


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 2), st.floats(0, 1))
def test_smoothing_equals_the_reference(seed, std, noise_clip):
    action = torch.randn(3, 2, generator=seeded(seed + 1), dtype=torch.float64, requires_grad=True)
    low, high = torch.tensor([-1.0, -0.5], dtype=torch.float64), torch.tensor([0.7, 0.9], dtype=torch.float64)
    words = {"std": std, "noise_clip": noise_clip}
    found = smoothed_action(action, **words, low=low, high=high, generator=seeded(seed))
    draw = torch.randn(3, 2, generator=seeded(seed), dtype=torch.float64).tolist()
    expected = reference.smoothed_action(action.tolist(), **words, low=low.tolist(), high=high.tolist(), draw=draw)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert not found.requires_grad


def test_actor_loss_by_hand():
    """−Q₁: −1 + 4; scaled by 2; the minimum −1 + 6; the mean −2 + 5."""
    assert td3_actor_loss(Q).total.item() == 3.0
    assert td3_actor_loss(Q, scale=torch.tensor(2.0)).total.item() == 6.0
    assert td3_actor_loss(Q, aggregate="min").total.item() == 5.0
    assert td3_actor_loss(Q, aggregate="mean").total.item() == 3.0
    q = Q.clone().requires_grad_()
    td3_actor_loss(q).total.backward()
    assert q.grad.tolist() == [[-1.0, 0.0], [-1.0, 0.0]]


@pytest.mark.parametrize(
    ("words", "expected"),
    # |Q₁| is 1 and 4
    [({}, 1.0), ({"alpha": 5.0}, 2.0), ({"weight": torch.tensor([2.0, 0.0])}, 2.5), ({"aggregate": "min"}, 2.5 / 3.5)],
)
def test_bc_scale_by_hand(words, expected):
    found = td3_bc_scale(Q.clone().requires_grad_(), **words)
    assert found.item() == pytest.approx(expected)
    assert not found.requires_grad
    words = {name: x.tolist() if isinstance(x, torch.Tensor) else x for name, x in words.items()}
    assert reference.td3_bc_scale(Q.tolist(), **words) == pytest.approx(expected)


def test_bc_scale_over_ranks_and_of_nothing():
    other = torch.tensor([7.0, 1.0])
    assert td3_bc_scale(Q, all_reduce=lambda sums: sums + other).item() == pytest.approx(2.5 / (12 / 3))
    assert td3_bc_scale(torch.zeros(2, 2)).item() == 2.5 == reference.td3_bc_scale([[0.0, 0.0]])
    assert td3_bc_scale(Q, weight=torch.zeros(2)).item() == 2.5
    assert td3_bc_scale(0.1 * Q, alpha=0.5).item() == pytest.approx(2.0)
    assert td3_bc_scale(Q, alpha=0.0).item() == 0.0
    assert td3_bc_scale(Q[:, :1], weight=torch.ones(2)).item() == 1.0
    assert td3_bc_scale(Q[:1]).item() == 2.5


def test_bc_actor_loss_by_hand():
    """−0.5 · 1 + ½ (1 + 9); an unexecuted step of a chunk is not there."""
    action, data = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 0.0]])
    output = td3_bc_actor_loss(Q[:1], action, data, scale=0.5)
    assert output.total.item() == 4.5
    assert output.metrics["bc_loss"].mean == 5.0
    chunk, other = torch.stack([action, data], 1), torch.stack([data, action], 1)
    half = td3_bc_actor_loss(Q[:1], chunk, other + 1.0, scale=0.5, executed=torch.tensor([[True, False]]))
    # (1 − 3)² and (3 − 1)²
    assert half.total.item() == 3.5
    none = td3_bc_actor_loss(Q[:1], chunk, other, scale=0.5, executed=torch.tensor([[False, False]]))
    assert (none.total.item(), none.weight.item()) == (-0.5, 1.0)


def test_polyak_by_hand():
    target = {"w": torch.tensor([0.0, 1.0]), "steps": torch.tensor(3), "half": torch.tensor([1.0], dtype=torch.bfloat16)}
    online = {"w": torch.tensor([1.0, 3.0]), "half": torch.tensor([3.0], dtype=torch.bfloat16), "steps": torch.tensor(7)}
    online["w"].requires_grad_()
    before = {name: x.clone() for name, x in target.items()}
    moved = polyak(target, online, tau=0.25)
    assert list(moved) == ["w", "steps", "half"]
    assert (moved["w"].tolist(), moved["steps"].item(), moved["half"].item()) == ([0.25, 1.5], 7, 1.5)
    assert moved["half"].dtype == torch.bfloat16
    assert not moved["w"].requires_grad
    assert all(torch.equal(before[name], x) for name, x in target.items())
    assert reference.polyak({"w": [0.0, 1.0]}, {"w": [1.0, 3.0]}, tau=0.25) == {"w": [0.25, 1.5]}
    moved["steps"].add_(1)
    assert online["steps"].item() == 7


@pytest.mark.parametrize(("tau", "weight", "bias"), [(0.25, [0.25, 1.5], 7.0), (1.0, [1.0, 3.0], 4.0), (0.0, [0.0, 1.0], 8.0)])
def test_polyak_of_networks_alone_by_hand(tau, weight, bias):
    """All in float32, as the weights of critics are: by name, whatever the order, in memory of their own."""
    target = {"weight": torch.tensor([0.0, 1.0]), "bias": torch.tensor(8.0)}
    online = {"bias": torch.tensor(4.0, requires_grad=True), "weight": torch.tensor([1.0, 3.0], requires_grad=True)}
    moved = polyak(target, online, tau=tau)
    assert list(moved) == ["weight", "bias"]
    assert (moved["weight"].tolist(), moved["bias"].item()) == (weight, bias)
    assert not any(x.requires_grad for x in moved.values())
    for x in moved.values():
        x.zero_()
    assert (target["weight"].tolist(), target["bias"].item(), online["bias"].item()) == ([0.0, 1.0], 8.0, 4.0)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.005, 1.0]))
def test_polyak_equals_the_reference(seed, tau):
    old, new = torch.randn(2, 3, generator=seeded(seed), dtype=torch.float64)
    found = polyak({"w": old}, {"w": new}, tau=tau)["w"]
    assert found.tolist() == pytest.approx(reference.polyak({"w": old.tolist()}, {"w": new.tolist()}, tau=tau)["w"])
    assert tau != 1.0 or torch.equal(found, new)
    assert tau != 0.0 or torch.equal(found, old)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_update_is_due_every_so_often(every):
    found = [update_due(step, every=every) for step in range(1, 12)]
    assert sum(found) == 11 // every
    assert found == [reference.update_due(step, every=every) for step in range(1, 12)]
    assert found[every - 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: polyak({"a": Q}, {"b": Q}, tau=0.1), ShapeError, r"polyak\(online\): .* a, b"),
        (lambda: polyak({"a": Q}, {"a": Q[0]}, tau=0.1), ShapeError, r"polyak\(online\.a\)"),
        (lambda: polyak({}, {}, tau=1.1), ConfigError, r"polyak\(tau\): .* \[0, 1\]"),
        (lambda: polyak({}, {}, tau=-0.1), ConfigError, r"polyak\(tau\)"),
        (lambda: update_due(1, every=0), ConfigError, r"update_due\(every\): expected at least 1, found 0"),
        (lambda: smoothed_action(Q, std=-1.0, noise_clip=0.5, low=-1, high=1, generator=None), ConfigError, r"\(std\)"),
        (lambda: smoothed_action(Q, std=0.1, noise_clip=-0.5, low=-1, high=1, generator=None), ConfigError, r"\(noise_clip\)"),
        (lambda: td3_actor_loss(Q, aggregate="last"), ConfigError, "first, min, mean"),
        (lambda: td3_actor_loss(Q, scale=-1.0), ConfigError, r"td3_actor_loss\(scale\)"),
        (lambda: td3_bc_scale(Q, alpha=-1.0), ConfigError, r"td3_bc_scale\(alpha\)"),
        (lambda: td3_bc_actor_loss(Q, Q, Q, scale=-1.0), ConfigError, r"td3_bc_actor_loss\(scale\)"),
        (lambda: td3_bc_actor_loss(Q, Q, Q[:1], scale=1.0), ShapeError, r"td3_bc_actor_loss\(action_data\)"),
        (lambda: td3_bc_actor_loss(Q, Q[:, 0], Q[:, 0], scale=1.0), ShapeError, r"td3_bc_actor_loss\(action\)"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
