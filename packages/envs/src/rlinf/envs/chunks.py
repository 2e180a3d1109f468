"""Action chunks: several control steps from one decision, and single environments that may stand still meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gymnasium.vector import SyncVectorEnv

from rlinf.core.chunks import ChunkStep as ChunkStep
from rlinf.core.chunks import MaskedActions
from rlinf.core.chunks import chunk_step as chunk_step
from rlinf.envs.wrappers.episodes import Infos


class HaltingVectorEnv(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv`, in which `MaskedActions` step only the environments that they name."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        # Gymnasium's base class is only partly typed.
        cast("Any", super()).__init__(*args, **settings)
        self.metadata = {**self.metadata, "masked_actions": True}

    def step(self, actions: Any) -> Any:
        """One step of every environment, or of those that are named; the others keep their observation, and their reward is 0."""
        untyped = cast("Any", self)
        if not isinstance(actions, MaskedActions):
            return cast("Any", super()).step(actions)
        envs, active = untyped.envs, actions.active
        untyped.envs = [env if on else _Still(untyped._env_obs[i]) for i, (env, on) in enumerate(zip(envs, active, strict=True))]
        # Gymnasium refuses to step an environment that has ended; those that have are not stepped.
        untyped._autoreset_envs = untyped._autoreset_envs & active
        try:
            return cast("Any", super()).step(actions.actions)
        finally:
            untyped.envs = envs


@dataclass(frozen=True, slots=True)
class _Still:
    """Stands for an environment that takes no step."""

    observation: Any

    def step(self, action: object) -> tuple[Any, float, bool, bool, Infos]:
        return self.observation, 0.0, False, False, {}
