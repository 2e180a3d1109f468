"""DAgger: what the policy visits is learned, too, as an expert would act there.

    sync weights       actor ══weights══► rollout
    play               env ◄══actions══ rollout; in a share β of the steps the expert acts
    append             env ══episodes, labelled══► dataset on disk
    read               actor ◄══ dataset                                   and then `SFTRunner` trains

Ross, Gordon & Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning" (2011),
arXiv:1011.0686.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.evaluation import EpisodeProtocol, EvalReport
from rlinf.core.protocols import WorkerGroup
from rlinf.core.random import keyed_seed
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import EmbodiedEvaluator, episode_protocol
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.embodied.wrapping import described
from rlinf.runners.embodied_sft.actor_worker import PolicySFTActor
from rlinf.runners.embodied_sft.dataset import begin_dataset, dataset_folder, growing
from rlinf.runners.embodied_sft.evaluation import collection_config
from rlinf.runners.embodied_sft.schema import DAggerConfig, EmbodiedSFTConfig
from rlinf.runners.reporting.phases import Phases

_SEED_RANGE = 2**31


class DatasetAggregation:
    """Plays with the policy and its expert, and adds the episodes to the dataset of a run; see `rlinf.runners.sft.runner.Growth`.

    Args:
        cfg: the configuration of the run.
        dagger: its section `dagger`.
        actor: the group that trains.
        rollout: the group that decides.
        env: the group that simulates.
    """

    def __init__(
        self,
        cfg: EmbodiedSFTConfig,
        dagger: DAggerConfig,
        actor: WorkerGroup[PolicySFTActor],
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
    ) -> None:
        self._cfg, self._dagger = cfg, dagger
        self._actor, self._rollout, self._env = actor, rollout, env
        self._played, self._phases = collection_config(cfg), Phases(cfg.runner.timeout_s)
        self._requests, self._answers = (
            actor.cluster.create_channel(name, near=rollout.name) for name in ("dagger_requests", "dagger_answers")
        )
        self._evaluator = EmbodiedEvaluator(rollout, env, requests=self._requests, answers=self._answers, cfg=self._played)
        self._episodes = self._demonstrations = 0

    @property
    def state(self) -> Mapping[str, int]:
        """What a checkpoint must know of the dataset."""
        return {"episodes": self._episodes, "demonstrations": self._demonstrations}

    def open(self, checkpoint: Checkpoint | None) -> None:
        """Writes the dataset with which the run begins or goes on, and builds simulators and policies."""
        # Episodes are kept as the simulator shows and takes them, whatever wrappers change.
        bare = described(replace(self._played.env.eval, wrappers=()))
        self._demonstrations = len(self._cfg.data.dataset.open())
        self._episodes = begin_dataset(self._cfg, checkpoint, bare)
        slots = slot_layout(self._played, self._env.world_size)
        (specs,) = self._phases.wait(self._env.init_worker(slots["train"]))
        spec: EnvSpec = specs[0]
        check_spec(self._played, spec)
        topology = Topology.of(spec, slots, actor=self._actor, rollout=self._rollout)
        self._phases.wait(self._env.connect(topology), self._rollout.init_worker(topology))

    def grow(self, step: int) -> tuple[dict[str, float], list[str]]:
        """Before iteration `step`: plays, adds, and lets the actors read. The first iteration learns from demonstrations alone.

        Returns:
            The numbers of the round, and what is said of it.
        """
        if step == 0:
            return {}, []
        beta = self._dagger.beta(step - 1)
        played = self._play(step, beta)
        self._episodes = growing(self._cfg).append(str(dataset_folder(self._cfg)), played, keep=self._episodes)
        self._phases.wait(self._actor.read_examples())
        solved = float(np.mean([_any(episode.success) for episode in played]))
        scalars = {
            "dagger/beta": beta,
            "dagger/success_once": solved,
            # Of all steps, as episodes differ in length.
            "dagger/interventions": float(np.mean(np.concatenate([np.asarray(each.intervened) for each in played]))),
            "data/episodes": float(self._episodes),
        }
        return scalars, [f"β {beta:.2f}", f"success {solved:.0%}"]

    def evaluate(self) -> EvalReport[Any]:
        """Plays the protocol of a run's evaluations with the newest weights, without the expert."""
        self._sync()
        return self._evaluator.run(episode_protocol(self._played, final=False))

    def close(self) -> None:
        """Closes the simulators."""
        self._phases.wait(self._env.close())

    def _play(self, step: int, beta: float) -> list[OfflineEpisode]:
        """The episodes of a round in the order of their protocol, wherever they were played."""
        protocol = self._protocol(step)
        self._sync()
        per_rank, _ = self._phases.wait(
            self._env.collect(step, protocol, beta, self._requests, self._answers),
            self._rollout.generate(step, self._requests, self._answers, protocol.mode),
        )
        # Until a dataset numbers it, the number of an episode is the seed of its reset.
        numbers = {key.env_seed: key.number for key in protocol.work_list()}
        return sorted((episode for own in per_rank for episode in own), key=lambda episode: numbers[episode.number])

    def _protocol(self, step: int) -> EpisodeProtocol:
        """As evaluations are played, from initial states of its own; success ends an episode."""
        states = keyed_seed(self._cfg.runner.seed, "dagger", step) % _SEED_RANGE
        return replace(
            episode_protocol(self._played, final=False),
            init_ids=tuple(range(self._dagger.episodes)),
            seeds=(states,),
            initial_states="seed",
            ignore_terminations=False,
        )

    def _sync(self) -> None:
        sync = self._played.actor.weight_syncer.sync
        send = self._actor.sync_model_to_rollout(sync, self._rollout.name, self._rollout.world_size)
        self._phases.wait(self._rollout.sync_model_from_actor(), send)


def _any(success: Any) -> bool:
    return bool(np.asarray(success).any())
