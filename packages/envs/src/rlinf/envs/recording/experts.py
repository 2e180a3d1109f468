"""Demonstrations of a scripted expert, recorded as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv

from rlinf.core.capabilities import HasExpert
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeProtocol, EpisodeResult, Turn
from rlinf.core.random import keyed_seed
from rlinf.envs.evaluation import play
from rlinf.envs.recording.episode import Writer
from rlinf.envs.recording.wrapper import RecordEpisodes
from rlinf.envs.spaces import describe
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Step, remasked
from rlinf.envs.wrappers.interventions import HasHuman

_SEED_RANGE = 2**31


def record_expert(
    env: VectorEnv[Any, Any, Any],
    writer: Writer,
    *,
    episodes: int,
    seed: int = 0,
    speed: float = 1.0,
    noise: float | Sequence[float] = 0.0,
    labels: Literal["executed", "expert"] = "executed",
    only_success: bool = False,
    human: bool = False,
    done: Collection[int] = (),
    report: Callable[[EpisodeResult], None] | None = None,
) -> list[EpisodeResult]:
    """Lets the environment's own expert play, and records it. A slow and imprecise expert leaves something to be learned by RL.

    Initial states follow from the seed, and are none of those that an evaluation with the same seed begins with.

    Args:
        env: an environment of this package, whose `unwrapped` has `expert_actions`; closed afterwards.
        writer: gets the episodes in the order in which they end; closed afterwards.
        episodes: how many are played.
        seed: of initial states and noise.
        speed: in (0, 1], by which the expert's actions are multiplied.
        noise: uniform in [−noise, noise], added to them; the environment's bounds clip the sum. One number, or one for each of an
            action's.
        labels: what is recorded as action: what was `executed`, or what the `expert` does in that state without speed and noise.
            Imitation learns from the latter how to come back from where noise leads; it is no dataset for reinforcement learning,
            which has to know what was executed. Laskey et al., "DART: Noise Injection for Robust Imitation Learning" (2017),
            arXiv:1703.09327.
        only_success: leaves out episodes that are not solved, so that there may be fewer.
        human: a person plays (`rlinf robot console`), and not the expert; while they do nothing, the action is 0.
        done: seeds of resets whose episodes are there already, and are not played again.
        report: called with each episode as soon as it has ended.

    Returns:
        How the episodes ended, those that were left out among them.

    Raises:
        ConfigError: the environment has no expert, or a number is out of its range.
    """
    spec: EnvSpec = describe(env)
    try:
        if human and labels == "expert":
            raise ConfigError("labels", "a person who plays is not the scripted expert", "Leave out one of human and labels.")
        acts = _acting(env.unwrapped, human=human)
        expect_at_least("episodes", episodes, 1)
        expect_range("speed", speed, 0, 1, open_low=True)
        for value in np.ravel(noise).tolist():
            expect_at_least("noise", value, 0)
        if np.ndim(noise) and np.shape(noise) != spec.action.shape:
            wanted = f"one number, or one for each of an action's, which has shape {spec.action.shape}"
            raise ConfigError("noise", f"expected {wanted}; found {len(np.ravel(noise))}")
    except ConfigError:
        writer.close()
        env.close()
        raise
    instead = _Instead(env, spec.action.shape) if labels == "expert" else None
    recorded = RecordEpisodes(instead or env, writer, only_success=only_success)
    spread = np.asarray(noise)

    def decide(observations: Mapping[str, Any], turns: Sequence[Turn]) -> Any:
        del observations  # the expert knows everything
        slots = [turn.slot for turn in turns]
        wanted = np.asarray(acts())[slots]
        jitter = np.stack([turn.generator("expert").uniform(-spread, spread, spec.action.shape) for turn in turns])
        executed = (speed * wanted + jitter).astype(np.float32)
        if instead is None:
            return executed
        instead.actions[slots] = executed
        return wanted

    # Evaluations take their states from the seed itself.
    states = keyed_seed(seed, "demonstrations") % _SEED_RANGE
    protocol = EpisodeProtocol(env="demonstrations", init_ids=tuple(range(episodes)), seeds=(states,), initial_states="seed")
    try:
        left = [episode for episode in protocol.work_list() if episode.env_seed not in done]
        return play(recorded, decide, protocol, left, report=report)
    finally:
        recorded.close()


class _Instead(Wrapper):
    """Executes `actions` `[N, A]`, clipped to their bounds, in place of those that it is given."""

    def __init__(self, env: VectorEnv[Any, Any, Any], shape: tuple[int, ...]) -> None:
        super().__init__(env)
        self.actions = np.zeros((env.num_envs, *shape), np.float32)

    def step(self, actions: Any) -> Step:
        space = self.single_action_space
        result: Step = self.env.step(remasked(actions, np.clip(self.actions, space.low, space.high)))
        return result


def _acting(env: Any, *, human: bool) -> Callable[[], Any]:
    """What is done now, `[N, A]`."""
    if human:
        if not isinstance(env, HasHuman):
            raise ConfigError("env", f"there is no console beside {type(env).__name__} (human_actions)", "Use env_type realworld.")
        return lambda: np.nan_to_num(env.human_actions())
    if not isinstance(env, HasExpert):
        problem = f"this environment has no scripted expert ({type(env).__name__}.expert_actions)"
        raise ConfigError("env", problem, "Record a policy instead (env.eval.data_collection), or a person.")
    return env.expert_actions
