"""Prioritised sampling against sums in plain Python, against the shares that it promises, and over a break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.data import Trajectory
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.replay import ReplayBuffer, Transitions
from rlinf.core.replay.sampling import Sampling
from rlinf.core.replay.sum_tree import SumTree


def rows(lengths: list[int], *, first: int = 0, end: bool = True, episode: int = 0) -> Trajectory[Any]:
    """One row for each producer; observation t of producer p is 1000 p + t."""
    width = max(lengths)
    mask = np.arange(width) < np.array(lengths)[:, None]
    seen = 1000 * np.arange(len(lengths))[:, None] + first + np.arange(width + 1)
    return Trajectory.of(
        context={},
        action=np.zeros((*mask.shape, 1, 1), np.float32),
        logprob=np.zeros(mask.shape, np.float32),
        reward=np.ones(mask.shape, np.float32),
        truncated=end & (np.arange(width) == np.array(lengths)[:, None] - 1),
        mask=mask,
        episode=np.full(len(lengths), episode),
        observation={"states": seen[..., None].astype(np.float32)},
    )


def buffer(**given: Any) -> ReplayBuffer:
    sampling = Sampling(type="prioritized", **{"alpha": 0.7, "epsilon": 0.01, **given.pop("sampling", {})})
    return ReplayBuffer(**{"capacity": 40, "producers": 2, "seed": 3, **given}, sampling=sampling)


def drawable(made: Any) -> Any:
    return np.argwhere(made._columns["decided"])


@given(
    st.integers(1, 700),
    st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.0, 1e6)), min_size=1, max_size=20), max_size=5),
    st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_a_tree_finds_what_running_sums_find(size: int, changes: list[Any], seed: int) -> None:
    tree, plain = SumTree(size), [0.0] * size
    for change in changes:
        # A place has one number, whichever of two is the last.
        by_place = {place % size: weight for place, weight in change}
        tree.set(np.array(list(by_place), np.int64), np.array(list(by_place.values())))
        for place, weight in by_place.items():
            plain[place] = weight
    assert tree.values.tolist() == plain
    again = SumTree(size)
    again.set_all(np.array(plain))
    np.testing.assert_array_equal(tree._sums, again._sums)
    assert tree.total == pytest.approx(sum(plain))
    if not tree.total:
        return
    mass = np.random.default_rng(seed).random(50) * tree.total
    mass = np.concatenate([mass, [0.0, np.nextafter(tree.total, 0.0)]])
    found, ends = tree.find(mass), np.cumsum(plain)
    assert (tree.get(found) > 0).all()
    # To rounding, as sums are added in another order here.
    slack = 1e-9 * tree.total
    assert (mass <= ends[found] + slack).all()
    assert (mass >= ends[found] - np.array(plain)[found] - slack).all()


def test_a_tree_finds_the_number_that_begins_at_a_mass() -> None:
    """Also in a tree of several levels: of numbers 1 index i is found from i on, up to i + 1."""
    tree = SumTree(1500)
    tree.set_all(np.ones(1500))
    whole = np.arange(1500.0)
    np.testing.assert_array_equal(tree.find(whole), np.arange(1500))
    np.testing.assert_array_equal(tree.find(whole + 0.75), np.arange(1500))


def test_priorities_and_weights_are_those_of_the_paper() -> None:
    made = buffer()
    made.add(rows([4, 3]), [0, 1])
    index = drawable(made)
    errors = np.array([0.0, -0.5, 2.0, 1.0, 0.1, 3.0, 0.2])
    made.update_priorities(index, errors)
    powers = (np.abs(errors) + 0.01) ** 0.7
    chance = powers / powers.sum()
    for beta in (0.0, 0.4, 1.0):
        expected = (7 * chance) ** -beta
        np.testing.assert_allclose(made.take(index, beta=beta).weight, expected / expected.max(), rtol=1e-5)
        part = (7 * chance[1:4]) ** -beta
        np.testing.assert_allclose(made.take(index[1:4], beta=beta).weight, part / part.max(), rtol=1e-5)
    # Drawn one from each of 140 equal parts of the sum: within one of what the chance says, for each of the two ends.
    drawn = made.draw(140)
    counts = np.array([(drawn == each).all(1).sum() for each in index])
    assert np.abs(counts - 140 * chance).max() < 2
    assert counts.sum() == 140


def test_frequencies_are_the_chances() -> None:
    made = buffer(capacity=400, producers=4)
    made.add(rows([40, 31, 17, 50]), np.arange(4))
    index = drawable(made)
    made.update_priorities(index, np.random.default_rng(0).exponential(size=len(index)))
    chance = np.zeros(400)
    chance[index[:, 0] * 100 + index[:, 1]] = made.take(index).weight ** -1.0
    chance /= chance.sum()
    draws = np.concatenate([made.draw(1) for _ in range(20_000)])
    counts = np.bincount(draws[:, 0] * 100 + draws[:, 1], minlength=400)
    assert counts[chance == 0].sum() == 0
    held = chance > 0
    statistic = float(((counts - 20_000 * chance)[held] ** 2 / (20_000 * chance[held])).sum())
    # χ² with 137 degrees of freedom: mean 137, standard deviation √274; five of them.
    assert statistic < 137 + 5 * 274**0.5


def test_new_transitions_have_the_largest_priority_and_overwritten_ones_none() -> None:
    made = buffer(capacity=12)
    made.add(rows([3, 3]), [0, 1])
    index = drawable(made)
    made.update_priorities(index, np.array([1.0, 5.0, 1.0, 1.0, 1.0, 1.0]))
    made.add(rows([1, 2], episode=1), [0, 1])
    powers: Any = made._priorities
    held = powers.powers.reshape(2, 6)
    np.testing.assert_array_equal(held > 0, made._columns["decided"])
    np.testing.assert_allclose(held[0, 4], 5.01**0.7)
    # Three more push the first two out of each ring.
    made.add(rows([3, 3], episode=2), [0, 1])
    np.testing.assert_array_equal(held > 0, made._columns["decided"])
    assert len(made) == (held > 0).sum()
    # What is told of a slot without a transition, or is no number, changes nothing.
    before = held.copy()
    empty = np.argwhere(~made._columns["decided"])
    made.update_priorities(empty, np.full(len(empty), 9.0))
    made.update_priorities(drawable(made)[:1], np.array([np.nan]))
    np.testing.assert_array_equal(held, before)


def test_a_new_transition_has_the_largest_priority_that_was_ever_seen() -> None:
    made = buffer()
    made.add(rows([4, 3]), [0, 1])
    index = drawable(made)
    for error in (5.0, 1.0):
        made.update_priorities(index, np.full(7, error))
    made.add(rows([2, 1], episode=1), [0, 1])
    powers: Any = made._priorities
    np.testing.assert_allclose(powers.powers.reshape(2, 20)[0, [0, 5]], [1.01**0.7, 5.01**0.7])


def test_each_part_of_the_sum_is_drawn_from_by_itself() -> None:
    made = buffer()
    made.add(rows([4]), [0])
    # Four alike, two in each half: all pairs of one of the first half and one of the second.
    drawn = {tuple(made.draw(2)[:, 1].tolist()) for _ in range(64)}
    assert drawn == {(0, 2), (0, 3), (1, 2), (1, 3)}


def test_a_ring_that_turns_over_never_offers_a_slot_without_a_decision() -> None:
    made, random = buffer(capacity=14, n_step=3), np.random.default_rng(1)
    for turn in range(60):
        lengths = random.integers(1, 9, 2).tolist()
        made.add(rows(lengths, end=bool(turn % 3), episode=turn), [0, 1])
        drawn = made.draw(32)
        assert made._columns["decided"][drawn[:, 0], drawn[:, 1]].all()
        made.update_priorities(drawn, random.exponential(size=32))


def test_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    made, other = buffer(), buffer(seed=9)
    made.add(rows([9, 5], end=False), [0, 1])
    made.update_priorities(made.draw(16), np.random.default_rng(0).exponential(size=16))
    made.save(tmp_path)
    other.load(tmp_path)
    for turn in range(5):
        drawn, again = made.draw(16), other.draw(16)
        np.testing.assert_array_equal(drawn, again)
        np.testing.assert_array_equal(made.take(drawn, beta=0.5).weight, other.take(again, beta=0.5).weight)
        for each in (made, other):
            each.update_priorities(drawn, np.linspace(0, 7, 16))
            each.add(rows([2, 3], first=9, end=turn == 3, episode=turn), [0, 1])
    resumed = buffer()
    made.save(tmp_path)
    resumed.load(tmp_path)
    for each in (made, resumed):
        each.add(rows([2, 3], first=20, episode=9), [0, 1])
    # A new transition gets the largest that was seen before the break.
    np.testing.assert_array_equal(resumed._priorities.powers, made._priorities.powers)
    with pytest.raises(CheckpointError, match="has sampling by priority, expected uniform sampling"):
        ReplayBuffer(capacity=40, producers=2).load(tmp_path)


def test_uniform_sampling_weighs_all_alike() -> None:
    made = ReplayBuffer(capacity=20, sampling=Sampling())
    made.add(rows([5]), [0])
    made.update_priorities(made.draw(4), np.ones(4))
    drawn = made.sample(8)
    assert drawn.weight is None
    # Beside those of another buffer each counts 1.
    prefers = ReplayBuffer(capacity=20, sampling=Sampling(type="prioritized"))
    prefers.add(rows([5]), [0])
    index = prefers.draw(4)
    prefers.update_priorities(index, np.arange(4.0))
    weighed = prefers.take(index)
    for parts in ([weighed, drawn], [drawn, weighed]):
        expected = np.concatenate([np.ones(8) if part is drawn else weighed.weight for part in parts])
        joined: Any = Transitions.concat(parts).weight
        assert joined.dtype == np.float32
        np.testing.assert_array_equal(joined, expected)
    assert Transitions.concat([drawn, drawn]).weight is None


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"alpha: only prioritized sampling reads it"):
        Sampling(alpha=0.5)
    for name in ("alpha", "beta", "final_beta", "epsilon"):
        for value in (-0.1, 1.1):
            with pytest.raises(ConfigError, match=name):
                Sampling(type="prioritized", **{name: value})
    with pytest.raises(ConfigError, match="epsilon"):
        Sampling(type="prioritized", epsilon=0.0)
    annealed = Sampling(type="prioritized", beta=0.4, final_beta=0.8)
    assert [annealed.beta_at(share) for share in (0.0, 0.5, 1.0, 3.0)] == pytest.approx([0.4, 0.6, 0.8, 0.8])


def test_a_block_of_rows_has_the_priorities_of_its_transitions() -> None:
    made = buffer()
    for turn in range(9):  # the rings of 20 slots go round
        made.add(rows([3, 3], first=3 * turn, end=False), [0, 1])
        decided = made._columns["decided"]
        powers = made._priorities.powers.reshape(decided.shape)
        np.testing.assert_array_equal(powers > 0, decided)
        assert made._priorities._tree.total == pytest.approx(powers.sum())
        # What goes on is written over the newest observation, which was counted.
        assert made._rings.filled.tolist() == [min(20, 3 * turn + 4)] * 2
    ended = buffer()
    for _ in range(2):  # the same number again is another episode, as the first one ended
        ended.add(rows([3, 3]), [0, 1])
    assert ended._rings.filled.tolist() == [8, 8]
    assert int(ended._columns["decided"].sum()) == 12
