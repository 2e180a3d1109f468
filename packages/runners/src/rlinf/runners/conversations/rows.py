"""From episodes to the rows of a `Trajectory`: one for each branch, in which only what its agent wrote counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.core.agents import Branch, Episode
from rlinf.core.data import Trajectory
from rlinf.runners.reasoning.rows import TokenRow, token_rows


def episode_rows(episodes: Sequence[Episode], rewards: Sequence[float], *, group: int, pad_id: int) -> Trajectory[Any]:
    """The episodes of one group.

    What a model read is masked, and so are the turns that a branch inherits, which are trained on in the branch that it left.
    The reward of an episode comes with the last token of each of its branches, that of a turn with the turn's last token. A failed
    episode is one masked row: it takes part in no statistic of its group.

    Args:
        episodes: those that answered one problem.
        rewards: what each is worth as a whole, without the rewards of its turns.
        group: the group's number.
        pad_id: fills rows up.
    """
    rows: list[TokenRow] = []
    numbers: list[int] = []
    for number, (episode, reward) in enumerate(zip(episodes, rewards, strict=True)):
        branches = [branch for branch in episode.branches if branch.turns]
        if episode.failed or not branches:
            rows.append(_masked(branches, pad_id))
            numbers.append(number)
            continue
        for branch in branches:
            rows.append(branch_row(branch, reward))
            numbers.append(number)
    # Two groups may use the same numbers: an episode is known by both.
    return token_rows(rows, group=group, pad_id=pad_id, episode=np.asarray(numbers, np.int64))


def branch_row(branch: Branch, reward: float) -> TokenRow:
    """The tokens of a branch, one turn after the other."""
    tokens: list[int] = []
    parts: list[tuple[slice, Any, bool]] = []
    for number, turn in enumerate(branch.turns):
        tokens += turn.prompt
        begin = len(tokens)
        tokens += [int(token) for token in turn.completion.tokens]
        parts.append((slice(begin, len(tokens)), turn, number >= branch.inherited))
    count = len(tokens)
    written, version = np.zeros(count, bool), np.zeros(count, np.int64)
    logprob, given = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for place, turn, own in parts:
        logprob[place], version[place] = turn.completion.logprob, turn.completion.version
        written[place] = own
        if own and place.stop > place.start:
            given[place.stop - 1] += turn.reward
    if written.any():
        # Added, as the last turn may have a reward of its own.
        given[int(np.flatnonzero(written)[-1])] += reward
    last = branch.turns[-1].completion
    cut = last.finish == "length"
    return TokenRow(tokens=np.asarray(tokens, np.int64), written=written, logprob=logprob, version=version, reward=given, cut=cut)


def _masked(branches: Sequence[Branch], pad_id: int) -> TokenRow:
    """What is known of a failed episode, none of which counts."""
    if branches and branches[0].turns[0].prompt:
        tokens = np.asarray(branches[0].turns[0].prompt[:1], np.int64)
    else:
        tokens = np.asarray([pad_id], np.int64)
    nothing = np.zeros(len(tokens), np.float32)
    written, version = np.zeros(len(tokens), bool), np.zeros(len(tokens), np.int64)
    return TokenRow(tokens=tokens, written=written, logprob=nothing, version=version, reward=nothing)
