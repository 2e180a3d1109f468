"""What a slot does in an evaluation: it plays the episodes of a protocol, one player after another."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import numpy as np

from rlinf.core.evaluation import EpisodeKey, EpisodePlayer, EpisodeProtocol, EpisodeResult
from rlinf.runners.embodied.playing.env_slot import Conversation, EnvSlot, RequestSender
from rlinf.runners.embodied.playing.episode_memory import EpisodeMemory


def evaluation_of(
    env_slot: EnvSlot, sender: RequestSender, players: Iterable[EpisodePlayer], results: list[EpisodeResult]
) -> Conversation:
    """One slot's part of an evaluation: what its players play, one after another, is added to `results`."""
    for player in players:
        memory, decision = EpisodeMemory(), 0
        while not player.done:
            # A simulator may write its next observations into the same memory while these are on their way.
            obs = {key: np.copy(value) for key, value in player.observations.items()}
            sender.ask(env_slot.slot, (decision,), obs, memory.recall(_episodes(player)))
            answer = env_slot.answer((yield))
            memory.keep(_episodes(player), answer.memory)
            with env_slot.located():
                results += player.step(answer.decision.action)
            decision += 1
    env_slot.close_requests(sender)


def filmed_players(
    env_slot: EnvSlot, protocol: EpisodeProtocol, episodes: Iterable[tuple[EpisodeKey, str]]
) -> Generator[EpisodePlayer]:
    """A player for each episode that is recorded to a file of its own."""
    # Made one at a time: each begins with a reset, for which the one before it must be through.
    for key, file in episodes:
        yield env_slot.player(protocol, [key], {"record": file, "tiles": 1})


def _episodes(player: EpisodePlayer) -> list[int]:
    """The numbers of the episodes that must be decided for."""
    return [turn.episode.number for turn in player.turns]
