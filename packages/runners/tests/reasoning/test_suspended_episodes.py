"""Episodes that are under way when their job ends: suspended, gone on with by a later job, each exactly once, token by token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from loop_clock import later
from reasoning_toy import fresh
from suspended_toy import SLOW, Scene, Waiting, Workers, agent_data, job

from rlinf.core.agents import Episode
from rlinf.core.errors import ConfigError
from rlinf.runners.agent import episode_rows
from rlinf.runners.agent.rules import read_agent
from rlinf.runners.reasoning.generation.experience import Generation
from rlinf.runners.reasoning.generation.prompt_groups import Held, ProblemSource, PromptGroup
from rlinf.runners.training.versions import Versions

Play = Callable[[Scene], Coroutine[Any, Any, None]]


@pytest.fixture
def scene(reasoning_data: dict[str, Any], new_queue: Any) -> Callable[..., None]:
    """Plays a scene; keys of `agent` may be given."""

    def run(play: Play, **agent: Any) -> None:
        Waiting.calls.clear()

        async def whole() -> None:
            Waiting.open = asyncio.Event()
            made = Scene(agent_data(reasoning_data, **agent), new_queue)
            await play(made)
            await made.worker.close()
            assert len(asyncio.all_tasks()) == 1, "nothing is left behind"

        asyncio.run(whole())

    return run


def turns(episode: Episode) -> list[list[int]]:
    return [turn.completion.tokens.tolist() for turn in episode.own_turns]


@pytest.mark.parametrize("agents", [1, 3])
def test_an_episode_that_goes_on_is_the_one_that_was_never_suspended(scene: Callable[..., None], agents: int) -> None:
    async def play(made: Scene) -> None:
        Waiting.open.set()
        _, whole = await made.write(job("whole", fresh(6), 6))
        first, early = await made.write(job("first", fresh(6), 3))
        assert made.engine.in_flight == 0, "nothing is written between two jobs"
        assert [g.held.rank for g in first.aborted if g.held is not None] == [0, 0, 0]
        second, late = await made.write(job("second", first.aborted, 3))
        assert sorted([*early, *late]) == list(range(6)), "each group once"
        assert {g: [turns(e) for e in episodes] for g, episodes in (early | late).items()} == {
            g: [turns(e) for e in episodes] for g, episodes in whole.items()
        }
        held = sum(group.written for group in first.aborted)
        assert (second.resumed, second.lost, second.aborted) == (held, 0, ())
        assert held > 0
        assert second.tokens == sum(len(e) for episodes in late.values() for e in episodes)

    scene(play, workflow_type="toy_two_turns", agents=agents)


def test_each_token_has_the_version_that_wrote_it_and_so_have_the_rows(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        Waiting.open.set()
        first, _ = await made.write(job("first", fresh(6), 2, longest=40))
        await made.update(7)
        second, late = await made.write(job("second", first.aborted, 4, longest=40))
        mixed = 0
        for group in first.aborted:
            episodes, held = late[group.group], group.held
            assert held is not None
            versions = [turn.completion.version.tolist() for episode in episodes for turn in episode.own_turns]
            assert all(row == sorted(row) for row in versions), "never of older weights again"
            flat = [version for row in versions for version in row]
            assert (flat.count(0), held.oldest) == (held.tokens, 0 if held.tokens else None)
            mixed += any(len(set(row)) == 2 for row in versions)
            rows = episode_rows(episodes, [1.0, 0.0], group=group.group, pad_id=0)
            assert sorted(rows.version[rows.mask].tolist()) == sorted(flat)
            assert rows.logprob[rows.mask].tolist() == [-1.0] * len(flat)
        assert mixed, "a turn was cut by the update"
        assert second.resumed == sum(group.written for group in first.aborted)

    scene(play)


def test_a_tool_call_in_flight_goes_on_across_an_update(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        first, early = await made.write(job("first", fresh(5), 4))
        (group,) = first.aborted
        assert (group.group, sorted(early)) == (4, [0, 1, 2, 3])
        before = group.written
        assert Waiting.calls.count(SLOW) == 2
        await made.update(3)
        Waiting.open.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert made.engine.in_flight == 0, "the answer is there, and the next turn waits for its job"
        second, late = await made.write(job("second", first.aborted, 1))
        assert Waiting.calls.count(SLOW) == 2, "no call is made twice"
        for episode in late[4]:
            one, two = episode.own_turns
            assert set(one.completion.version.tolist()) == {0}
            assert set(two.completion.version.tolist()) == {3}
            assert [result.text for result in one.results] == ["ab"]
        assert second.resumed == before

    scene(play)


def test_a_group_is_sent_when_all_its_episodes_are_complete_some_of_them_in_an_earlier_job(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        Waiting.open.set()
        _, whole = await made.write(job("whole", fresh(6), 6))
        uneven = max(whole, key=lambda g: abs(len(whole[g][0]) - len(whole[g][1])))
        short = min(map(len, whole[uneven]))
        for needed in range(1, 6):
            first, _ = await made.write(job(f"first {needed}", fresh(6), needed))
            held = next((g.held for g in first.aborted if g.group == uneven), None)
            second, late = await made.write(job(f"second {needed}", first.aborted, 6 - needed))
            if held is not None and held.tokens > 2 * short:
                assert [turns(e) for e in late[uneven]] == [turns(e) for e in whole[uneven]]
                return
            assert not second.aborted
        raise AssertionError("no episode ended before its group")

    scene(play)


def test_a_group_that_ended_unneeded_is_held_as_a_whole(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        Waiting.open.set()
        _, whole = await made.write(job("whole", fresh(6), 6))
        longest = max(whole, key=lambda g: max(map(len, whole[g])))
        again = [PromptGroup(group=g, problem=g, again=g == longest) for g in range(6)]
        found, _ = await made.write(job("again", again, 1))
        for group in found.aborted:
            assert group.written == sum(map(len, whole[group.group]))
        asked = len(made.engine.written)
        second, late = await made.write(job("second", found.aborted, 5))
        assert len(made.engine.written) == asked, "nothing is asked for again"
        assert second.resumed == second.tokens == sum(len(e) for episodes in late.values() for e in episodes)

    scene(play)


def test_what_begins_anew_leaves_nothing_of_the_episode_before(scene: Callable[..., None]) -> None:
    """As the runner asks where what was written would be too old."""

    async def play(made: Scene) -> None:
        first, _ = await made.write(job("first", fresh(5), 4))
        before = asyncio.all_tasks() - {asyncio.current_task()}
        assert before
        await made.update(3)
        Waiting.open.set()
        second, late = await made.write(job("second", [group.anew() for group in first.aborted], 1))
        assert (second.resumed, second.lost) == (0, 0)
        assert {v for e in late[4] for turn in e.own_turns for v in turn.completion.version.tolist()} == {3}
        assert Waiting.calls.count(SLOW) == 4
        assert all(task.done() for task in before), "those that were begun first have ended"

    scene(play)


def test_a_job_that_is_ended_from_outside_ends_its_episodes(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        before = asyncio.all_tasks()
        writing = asyncio.ensure_future(made.worker.generate(job("first", fresh(5), 5), made.channels))
        while Waiting.calls.count(SLOW) < 2:
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        for _ in range(20):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before

    scene(play)


def test_what_a_worker_no_longer_has_begins_anew_and_is_counted(scene: Callable[..., None]) -> None:
    """After a restart of its process, or of the whole run."""

    async def play(made: Scene) -> None:
        Waiting.open.set()
        gone = PromptGroup(group=1, problem=1, again=True, held=Held(rank=0, tokens=11, oldest=0))
        found, late = await made.write(job("k", [gone], 1))
        assert (found.lost, found.resumed, sorted(late)) == (11, 0, [1])
        unneeded, _ = await made.write(job("l", [gone], 0))
        assert (unneeded.lost, unneeded.aborted[0].written) == (11, 0)

    scene(play)


def test_the_clock_of_an_episode_stands_still_while_it_is_suspended(scene: Callable[..., None]) -> None:
    async def play(made: Scene) -> None:
        passed = later()
        first, _ = await made.write(job("first", fresh(5), 4))
        await passed(25.0)
        writing = asyncio.ensure_future(made.write(job("second", first.aborted, 1)))
        await asyncio.sleep(0)
        Waiting.open.set()
        _, late = await writing
        assert [episode.finish for episode in late[4]] == ["stop", "stop"]
        Waiting.open.clear()
        Waiting.calls.clear()
        writing = asyncio.ensure_future(made.write(job("third", [PromptGroup(group=10, problem=4)], 1)))
        while Waiting.calls.count(SLOW) < 2:
            await asyncio.sleep(0)
        await passed(25.0)
        _, late = await writing
        assert [episode.finish for episode in late[10]] == ["timeout", "timeout"], "and goes on afterwards"

    scene(play, episode_timeout_s=20.0, attempts=1)


def test_a_suspended_episode_takes_no_place(scene: Callable[..., None]) -> None:
    """Otherwise an evaluation between two iterations would wait for ever."""

    async def play(made: Scene) -> None:
        Waiting.open.set()
        first, _ = await made.write(job("first", fresh(5), 1))
        assert len(first.aborted) == 4
        _, evaluated = await made.write(job("eval", fresh(3), 3, split="validation"))
        assert sorted(evaluated) == [0, 1, 2]
        second, late = await made.write(job("second", first.aborted, 4))
        assert (len(late), second.lost) == (4, 0), "the evaluation's groups have numbers of their own"
        assert made.worker._places._value == 2, "every place was given back once"

    scene(play, max_concurrent=2)


def test_without_the_allowance_an_aborted_episode_begins_anew(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    data = agent_data(reasoning_data)
    data["rollout"]["partial_lag"] = 0

    async def play() -> None:
        Waiting.open = asyncio.Event()
        Waiting.open.set()
        made = Scene(data, new_queue)
        _, whole = await made.write(job("whole", fresh(6), 6))
        first, _ = await made.write(job("first", fresh(6), 3))
        assert all((group.held, group.written) == (None, 0) for group in first.aborted)
        second, late = await made.write(job("second", first.aborted, 3))
        assert second.resumed == 0
        assert all([turns(e) for e in late[g]] == [turns(e) for e in whole[g]] for g in late)

    asyncio.run(play())


def test_what_can_not_be_gone_on_with_is_refused(reasoning_data: dict[str, Any]) -> None:
    data = agent_data(reasoning_data)
    data["cluster"] = {"component_placement": {"actor": "0", "rollout": "0", "reward": "0", "tools": "0"}}
    with pytest.raises(ConfigError, match=r"rollout\.partial_lag: expected 0, found 1: a tool worker ends the calls of a job"):
        read_agent(data)
    data = agent_data(reasoning_data, workflow_type="delegate", tools=[{"type": "toy_waiting"}, {"type": "delegate"}])
    with pytest.raises(ConfigError, match=r"rollout\.partial_lag: expected 0, found 1: a call of 'delegate' .* runs on"):
        read_agent(data)
    data = agent_data(reasoning_data)
    data["rollout"]["oversample"] = 1.0
    with pytest.raises(ConfigError, match=r"rollout\.partial_lag: .*with rollout\.oversample 1 all groups are waited for"):
        read_agent(data)


def test_what_is_held_goes_to_who_holds_it() -> None:
    held = {0: 1, 1: 1, 2: 0}
    groups = [
        PromptGroup(group=g, problem=g, again=g in held, held=Held(rank=held[g], tokens=5, oldest=2) if g in held else None)
        for g in range(7)
    ]
    shares = [job("k", groups, 4).share(rank, 2) for rank in range(2)]
    assert [[group.group for group in own] for own, _ in shares] == [[2, 3, 4, 6], [0, 1, 5]]
    assert [needed for _, needed in shares] == [2, 2]
    lopsided = [
        PromptGroup(group=g, problem=g, again=g < 3, held=Held(rank=1, tokens=1, oldest=0) if g < 3 else None) for g in range(5)
    ]
    shares = [job("k", lopsided, 3).share(rank, 2) for rank in range(2)]
    assert [([group.group for group in own], needed) for own, needed in shares] == [([3, 4], 0), ([0, 1, 2], 3)]
    fewer = job("k", lopsided, 3).share(0, 1)
    assert ([group.group for group in fewer[0]], fewer[1]) == ([0, 1, 2, 3, 4], 3), "whoever held them is gone"


def test_a_checkpoint_says_what_was_held() -> None:
    source = ProblemSource(5, seed=3, shuffle=True)
    (group,) = source.draw(1)
    held = Held(rank=1, tokens=9, oldest=4)
    source.give_back([PromptGroup(group=group.group, problem=group.problem, held=held)])
    again = ProblemSource(5, seed=3, shuffle=True)
    again.restore(json.loads(json.dumps(source.state())))
    (found,) = again.draw(1)
    assert (found.held, found.written, found.oldest, found.again) == (held, 9, 4, True)
    assert found.anew().held is None


@pytest.mark.parametrize(
    ("max_lag", "partial_lag", "dynamic"), [(0, 1, False), (0, 1, True), (1, 1, False), (1, 2, False), (2, 1, True)]
)
def test_over_a_run_nothing_is_lost_trained_on_twice_or_too_old(
    reasoning_data: dict[str, Any], new_queue: Any, max_lag: int, partial_lag: int, dynamic: bool
) -> None:
    """Counted by hand from every token of every episode, over two workers."""
    data = agent_data(reasoning_data)
    data["rollout"] |= {"max_lag": max_lag, "partial_lag": partial_lag}
    data["algorithm"]["dynamic_sampling"] = {"max_waves": 2} if dynamic else None
    data["runner"]["max_steps"] = steps = 7
    Waiting.open = asyncio.Event()
    Waiting.open.set()
    cfg, loop, versions = read_agent(data), asyncio.new_event_loop(), Versions()
    versions.publish(0)
    jobs = Workers(data, new_queue, loop)
    source = ProblemSource(6, seed=1, shuffle=True)
    made: Any = Generation(cfg, jobs, source, versions, 1)  # type: ignore[arg-type]
    trained, resumed = set[int](), 0.0
    for step in range(steps):
        made.run_ahead(step)
        experience = made.collect(step)
        tokens = [t.completion.version for g in experience.admitted for e in jobs.sent[g] for t in e.own_turns]
        assert np.concatenate(tokens).min() >= step - max_lag - partial_lag
        assert not trained & set(experience.admitted)
        trained |= set(experience.admitted)
        resumed += experience.scalars["rollout/resumed_tokens"]
        if not dynamic:
            assert experience.scalars["rollout/groups_stale"] == 0, "it was known before it was written"
            assert len(experience.admitted) == 4
        versions.publish(step + 1)
        jobs.update(step + 1)
    waiting = [group["group"] for group in made.state()["returned"]]
    assert len(set(waiting)) == len(waiting)
    assert not set(waiting) & set(jobs.sent)
    assert set(waiting) | set(jobs.sent) == set(range(made.state()["position"])), "a group was lost"
    assert resumed > 0 or partial_lag <= max_lag
    jobs.close()
