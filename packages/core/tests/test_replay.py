"""The replay buffer against a list of slots in plain Python, which knows nothing of rings or columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.data import ArraySpec, Trajectory
from rlinf.core.errors import CheckpointError, ConfigError, RLinfError, ShapeError
from rlinf.core.replay import ReplayBuffer, bytes_of_slot

GAMMA = 0.9


@dataclasses.dataclass
class Piece:
    """One row: consecutive decisions of a producer in an episode."""

    producer: int
    episode: int
    length: int
    end: str
    """"" for an episode that goes on."""


def rows(pieces: list[Piece], numbers: Any, clock: dict[int, int]) -> Trajectory[Any]:
    """Rows in which every observation, action and reward is another number, continued ones beginning with the last one seen."""
    width = max(piece.length for piece in pieces)
    shape = (len(pieces), width)
    observation, mask = np.zeros((*shape[:1], width + 1, 1), np.float32), np.zeros(shape, bool)
    terminated, truncated, reward = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, np.float32)
    for row, piece in enumerate(pieces):
        first = clock.get(piece.episode * 100 + piece.producer, 0)
        observation[row, : piece.length + 1, 0] = (
            10_000 * piece.producer + 100 * piece.episode + first + np.arange(piece.length + 1)
        )
        clock[piece.episode * 100 + piece.producer] = first + piece.length
        mask[row, : piece.length] = True
        reward[row, : piece.length] = [next(numbers) for _ in range(piece.length)]
        terminated[row, piece.length - 1] = piece.end == "terminated"
        truncated[row, piece.length - 1] = piece.end == "truncated"
    return Trajectory.of(
        context={},
        action=reward[..., None, None] * 2,
        logprob=reward,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        episode=np.array([piece.episode for piece in pieces]),
        observation={"states": observation},
    )


def producers(pieces: list[Piece]) -> Any:
    return np.array([piece.producer for piece in pieces])


class Naive:
    """Slots of each producer in a list; a slot is an observation and what was decided on it, or None."""

    def __init__(self, slots: int, n: int) -> None:
        self.slots, self.n = slots, n
        self.of: dict[int, list[list[Any]]] = {}
        self.going: dict[int, int | None] = {}

    def add(self, pieces: list[Piece], trajectory: Any) -> None:
        for row, piece in enumerate(pieces):
            held = self.of.setdefault(piece.producer, [])
            if self.going.get(piece.producer) == piece.episode:
                held.pop()
            for t in range(piece.length):
                seen = float(trajectory.observation["states"][row, t, 0])
                end = piece.end if t == piece.length - 1 else ""
                held.append([seen, (float(trajectory.reward[row, t]), end)])
            held.append([float(trajectory.observation["states"][row, piece.length, 0]), None])
            self.going[piece.producer] = None if piece.end else piece.episode
            del held[: -self.slots]

    def transitions(self) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for held in self.of.values():
            for at in range(len(held)):
                if held[at][1] is None:
                    continue
                total, k = 0.0, 0
                while k < self.n and held[at + k][1] is not None:
                    reward, end = held[at + k][1]
                    total += GAMMA**k * reward
                    k += 1
                    if end:
                        break
                last = held[at + k - 1][1]
                found.append(
                    (
                        held[at][0],
                        held[at][1][0] * 2,
                        round(total, 3),
                        held[at + k][0],
                        float(last[1] == "terminated"),
                        round(GAMMA**k, 5),
                    )
                )
        return sorted(found)


def told(transitions: Any) -> list[tuple[float, ...]]:
    return [
        (float(s), float(a), round(float(r), 3), float(after), float(over), round(float(discount), 5))
        for s, a, r, after, over, discount in zip(
            transitions.observation["states"][:, 0],
            transitions.action[:, 0, 0],
            transitions.reward,
            transitions.observation_next["states"][:, 0],
            transitions.terminated,
            transitions.discount,
            strict=True,
        )
    ]


def everything(buffer: Any) -> Any:
    return buffer.take(np.argwhere(buffer._columns["decided"]))


@st.composite
def histories(draw: Any) -> list[list[Piece]]:
    """Messages, each of some rows; episodes of a producer follow one another, and some go on in the next message."""
    under_way: dict[int, int] = {}
    history: list[list[Piece]] = []
    for _ in range(draw(st.integers(1, 5))):
        message: list[Piece] = []
        for producer in draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)):
            episode = under_way.setdefault(producer, 0)
            end = draw(st.sampled_from(["", "terminated", "truncated", "left"]))
            message.append(Piece(producer, episode, draw(st.integers(1, 6)), "" if end == "left" else end))
            # "left": a new episode begins, though nothing ended the last one.
            under_way[producer] = episode if end == "" else episode + 1
        history.append(message)
    return history


@given(histories(), st.integers(2, 9), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_it_holds_what_a_list_holds(history: list[list[Piece]], slots: int, n: int) -> None:
    buffer = ReplayBuffer(capacity=slots * 3, producers=3, n_step=n, gamma=GAMMA)
    naive, numbers, clock = Naive(slots, n), iter(range(1, 10_000)), dict[int, int]()
    for message in history:
        trajectory = rows(message, numbers, clock)
        assert buffer.add(trajectory, producers(message)) == sum(piece.length for piece in message)
        naive.add(message, trajectory)
    expected = naive.transitions()
    assert len(buffer) == len(expected)
    assert sorted(told(everything(buffer))) == expected
    assert set(told(buffer.sample(64))) <= set(expected)
    assert buffer.added == sum(piece.length for message in history for piece in message)


def test_a_truncated_episode_bootstraps_from_its_final_observation_and_a_terminated_one_does_not() -> None:
    buffer = ReplayBuffer(capacity=100, n_step=3, gamma=0.5)
    pieces = [Piece(0, 0, 2, "truncated"), Piece(0, 1, 2, "terminated"), Piece(0, 2, 4, "")]
    buffer.add(rows(pieces, iter([1.0, 2, 4, 8, 16, 32, 64, 128]), {}), producers(pieces))
    # (s, r, s', terminated, discount); 0, 1 | 2 is final, 100, 101 | 102 is final, 200 … 203 | 204 is the newest.
    found = [(row[0], row[2], row[3], bool(row[4]), row[5]) for row in told(everything(buffer))]
    assert found == [
        (0.0, 1 + 0.5 * 2, 2.0, False, 0.25),
        (1.0, 2.0, 2.0, False, 0.5),
        (100.0, 4 + 0.5 * 8, 102.0, True, 0.25),
        (101.0, 8.0, 102.0, True, 0.5),
        (200.0, 16 + 0.5 * 32 + 0.25 * 64, 203.0, False, 0.125),
        (201.0, 32 + 0.5 * 64 + 0.25 * 128, 204.0, False, 0.125),
        (202.0, 64 + 0.5 * 128, 204.0, False, 0.25),
        (203.0, 128.0, 204.0, False, 0.5),
    ]


@pytest.mark.parametrize(
    ("pieces", "capacity"),
    [
        ([Piece(0, 0, 1, "terminated"), Piece(0, 1, 1, "terminated"), Piece(1, 0, 5, ""), Piece(0, 2, 1, "truncated")], 30),
        ([Piece(producer, 0, 4, "truncated") for producer in range(3)], 15),
        ([Piece(producer, 0, 4, "truncated") for producer in range(3)], 60),
    ],
    ids=["rings that differ", "full ones that are alike", "alike, filled in part"],
)
def test_every_transition_is_equally_likely(pieces: list[Piece], capacity: int) -> None:
    count = sum(piece.length for piece in pieces)
    buffer = ReplayBuffer(capacity=capacity, producers=3, seed=5)
    buffer.add(rows(pieces, iter(range(1, count + 1)), {}), producers(pieces))
    drawn = 10_000 * count
    sampled: Any = buffer.sample(drawn)
    _, counts = np.unique(sampled.observation["states"], return_counts=True)
    assert len(counts) == count
    # Six standard deviations of a binomial with p = 1 / count.
    assert np.abs(counts - drawn / count).max() < 6 * (drawn / count * (count - 1) / count) ** 0.5


def test_images_are_kept_once_in_their_own_type() -> None:
    pieces = [Piece(0, 0, 9, "truncated")]
    trajectory = rows(pieces, iter(range(1, 10)), {})
    images = np.random.default_rng(0).integers(0, 256, (1, 10, 4, 4, 3), np.uint8)
    trajectory = dataclasses.replace(trajectory, observation={"main_images": images})
    buffer = ReplayBuffer(capacity=10)
    buffer.add(trajectory, producers(pieces))
    spec = {"main_images": ArraySpec(shape=(4, 4, 3), dtype="uint8")}
    assert buffer.nbytes == 10 * bytes_of_slot(spec, ArraySpec(shape=(1,), dtype="float32"))
    drawn: Any = buffer.take(np.array([[0, 3]]))
    assert drawn.observation["main_images"].dtype == np.uint8
    np.testing.assert_array_equal(drawn.observation["main_images"][0], images[0, 3])
    np.testing.assert_array_equal(drawn.observation_next["main_images"][0], images[0, 4])


def test_what_is_drawn_after_a_break_is_what_would_have_been_drawn(tmp_path: Path) -> None:
    pieces = [Piece(4, 0, 3, "truncated"), Piece(7, 0, 5, "")]
    buffer, other = (ReplayBuffer(capacity=16, producers=2, n_step=2, seed=seed) for seed in (3, 4))
    clock: dict[int, int] = {}
    buffer.add(rows(pieces, iter(range(1, 9)), clock), producers(pieces))
    buffer.sample(7)
    buffer.save(tmp_path)
    other.load(tmp_path)
    more = [Piece(7, 0, 4, "terminated"), Piece(4, 1, 2, "")]
    further = rows(more, iter(range(20, 30)), clock)
    for each in (buffer, other):
        each.add(further, producers(more))
    assert told(everything(other)) == told(everything(buffer))
    assert told(other.sample(50)) == told(buffer.sample(50))
    assert (other.added, len(other)) == (buffer.added, len(buffer))


def test_a_damaged_or_another_buffer_is_refused(tmp_path: Path) -> None:
    pieces = [Piece(0, 0, 3, "truncated")]
    buffer = ReplayBuffer(capacity=8)
    buffer.add(rows(pieces, iter(range(1, 9)), {}), producers(pieces))
    buffer.save(tmp_path)
    with pytest.raises(CheckpointError, match="1 producers with 8 slots each, expected 1 with 9"):
        ReplayBuffer(capacity=9).load(tmp_path)
    (tmp_path / "reward.0000.npy").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"reward\.0000\.npy: .*damaged \(7 bytes"):
        ReplayBuffer(capacity=8).load(tmp_path)


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"3 transitions can't be parted over 2 producers.*at least 4"):
        ReplayBuffer(capacity=3, producers=2)
    with pytest.raises(ConfigError, match=r"gamma.*found 1.5"):
        ReplayBuffer(capacity=3, gamma=1.5)
    buffer = ReplayBuffer(capacity=8)
    with pytest.raises(RLinfError, match="no transition to draw from"):
        buffer.sample(1)
    pieces = [Piece(0, 0, 3, "truncated"), Piece(1, 0, 3, "truncated")]
    trajectory = rows(pieces, iter(range(1, 9)), {})
    with pytest.raises(RLinfError, match="made for 1 producers"):
        buffer.add(trajectory, producers(pieces))
    with pytest.raises(ShapeError, match="found none"):
        buffer.add(dataclasses.replace(trajectory, observation=None), producers(pieces))
    with pytest.raises(ShapeError, match="a buffer for each environment"):
        buffer.add(dataclasses.replace(trajectory, observation={"other": np.zeros((2, 4, 1), np.float32)}), producers(pieces))


@pytest.mark.parametrize("ends", [False, True])
def test_rows_that_arrive_together_are_kept_as_if_one_after_another(ends: bool) -> None:
    def row(number: int, first: int) -> Trajectory[Any]:
        steps = np.arange(first, first + 3, dtype=np.float32)[None] + 100 * number
        # The episodes of one producer go on, those of the others end together or alone.
        episode = first // (9, 6, 3)[number]
        return Trajectory.of(
            context={},
            action=steps[:, :, None, None],
            logprob=steps,
            reward=steps,
            truncated=np.array([[False, False, ends and (first + 3) // (9, 6, 3)[number] > episode]]),
            episode=np.array([3 * episode + number if ends else number]),
            observation={"states": np.append(steps, steps[:, -1:] + 1, 1)[:, :, None]},
        )

    together, alone = (ReplayBuffer(capacity=24, producers=3) for _ in range(2))
    # Each ring has 8 slots, so that some of these writes go round it.
    for first in range(0, 21, 3):
        rows = [row(number, first) for number in range(3)]
        assert together.add(Trajectory.concat(rows), [7, 8, 9]) == 9
        for number in range(3):
            alone.add(rows[number], [7 + number])
        assert len(together) == len(alone)
    index = together.draw(200)
    found, expected = together.take(index), alone.take(index)
    for name in ("reward", "action"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("observation", "observation_next"):
        np.testing.assert_array_equal(getattr(found, name)["states"], getattr(expected, name)["states"])
    np.testing.assert_array_equal(found.observation_next["states"][:, 0], found.reward + 1)
