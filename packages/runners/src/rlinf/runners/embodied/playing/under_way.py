"""The episodes that a checkpoint finds under way, which a run that goes on plays again up to where they were.

A simulator can't be saved. But where an episode is follows from its initial state, which its number gives, and from what was done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.envs.robots import LetsHumansAct
from rlinf.runners.embodied.playing.initial_states import PURE
from rlinf.runners.embodied.schema import TrainEnvConfig

Bools = NDArray[np.bool_]
ELSEWHERE: Final = "played again they do not come to where they were, or other workers had them"
"""Why episodes begin anew that could be played again."""
KEPT_BYTES: Final = 256 * 2**20
"""Of the newest actions of a slot: enough for 16 environments with 6 numbers each through 700,000 decisions."""
TOO_LONG: Final = f"an episode has had more actions than the {KEPT_BYTES // 2**20} MiB of each slot that are kept"
"""Why episodes begin anew of which only the end is known."""


def unrepeatable(config: TrainEnvConfig, waived: Mapping[str, str]) -> str:
    """Why an episode can't be played again; "" where it can.

    Args:
        config: of the environments.
        waived: what they can't keep of the contract, and why.
    """
    if any(isinstance(wrapper, LetsHumansAct) for _, wrapper in config.wrapping):
        return "somebody acts in place of the policy"
    return ", ".join(f"the simulator does not keep {key} ({waived[key]})" for key in PURE if key in waived)


def episodes_file(folder: str, rank: int) -> Path:
    """What an env worker of that rank writes into the folder of a checkpoint."""
    return Path(folder) / f"episodes_{rank}.safetensors"


class EpisodeActions:
    """What was executed in the episode that each environment of a slot is in: as much memory as the longest takes, up to a bound.

    Of an episode that goes on beyond it only the end is kept, from which nobody gets to where it is; see `forgotten`.

    Args:
        num_envs: environments of the slot.
    """

    def __init__(self, num_envs: int) -> None:
        self._count = np.zeros(num_envs, np.int64)
        self._actions: deque[NDArray[Any]] = deque()

    def begin(self, mask: Bools) -> None:
        """Forgets the episodes of the environments of `mask`, where others begin."""
        self._count[mask] = 0
        while len(self._actions) > self._count.max():
            self._actions.popleft()

    def append(self, actions: NDArray[Any]) -> None:
        """Actions `[N, K, *]`, within the bounds; those of the same decision in all environments."""
        self._actions.append(np.array(actions))
        self._count += 1
        while len(self._actions) > 1 and len(self._actions) * actions.nbytes > KEPT_BYTES:
            self._actions.popleft()

    def saved(self, going: Bools) -> dict[str, Any]:
        """`count` `[N]`, how many decisions each episode has had, and `actions` `[T, N, K, *]`, the newest last.

        No `actions` if all counts are 0, or if what an episode began with was more than is kept.

        Args:
            going: `[N]`, the environments whose episodes go on; of the others nothing is kept.
        """
        count = np.where(going, self._count, 0)
        longest, kept = int(count.max()), list(self._actions)
        whole = 0 < longest <= len(kept)
        return {"count": count, **({"actions": np.stack(kept[len(kept) - longest :])} if whole else {})}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes over what `saved` returned."""
        self._count, self._actions = saved["count"], deque(saved.get("actions", ()))


def forgotten(saved: Mapping[str, Any]) -> bool:
    """Whether an episode had more actions than were kept, so that it can't be played again; see `EpisodeActions.saved`."""
    return "actions" not in saved and bool(saved["count"].any())


def play_again(env: Any, saved: Mapping[str, Any], begin: Callable[[Bools, Bools], Any]) -> Any:
    """Brings environments to where they were; returns what they show there, or None where an episode ends too soon.

    All end together: an environment is reset so many decisions before the end as its episode has had, and stands still until then,
    or acts at random where its simulator can't let it stand.

    Args:
        env: a vector environment without autoreset.
        saved: see `EpisodeActions.saved`.
        begin: resets the environments of the first mask and returns the observations of all; the second says whose episodes count.
    """
    count = saved["count"]
    actions = saved.get("actions", ())
    obs, ended = begin(np.ones(len(count), bool), count == len(actions)), np.zeros(len(count), bool)
    for at, chunk in enumerate(actions):
        begun, starts = count >= len(actions) - at, count == len(actions) - at
        if at and starts.any():
            obs, ended = begin(starts, starts), ended & ~starts
        for action in chunk.swapaxes(0, 1):
            moves = begun if env.metadata.get("masked_actions", False) else begun | ~ended
            obs, _, over, cut, _ = env.step(action if moves.all() else MaskedActions(action, moves))
            ended = ended | ((np.asarray(over) | np.asarray(cut)) & moves)
            if (ended & begun).any():
                return None
    starts = count == 0
    return begin(starts, starts) if len(actions) and starts.any() else obs
