from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError
from rlinf.envs import Tabletop
from rlinf.envs.wrappers.groups import GroupReset

SEEDS = st.integers(0, 2**31 - 1)
MASKS = st.lists(st.lists(st.booleans(), min_size=6, max_size=6).filter(any), max_size=8)


def tables(num_envs=6, task="reach"):
    return Tabletop(task=task).make(num_envs, max_episode_steps=None, ignore_terminations=False, render=False)


def groups(num_envs=6, group_size=3, task="reach", **options):
    return GroupReset(tables(num_envs, task), group_size=group_size, **options)


class History:
    """Resets, and remembers of each environment with which states its episodes started."""

    def __init__(self, env):
        self.env, self.starts, self.ids = env, [[] for _ in range(env.num_envs)], [[] for _ in range(env.num_envs)]

    def reset(self, mask=None, **arguments):
        options = {} if mask is None else {"reset_mask": np.array(mask)}
        states = self.env.reset(options=options, **arguments)[0]["states"]
        for i in range(self.env.num_envs):
            if mask is None or mask[i]:
                self.starts[i].append(states[i].tobytes())
                self.ids[i].append(int(self.env.reset_state_ids[i]))
        return self


def play(env, seed, masks):
    history = History(env).reset(seed=seed)
    for mask in masks:
        history.reset(mask)
    return history


@settings(max_examples=25)
@given(seed=SEEDS, masks=MASKS, fixed=st.booleans(), ordered=st.booleans())
def test_the_kth_episode_of_each_member_starts_from_the_same_state(seed, masks, fixed, ordered):
    options = {"use_fixed_reset_state_ids": fixed, "use_ordered_reset_state_ids": ordered}
    history = play(groups(**options), seed, masks)
    for members in (history.starts[:3], history.starts[3:]):
        for episode in range(max(map(len, members))):
            assert len({starts[episode] for starts in members if len(starts) > episode}) == 1
    assert history.starts[0][0] != history.starts[3][0], "groups differ"
    pairs = {pair for i in range(6) for pair in zip(history.ids[i], history.starts[i], strict=True)}
    assert len(pairs) == len({number for number, _ in pairs}), "an id is one state"


@settings(max_examples=25)
@given(seed=SEEDS, first=MASKS, second=MASKS)
def test_a_start_depends_on_seed_group_and_episode_alone(seed, first, second):
    env = groups()
    histories = [play(env, seed, masks).starts for masks in (first, second)]
    for one, other in zip(*histories, strict=True):
        assert all(a == b for a, b in zip(one, other, strict=False))


@settings(max_examples=15)
@given(seed=SEEDS, masks=MASKS, ordered=st.booleans())
def test_it_does_not_matter_over_how_many_processes_groups_are_spread(seed, masks, ordered):
    whole = play(groups(use_ordered_reset_state_ids=ordered), seed, masks)
    for part in range(2):
        rows = slice(3 * part, 3 * part + 3)
        env = groups(3, use_ordered_reset_state_ids=ordered, first_group=part, num_groups=2)
        assert play(env, seed, [mask[rows] for mask in masks if any(mask[rows])]).starts == whole.starts[rows]


@settings(max_examples=25)
@given(seed=SEEDS, masks=MASKS)
def test_a_new_start_for_all_brings_groups_together(seed, masks):
    history = play(groups(), seed, masks).reset()
    assert len({starts[-1] for starts in history.starts[:3]}) == 1
    for members in (history.ids[:3], history.ids[3:]):
        assert all(members[0][-1] not in ids[:-1] for ids in members), "a state that none of them had"


@pytest.mark.parametrize("fixed", [False, True])
def test_the_first_reset_needs_no_seed(fixed):
    env, told = groups(use_fixed_reset_state_ids=fixed), groups(use_fixed_reset_state_ids=fixed)
    assert env.reset_state_ids.tolist() == [-1] * 6
    env.reset()
    told.reset(seed=0)
    assert np.array_equal(env.reset_state_ids, told.reset_state_ids)


def test_environments_without_states_of_their_own_share_seeds(counters):
    env = GroupReset(counters(9, 9, 9, 9), group_size=2)
    first = env.reset(seed=1)[0]["states"][:, 0]
    assert first[0] == first[1] != first[2] == first[3]
    env.reset(options={"reset_mask": np.array([True, False, False, False])})
    second = env.reset(options={"reset_mask": np.array([False, True, False, False])})[0]["states"][:, 0]
    assert second[0] == second[1] != first[0]
    assert second[2] == first[2]


def test_fixed_states_stay_until_they_are_updated():
    env = groups(use_fixed_reset_state_ids=True)
    history = play(env, 5, [[True] * 6, [True, False] * 3]).reset()
    assert [len(set(starts)) for starts in history.starts] == [1] * 6
    before = env.reset_state_ids
    env.update_reset_state_ids()
    history.reset()
    assert [len(set(starts)) for starts in history.starts] == [2] * 6
    assert (env.reset_state_ids != before).all()
    assert play(env, 5, []).ids == [[number] for number in before], "a seed starts it all again"


def test_ordered_states_come_once_each():
    env = groups(8, 2, use_ordered_reset_state_ids=True, num_init_ids=12)
    seen = []
    for _ in range(3):
        env.reset()
        seen += env.reset_state_ids[::2].tolist()
    assert seen == list(range(12))
    env.reset()
    assert env.reset_state_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ordered_and_fixed():
    env = groups(4, 2, use_ordered_reset_state_ids=True, use_fixed_reset_state_ids=True, num_init_ids=3)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert env.reset_state_ids.tolist() == [0, 0, 1, 1]
    env.update_reset_state_ids()
    assert env.reset_state_ids.tolist() == [0, 0, 1, 1], "the episodes that go on are what they were"
    env.reset(options={"reset_mask": np.array([True, True, False, True])})
    assert env.reset_state_ids.tolist() == [2, 2, 1, 0]


def test_ids_go_round_the_tasks():
    env = groups(6, 1, task="slots", use_ordered_reset_state_ids=True, num_init_ids=2)
    states = env.reset(seed=0)[0]["states"]
    assert states[:, 8:].argmax(1).tolist() == [0, 1, 2, 0, 1, 2]
    wanted = tables(6, "slots").reset(seed=3, options={"task": [0, 1, 2, 0, 1, 2], "init_id": [0, 0, 0, 1, 1, 1]})[0]["states"]
    assert np.array_equal(states, wanted)


def test_drawn_states_are_those_there_are():
    env = groups(6, 1, num_init_ids=4)
    drawn = []
    for seed in range(40):
        env.reset(seed=seed)
        drawn += env.reset_state_ids.tolist()
    assert np.bincount(drawn, minlength=4).min() > 40
    assert max(drawn) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1] * 6}, "a group reset has one seed"),
        ({"seed": 1, "options": {"reset_mask": np.ones(6, np.bool_)}}, "no seed to a partial one"),
        ({"options": {"init_id": 1}}, "option 'init_id' is set by the group reset"),
    ],
)
def test_wrong_resets(arguments, message):
    with pytest.raises(ConfigError, match=message):
        groups().reset(**arguments)


def test_wrong_groups():
    with pytest.raises(ConfigError, match=r"env\.group_size: 6 environments can't be split into groups of 4"):
        groups(group_size=4)
    with pytest.raises(ConfigError, match="groups 2 to 3 are here, but there are 3 in all"):
        groups(first_group=2, num_groups=3)
    env = tables()
    env.metadata = {**env.metadata, "reset_options": ()}
    with pytest.raises(ConfigError, match="no numbered initial states"):
        GroupReset(env, group_size=2)
