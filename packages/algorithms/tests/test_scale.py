"""Groups, agents and turns that count alike, however long they are."""

from dataclasses import replace

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.normalize import loss_scale, turns
from rlinf.algorithms.advantages.per_decision import Raw
from rlinf.algorithms.compat import calculate_adv_and_returns
from rlinf.algorithms.losses.policy.ppo import ppo_clip
from rlinf.algorithms.losses.terms import Aggregation, aggregate
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ADVANTAGES

# group 7 has 3 decisions in rows of 2 and 1, group 4 has 1, group 9 none: 4 decisions, 2 groups, 3 turns
MASK = torch.tensor([[True, True], [True, False], [False, True], [False, False]])
GROUP = torch.tensor([7, 4, 7, 9])
TURN = torch.arange(4)


def test_by_hand():
    assert loss_scale(GROUP, MASK).tolist() == pytest.approx([2 / 3, 2.0, 2 / 3, 0.0])
    assert loss_scale(TURN, MASK).tolist() == pytest.approx([4 / 3 / 2, 4 / 3, 4 / 3, 0.0])
    assert loss_scale(torch.zeros_like(GROUP), MASK).tolist() == [1.0] * 4
    assert loss_scale(GROUP, MASK & False).tolist() == [0.0] * 4


def seeded(seed, rows):
    g = torch.Generator().manual_seed(seed)
    loss = torch.randn(rows, 3, generator=g, dtype=torch.float64)
    return loss, torch.randint(-2, 3, (rows,), generator=g), torch.rand(rows, 3, generator=g) < 0.6


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 8))
def test_equals_the_reference_and_is_a_mean_over_units(seed, rows):
    loss, unit, mask = seeded(seed, rows)
    scale = loss_scale(unit, mask)
    assert scale.tolist() == pytest.approx(reference.loss_scale(unit.tolist(), mask.tolist()))
    order = torch.arange(rows).flip(0)
    torch.testing.assert_close(loss_scale(unit[order], mask[order]), scale[order])
    if mask.any():
        found = aggregate(scale[:, None] * loss, mask)
        parts = [(unit == name)[:, None] & mask for name in unit.unique()]
        means = [loss[part].mean() for part in parts if part.any()]
        torch.testing.assert_close(found.total / found.weight, torch.stack(means).mean())
        assert ((scale[:, None] * mask).sum() / mask.sum()).item() == pytest.approx(1.0)
        turns = aggregate(loss_scale(torch.arange(rows), mask)[:, None] * loss, mask)
        rows_ = aggregate(loss, mask, Aggregation("seq-mean-token-mean"))
        torch.testing.assert_close(turns.total / turns.weight, rows_.total / rows_.weight)


def test_the_split_into_ranks_that_part_no_unit_changes_nothing():
    _, _, mask = seeded(3, 6)
    unit = torch.tensor([5, 5, 1, 8, 8, 8])
    whole, sums = loss_scale(unit, mask), []
    for rows in (slice(0, 3), slice(3, 6)):
        loss_scale(unit[rows], mask[rows], all_reduce=lambda x: sums.append(x) or x)
    assert len(sums) == 2
    parts = [loss_scale(unit[rows], mask[rows], all_reduce=lambda x: sum(sums)) for rows in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(torch.cat(parts), whole)


REWARD = torch.tensor([[1.0, 2.0], [3.0, 9.0], [9.0, 4.0], [9.0, 9.0]])
INPUTS = CreditInputs(reward=REWARD, mask=MASK, group=GROUP, episode=torch.tensor([0, 0, 1, 0]))
UNITS = {"group": GROUP, "agent": TURN, "episode": TURN}


@pytest.mark.parametrize("level", UNITS)
def test_the_key_scales_advantages_after_all_else(level):
    plain, _ = Raw().normalized(INPUTS)
    found, _ = Raw(loss_scale=level).normalized(INPUTS)
    torch.testing.assert_close(found, plain * loss_scale(UNITS[level], MASK)[:, None].float())
    assert not torch.equal(found, plain)
    normal, _ = Raw(normalize_advantages=True).normalized(INPUTS)
    both, _ = Raw(normalize_advantages=True, loss_scale=level).normalized(INPUTS)
    torch.testing.assert_close(both, normal * loss_scale(UNITS[level], MASK)[:, None].float())


def test_an_episode_is_one_of_its_group_and_without_names_each_row_is_one():
    same = replace(INPUTS, episode=torch.zeros(4, dtype=torch.int64))
    assert torch.equal(Raw(loss_scale="episode").normalized(same)[0], Raw(loss_scale="group").normalized(same)[0])
    nobody = replace(INPUTS, episode=None)
    assert torch.equal(Raw(loss_scale="episode").normalized(nobody)[0], Raw(loss_scale="agent").normalized(nobody)[0])


def test_turns_by_hand():
    """The first row reads, says 2 tokens, reads, says 1; the second says 3; the third nothing: 6 decisions, 3 turns."""
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    scale = loss_scale(turns(mask), mask)
    expected = [[0, 1, 1, 0, 2], [2 / 3, 2 / 3, 2 / 3, 0, 0], [0] * 5]
    assert torch.where(mask, scale, 0.0).tolist() == [pytest.approx(row) for row in expected]
    found, _ = Raw(loss_scale="turn").normalized(replace(INPUTS, reward=torch.ones(3, 5), mask=mask, group=TURN[:3], episode=None))
    assert found.tolist() == [pytest.approx(row) for row in expected]
    by_row, _ = Raw(loss_scale="agent").normalized(
        replace(INPUTS, reward=torch.ones(3, 5), mask=mask, group=TURN[:3], episode=None)
    )
    assert torch.equal(by_row, mask.float()), "two rows of three decisions: each counts alike already"


def test_the_clipped_loss_is_scaled_with_its_advantages():
    g = torch.Generator().manual_seed(2)
    new, old, advantage = (torch.randn(4, 2, generator=g) for _ in range(3))
    scale = loss_scale(GROUP, MASK).float()[:, None]
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0}
    each = [ppo_clip(new, old, advantage, MASK & (i == TURN)[:, None], **bounds).total for i in range(4)]
    whole = ppo_clip(new, old, scale * advantage, MASK, **bounds).total
    torch.testing.assert_close(whole, (torch.stack(each) * scale[:, 0]).sum())


def test_by_name():
    found, _ = calculate_adv_and_returns(adv_type="raw", reward=REWARD, mask=MASK, group=GROUP, loss_scale="group")
    assert torch.equal(found, Raw(loss_scale="group").normalized(INPUTS)[0])
    with pytest.raises(ConfigError, match="loss_scale: expected one of none, group, episode, agent, turn, found 'row'"):
        Raw(loss_scale="row")
    for name in ADVANTAGES.names():
        params = {"advantage_mode": "frame"} if name == "grpo_video" else {}
        with pytest.raises(ConfigError, match="loss_scale"):
            ADVANTAGES.build(name, params | {"loss_scale": "all"}, place=name)


def test_what_is_wrong_is_named():
    with pytest.raises(ShapeError, match=r"loss_scale\(unit\): expected integers"):
        loss_scale(GROUP.float(), MASK)
    with pytest.raises(ShapeError, match=r"loss_scale\(unit\)"):
        loss_scale(GROUP[1:], MASK)
    with pytest.raises(ShapeError, match=r"Raw\(group\)"):
        Raw(loss_scale="group").normalized(replace(INPUTS, group=None))
