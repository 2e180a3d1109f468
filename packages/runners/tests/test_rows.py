import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.data import Decision, Trajectory
from rlinf.runners.embodied.playing.arrivals import joined
from rlinf.runners.embodied.playing.rows import RowCollector, group_metrics, shares
from rlinf.runners.training.tensors import to_torch


def decision(step: int, num_envs: int) -> Decision[np.ndarray]:
    marks = np.array([100 * step + env for env in range(num_envs)], np.float32)
    return Decision(action=marks[:, None, None], logprob=marks, value=marks, context={"states": marks[:, None]}, version=step)


def collect(ended_at: dict[tuple[int, int], str], steps: int, num_envs: int, **given):
    collector = RowCollector(**{"first_env": 0, "num_envs": num_envs, "group_size": 1, "groups": 9, **given})
    for t in range(steps):
        terminated = np.array([ended_at.get((t, e)) == "terminated" for e in range(num_envs)])
        truncated = np.array([ended_at.get((t, e)) == "truncated" for e in range(num_envs)])
        task = np.array([10 * t + e for e in range(num_envs)])
        collector.append(decision(t, num_envs), np.full(num_envs, t + 1, np.float32), terminated, truncated, task)
        envs = np.flatnonzero(terminated | truncated)
        if t < steps - 1:
            collector.final_values(envs, np.array([-(100 * t + e) for e in envs], np.float32))
    return collector.finish(np.array([9000 + e for e in range(num_envs)], np.float32))


def test_rows_of_episodes_that_end_inside_by_hand() -> None:
    rows = collect({(1, 1): "truncated"}, steps=4, num_envs=2)
    assert rows.reward.tolist() == [[1, 2, 3, 4], [1, 2, 0, 0], [3, 4, 0, 0]]
    assert rows.mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert rows.truncated.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert rows.value.tolist() == [[0, 100, 200, 300, 9000], [1, 101, -101, 0, 0], [201, 301, 9001, 0, 0]]
    assert rows.action[2, :2, 0, 0].tolist() == [201, 301]
    assert rows.version.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0], [2, 3, 0, 0]]
    assert rows.group.tolist() == [0, 1, 10], "the second episode of environment 1 started from another state"
    assert rows.episode.tolist() == [0, 1, 10]
    assert rows.task.tolist() == [0, 1, 21], "the task of an episode is that of its first step"


def test_consecutive_episodes_from_one_state_are_one_group() -> None:
    rows = collect({(0, 0): "terminated", (2, 0): "truncated"}, steps=4, num_envs=1, episode=np.array([2]), episodes_per_state=2)
    # The episodes 2, 3 and 4, of which 2 and 3 start alike; there are 9 environment groups.
    assert rows.group.tolist() == [9, 9, 18]
    assert rows.episode.tolist() == [18, 27, 36]


def test_what_was_seen_before_and_after_by_hand() -> None:
    """A row has the final observation of its episode, and never the first one of the next."""
    collector = RowCollector(first_env=0, num_envs=2, group_size=1, groups=9)
    for t in range(4):
        ended = np.array([False, t == 1])
        collector.append(decision(t, 2), np.ones(2, np.float32), ended, np.zeros(2, np.bool_))
        before, after = ({"states": np.array([[at], [100 + at]], np.float32)} for at in (10 * t, 10 * t + 9))
        collector.observed(before, after)
    seen = collector.finish(None).observation
    assert seen is not None
    assert seen["states"][..., 0].tolist() == [[0, 10, 20, 30, 39], [100, 110, 119, 0, 0], [120, 130, 139, 0, 0]]


def test_the_last_step_bootstraps_from_the_observation_that_followed_it_even_if_it_ended() -> None:
    rows = collect({(2, 0): "terminated"}, steps=3, num_envs=1)
    assert rows.terminated.tolist() == [[False, False, True]]
    assert rows.value[0, -1] == 9000


def test_groups_are_global() -> None:
    rows = collect({}, steps=1, num_envs=4, group_size=2, first_env=6)
    assert rows.group.tolist() == [3, 3, 4, 4]


def test_a_group_is_the_same_episode_of_the_members_of_an_environment_group() -> None:
    """Two groups of two; environment 1 is an episode ahead of 0, and ends another one that 0 is still in."""
    rows = collect({(0, 1): "terminated"}, steps=2, num_envs=4, group_size=2, groups=5, episode=np.array([7, 6, 0, 0]))
    assert rows.group.tolist() == [35, 30, 35, 1, 1]
    assert rows.episode.tolist() == [70, 61, 71, 2, 3], "an episode has one number, whoever else is in its group"


def test_what_tells_whether_groups_can_be_compared() -> None:
    rows = collect({(0, 1): "terminated", (1, 2): "truncated"}, steps=2, num_envs=4, group_size=2)
    assert rows.group.tolist() == [0, 0, 9, 1, 1]
    found = group_metrics(rows)
    assert (found["singleton_rows"].sum, found["singleton_rows"].weight) == (1, 5)
    assert (found["unfinished_rows"].sum, found["unfinished_rows"].weight) == (3, 5)


def test_actors_share_environment_groups_and_rows_of_a_group_lie_together() -> None:
    first = collect({(0, 1): "terminated"}, steps=2, num_envs=6, group_size=2, groups=3)
    later = collect({}, steps=2, num_envs=6, group_size=2, groups=3, episode=np.array([0, 1, 1, 1, 1, 1]))
    rows = Trajectory.concat([first, later])
    parts = shares(rows, groups=3, parts=2)
    assert [part.group.tolist() for part in parts] == [[0, 0, 0, 3, 3, 1, 1, 4, 4], [2, 2, 5, 5]]
    assert sum(int(part.mask.sum()) for part in parts) == int(rows.mask.sum()) == 24
    assert [len(part) for part in shares(rows, groups=3, parts=4)] == [5, 4, 4, 0]


@given(data=st.data(), epochs=st.integers(1, 4), group_size=st.sampled_from([1, 2]))
def test_shares_of_epochs_join_to_those_of_all_at_once(data: st.DataObject, epochs: int, group_size: int) -> None:
    """Two env workers of six environments each, three actors; episodes go on over the ends of epochs or not."""
    sent: list[list[list[Trajectory]]] = [[] for _ in range(2)]
    groups = 12 // group_size
    for worker, of_worker in enumerate(sent):
        episode = np.zeros(6, np.int64)
        for _ in range(epochs):
            ends = data.draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5))))
            layout = {"first_env": 6 * worker, "group_size": group_size, "groups": groups, "episode": episode}
            of_worker.append([collect(dict.fromkeys(ends, "terminated"), steps=4, num_envs=6, **layout)])
            episode = episode + [sum(env == e for _, env in ends) for e in range(6)]
    for actor in range(3):

        def share(parts: list[Trajectory], actor: int = actor) -> Trajectory:
            return shares(Trajectory.concat(parts), groups=groups, parts=3)[actor]

        whole = [share([part for epoch in of_worker for part in epoch]) for of_worker in sent]
        expected = Trajectory.concat([part for part in whole if len(part)]).map(to_torch)
        by_epoch = [[share(of_worker[epoch]) for of_worker in sent] for epoch in range(epochs)]
        parts = [Trajectory.concat([part for part in of_epoch if len(part)]).map(to_torch) for of_epoch in by_epoch]
        found = joined(parts, groups=groups)
        for name in ("reward", "mask", "terminated", "value", "group", "episode", "action"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


@given(data=st.data(), steps=st.integers(1, 12), num_envs=st.integers(1, 5))
def test_no_step_is_lost_or_counted_twice(data: st.DataObject, steps: int, num_envs: int) -> None:
    places = st.tuples(st.integers(0, steps - 1), st.integers(0, num_envs - 1))
    ends = data.draw(st.dictionaries(places, st.sampled_from(["terminated", "truncated"])))
    rows = collect(ends, steps=steps, num_envs=num_envs)
    marks = rows.context["states"][..., 0][rows.mask]
    assert sorted(marks.tolist()) == sorted(100 * t + e for t in range(steps) for e in range(num_envs))
    assert (rows.terminated | rows.truncated)[rows.mask].sum() == len(ends)
    inner = (rows.terminated | rows.truncated)[:, :-1] & rows.mask[:, 1:]
    assert not inner.any(), "a row runs across a reset"


def test_a_policy_without_critic_has_no_values() -> None:
    collector = RowCollector(first_env=0, num_envs=1, group_size=1, groups=1)
    no = np.zeros(1, bool)
    plain = Decision(action=np.zeros((1, 1, 1)), logprob=np.zeros(1), value=None, context={"states": np.zeros((1, 1))}, version=0)
    collector.append(plain, np.ones(1, np.float32), no, no, np.zeros(1, np.int64))
    assert collector.finish(None).value is None
