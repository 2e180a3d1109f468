"""What a slot does in an evaluation: it plays the episodes of a protocol, one player after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from itertools import count
from typing import Any, Final

import numpy as np

from rlinf.core.data.tree import tree_index
from rlinf.core.evaluation import EpisodeKey, EpisodePlayer, EpisodeProtocol, EpisodeResult, RealTimeChunking
from rlinf.runners.embodied.playing.env_slot import Conversation, EnvSlot, Floats, RequestSender
from rlinf.runners.embodied.playing.episode_memory import EpisodeMemory
from rlinf.runners.embodied.topology import ChunksInExecution

TELL_EVERY_S: Final = 30.0


def evaluation_of(
    env_slot: EnvSlot,
    sender: RequestSender,
    players: Iterable[EpisodePlayer],
    results: list[EpisodeResult],
    timing: RealTimeChunking | None = None,
) -> Conversation:
    """One slot's part of an evaluation: what its players play, one after another, is added to `results`.

    With `timing` the policy decides while its last chunk is executed; without, everything stands still while it decides.
    """
    for player in players:
        if timing is None:
            yield from _step_by_step(env_slot, sender, player, results)
        else:
            yield from _in_real_time(env_slot, sender, player, results, timing)
    env_slot.close_requests(sender)


def telling(played: Sequence[Sized], total: int, say: Callable[[str], None]) -> Callable[[], None]:
    """What is called after each answer, and says every half minute how far an evaluation is.

    Args:
        played: the episodes of each slot, which become more.
        total: how many they will be in all.
        say: is given the line.
    """
    due = time.monotonic() + TELL_EVERY_S

    def look() -> None:
        nonlocal due
        if (now := time.monotonic()) > due:
            due = now + TELL_EVERY_S
            say(f"evaluation: {sum(map(len, played)):,} of {total:,} episodes are played")

    return look


def _step_by_step(env_slot: EnvSlot, sender: RequestSender, player: EpisodePlayer, results: list[EpisodeResult]) -> Conversation:
    memory, numbers = EpisodeMemory(), count()
    while not player.done:
        sender.ask(env_slot.slot, (next(numbers),), _observed(player), memory.recall(_episodes(player)))
        answer = env_slot.answer((yield))
        memory.keep(_episodes(player), answer.memory)
        with env_slot.located():
            results += player.step(answer.decision.action)


def _in_real_time(
    env_slot: EnvSlot, sender: RequestSender, player: EpisodePlayer, results: list[EpisodeResult], timing: RealTimeChunking
) -> Conversation:
    """Asks for the next chunk and executes the first steps of the last one before it looks for the answer.

    With K steps in a chunk, K - s of it are left when the next one is asked for, and d of those are executed meanwhile.
    """
    delay, horizon, numbers = timing.delay, timing.execution_horizon, count()
    rests: dict[int, Floats] = {}
    while not player.done:
        episodes, obs = _episodes(player), _observed(player)
        begins = [row for row, episode in enumerate(episodes) if episode not in rests]
        if begins:
            # An episode begins with a chunk in hand: before its first decision there is nothing to execute.
            sender.ask(env_slot.slot, (next(numbers),), tree_index(obs, begins))
            first = env_slot.clipped(env_slot.answer((yield)).decision.action)
            timing.expect_fitting(first.shape[1], "env.eval.real_time_chunking")
            # K − s steps, as every later chunk leaves behind its horizon.
            left = first[:, : first.shape[1] - horizon]
            rests |= {episodes[row]: chunk for row, chunk in zip(begins, left, strict=True)}
        rest = np.stack([rests[episode] for episode in episodes])
        chunks = ChunksInExecution(rest=rest, delay=delay) if timing.guidance else None
        sender.ask(env_slot.slot, (next(numbers),), obs, chunks=chunks)
        # `begin` takes one step at least.
        if delay:
            with env_slot.located():
                player.begin(rest[:, :delay])
        chunk = env_slot.clipped(env_slot.answer((yield)).decision.action)
        with env_slot.located():
            results += player.step(chunk[:, delay:horizon])
        rests = dict(zip(episodes, chunk[:, horizon:], strict=True))


def filmed_players(
    env_slot: EnvSlot, protocol: EpisodeProtocol, episodes: Iterable[tuple[EpisodeKey, str]]
) -> Generator[EpisodePlayer]:
    """A player for each episode that is recorded to a file of its own."""
    # Made one at a time: each begins with a reset, for which the one before it must be through.
    for key, file in episodes:
        yield env_slot.player(protocol, [key], {"record": file, "tiles": 1})


def _observed(player: EpisodePlayer) -> dict[str, Any]:
    # A simulator may write its next observations into the same memory while these are on their way.
    return {key: np.copy(value) for key, value in player.observations.items()}


def _episodes(player: EpisodePlayer) -> list[int]:
    """The numbers of the episodes that must be decided for."""
    return [turn.episode.number for turn in player.turns]
