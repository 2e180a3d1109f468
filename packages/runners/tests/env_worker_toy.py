"""An env worker without a cluster."""

from __future__ import annotations

from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.embodied.topology import Topology


def connected(cfg: PlayedConfig, actors: int = 1) -> tuple[EnvWorker, Topology]:
    """An env worker that is ready to play with one rollout worker, and what it knows of the others."""
    env, slots = EnvWorker(cfg), slot_layout(cfg, 1)
    spec = env.init_worker(slots["train"])
    topology = Topology(spec=spec, actor="actor", actor_ranks=actors, rollout="rollout", rollout_ranks=1, slots=slots)
    env.connect(topology)
    return env, topology
