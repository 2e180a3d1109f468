"""Lines of the environment contract about resets: what a state depends on, and what it must not."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf.core.testing.checks import expect
from rlinf.core.testing.env.moments import Moment, copied, expect_same, first_only, same
from rlinf.core.testing.env.subject import EnvSubject


def pure_reset(subject: EnvSubject) -> None:
    """The same seeds and actions give the same answers to the bit, whatever happened before."""
    first = subject.reference
    _disturb(subject)
    second = subject.replay(subject.env, subject.seeds(1), subject.actions(subject.steps))
    expect_same(first, second, "env.reset", "a reset depends on what happened before it")


UNSEEDED = 12
"""Unseeded resets that must not all agree; an environment may have few initial states, and two resets then agree by chance."""


def seeds(subject: EnvSubject) -> None:
    """Another seed gives another state, and there are three ways to say the same seeds."""
    env, count = subject.env, subject.env.num_envs
    first, second = subject.reference[0], subject.reset(env, subject.seeds(3))
    expect(any(first.row(i) != second.row(i) for i in range(count)), "env.reset", "another seed gives the same state")
    seeds = [subject.seed + i for i in range(count)]
    several = subject.reset(env, seeds)
    for words, arguments in (
        ("seed=s", {"seed": subject.seed}),
        ("options={'seed': [s, s+1, …]}", {"options": {"seed": seeds}}),
    ):
        expect_same([several], [Moment.of(env.reset(**arguments))], "env.reset", f"{words} is not the same as seed=[s, s+1, …]")
    drawn = subject.reset(env, None)
    others = (subject.reset(env, None) for _ in range(UNSEEDED))
    fixed = all(drawn.row(i) == other.row(i) for other in others for i in range(count))
    expect(not fixed, "env.reset", "without a seed there is always the same state")


def place(subject: EnvSubject) -> None:
    """The same seed gives the same state in each place of the vector."""
    env = subject.env
    action = np.repeat(subject.actions(1)[0][:1], env.num_envs, axis=0)
    for words, moment in (("reset", subject.reset(env, [subject.seed] * env.num_envs)), ("step", subject.step(env, action))):
        for index in range(1, env.num_envs):
            equal = moment.seen(index) == moment.seen(0)
            expect(equal, f"env.{words}", f"with the same seed and action, environment {index} differs from environment 0")


def init_id(subject: EnvSubject) -> None:
    """An initial state depends on task and number alone: not on the seed, the place, or what happened before."""
    env, actions = subject.env, subject.actions(subject.steps)
    task: dict[str, Any] = {"task": 0} if "task" in subject.options else {}
    numbers = [i % 2 for i in range(env.num_envs)]
    first = subject.replay(env, subject.seeds(1), actions, init_id=numbers, **task)
    _disturb(subject)
    second = subject.replay(env, subject.seeds(4), actions, init_id=numbers, **task)
    expect_same(first, second, "env.reset", "with an init_id, the state still depends on the seed or the past")
    expect(first[0].seen(0) != first[0].seen(1), "env.reset", "init_id 0 and 1 are the same state")
    if "place" not in subject.waived:
        swapped = subject.reset(env, subject.seeds(5), init_id=[1 - number for number in numbers], **task)
        moved = swapped.seen(0) != first[0].seen(1) or swapped.seen(1) != first[0].seen(0)
        expect(not moved, "env.reset", "an init_id means another state in another place of the vector")
    mixed: list[Any] = [None] * env.num_envs
    mixed[0] = 0
    part = subject.reset(env, subject.seeds(1), init_id=mixed)
    rest = all(part.row(i) == subject.reference[0].row(i) for i in range(1, env.num_envs))
    expect(rest, "env.reset", "where init_id is None, the seed no longer sets the state")


def task(subject: EnvSubject) -> None:
    """A task that is asked for is the task that is played."""
    env, known = subject.env, subject.env.metadata.get("tasks", ())
    count = max(len(known), 1)
    numbers = [(i + 1) % count for i in range(env.num_envs)]
    first = subject.replay(env, subject.seeds(1), subject.actions(2), task=numbers)
    told = first[-1].observation.get("task_descriptions")
    if told is not None and known:
        wanted = [known[number] for number in numbers]
        expect(told.tolist() == wanted, "observation['task_descriptions']", f"asked for {wanted}, found {told.tolist()}")
    if count > 1:
        other = subject.reset(env, subject.seeds(1), task=[(number + 1) % count for number in numbers])
        differs = any(other.row(i) != first[0].row(i) for i in range(env.num_envs))
        expect(differs, "env.reset", "another task gives the same observations")
    _disturb(subject)
    again = subject.replay(env, subject.seeds(1), subject.actions(2), task=numbers)
    if "pure_reset" not in subject.waived:
        expect_same(first, again, "env.reset", "with a task, a reset depends on what happened before it")


def partial_reset(subject: EnvSubject) -> None:
    """A reset of environment 0 leaves the others as if it had not been."""
    env, actions = subject.env, subject.actions(3)
    mask = first_only(env.num_envs)
    before = subject.replay(env, subject.seeds(1), actions[:2])[-1]
    after = subject.reset(env, subject.seeds(4), mask)
    for index in range(1, env.num_envs):
        untouched = after.seen(index) == before.seen(index)
        expect(untouched, "env.reset", f"a reset of environment 0 changed the observation of environment {index}")
    # Below the same steps are taken without the reset, which an end forbids.
    if "pure_reset" in subject.waived or before.done.any():
        return
    touched = subject.step(env, actions[2])
    # Where environments share state, the same one plays once more.
    other = env if "instances" in subject.waived else subject.other
    subject.replay(other, subject.seeds(1), actions[:2])
    alone = subject.step(other, actions[2])
    for index in range(1, env.num_envs):
        expect(touched.row(index) == alone.row(index), "env.reset", f"a reset of environment 0 moved environment {index}")
    fresh = subject.reset(other, subject.seeds(4))
    expect(after.row(0) == fresh.row(0), "env.reset", "a partial reset gives another state than a full one of the same seed")
    moved = subject.step(other, actions[2])
    expect(touched.row(0) == moved.row(0), "env.step", "after a partial reset, an episode goes otherwise than after a full one")


def instances(subject: EnvSubject) -> None:
    """What happens to one environment changes nothing in another from the same factory."""
    env, other, first = subject.env, subject.other, subject.reference
    expect(env is not other, "factory", "it gave the same object twice", "Build a new environment on each call.")
    for name in ("observation_space", "action_space"):
        expect(getattr(env, name) == getattr(other, name), f"env.{name}", "two environments of one factory announce other spaces")
    subject.reset(env, subject.seeds(5))
    second = [subject.reset(other, subject.seeds(1))]
    # Between the calls of `other`, so that state which both have shows.
    subject.reset(env, subject.seeds(2))
    for action, noise in zip(
        subject.actions(subject.steps)[: len(first) - 1], subject.actions(subject.steps, seed=2), strict=False
    ):
        second.append(subject.step(other, action))
        done = subject.step(env, noise).done
        if done.any():
            subject.reset(env, subject.seeds(5), done)
    expect_same(first, second, "env", "two environments of one factory share state")


def kept_observation(subject: EnvSubject) -> None:
    """What a call returned is the caller's: later calls don't change it."""
    env, actions = subject.env, subject.actions(2)
    given = [env.reset(seed=subject.seeds(1)), env.step(actions[0])]
    names = ("reward", "terminated", "truncated")
    kept = [copied({"observation": answer[0], **dict(zip(names, answer[1:4], strict=False))}) for answer in given]
    # No step is allowed after an end.
    if not (given[1][2] | given[1][3]).any():
        env.step(actions[1])
    env.reset(seed=subject.seeds(6), options={"reset_mask": subject.some()})
    for answer, before in zip(given, kept, strict=True):
        now = copied({"observation": answer[0], **dict(zip(names, answer[1:4], strict=False))})
        for key, array in before.items():
            expect(same(array, now[key]), key, "a later call changed what was given before")


def _disturb(subject: EnvSubject) -> None:
    """Whatever could leave a trace: other seeds and actions, an episode begun and dropped, a partial reset."""
    env = subject.env
    subject.replay(env, subject.seeds(2), subject.actions(subject.steps, seed=1))
    subject.reset(env, subject.seeds(3), subject.some()[::-1].copy())
