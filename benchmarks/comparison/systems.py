"""The systems of the comparison: each does one run, in this process or in one that it starts."""

from __future__ import annotations

import inspect
import json
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from comparison.course import APP, Course, Measured, Sizes, learned_with_sb3, overrides, protocol_of, simulated
from rlinf.envs import ManiSkill
from rlinf.envs.interop import as_sb3_vec_env, as_single_env
from rlinf.runners import EmbodiedConfig
from rlinf.runners.embodied.schema import PlayedConfig


def rlinf(cfg: PlayedConfig, sizes: Sizes, began: float, *, metric: str = "success_once", further: Sequence[str] = ()) -> Measured:
    """The app, whose own evaluations play the protocol; the clock is that of its iterations, `time/step`."""
    protocol = protocol_of(cfg)
    with tempfile.TemporaryDirectory() as folder:
        names = ["runner.experiment_name=rlinf", f"runner.logger.log_path={folder}"]
        command = [
            sys.executable,
            str(APP / "train.py"),
            "--config-name",
            sizes.recipe,
            *overrides(sizes, cfg.runner.seed),
            *further,
            *names,
        ]
        metrics = Path(folder) / "rlinf/metrics.jsonl"
        with subprocess.Popen(command) as run:
            first = first_line(metrics, run)
        if run.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
        summary = json.loads((Path(folder) / "rlinf/summary.json").read_text())
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    if summary["protocol"]["hash"] != protocol.hash:
        raise SystemExit(f"rlinf was evaluated by protocol {summary['protocol']['hash']}, the others by {protocol.hash}")
    measured = Measured(protocol=protocol.to_dict())
    for row in rows:
        if "time/step" in row:
            measured.seconds += row["time/step"]
            measured.steps = int(row["env/steps"])
        if f"eval/{metric}" in row:
            measured.evaluations.append((measured.steps, measured.seconds, row[f"eval/{metric}"]))
    measured.start_s = first - began - rows[0]["time/step"]
    return measured


def first_line(file: Path, run: subprocess.Popen[bytes]) -> float:
    """`time.time()` when the first line of a file was written, to a tenth of a second; the run's end ends the wait."""
    while run.poll() is None:
        if file.is_file() and file.stat().st_size:
            return time.time()
        time.sleep(0.1)
    return time.time()


def sb3(cfg: EmbodiedConfig, sizes: Sizes, began: float, *, tuned: bool = False) -> Measured:
    """Stable-Baselines3's PPO."""
    library = "stable_baselines3"
    algorithm_class, normalized = (
        getattr(import_module(f"{library}{module}"), name) for module, name in (("", "PPO"), (".common.vec_env", "VecNormalize"))
    )
    course = Course(protocol_of(cfg), sizes, began)
    train, algorithm = cfg.env.train, cfg.source["algorithm"]
    net: Any = cfg.actor.model.config
    envs = simulated(cfg)
    vector: Any = as_sb3_vec_env(envs)
    policy: dict[str, Any] = {"net_arch": list(net.hidden_sizes)}
    rate: Any = cfg.source["actor"]["optim"]["lr"]
    if tuned:
        vector = normalized(vector, norm_reward=False, gamma=algorithm["gamma"])
        policy |= {"log_std_init": net.logstd_init, "optimizer_kwargs": {"eps": cfg.source["actor"]["optim"]["adam_eps"]}}
        rate = partial(_falling, rate)
    model = algorithm_class(
        "MlpPolicy",
        vector,
        learning_rate=rate,
        n_steps=train.max_steps_per_rollout_epoch,
        batch_size=cfg.actor.global_batch_size,
        n_epochs=cfg.algorithm.update_epoch,
        gamma=algorithm["gamma"],
        gae_lambda=algorithm["gae_lambda"],
        policy_kwargs=policy,
        seed=cfg.runner.seed,
        device="cpu",
    )

    def decide(states: Any) -> Any:
        return model.predict(vector.normalize_obs(states) if tuned else states, deterministic=True)[0]

    return learned_with_sb3(model, vector, course, decide, sizes.max_steps)


def _falling(rate: float, left: float) -> float:
    return rate * left


def cleanrl(cfg: EmbodiedConfig, sizes: Sizes, began: float) -> Measured:
    """CleanRL's script, as it is. It is written for Gymnasium 0.28, for which three names are given the meaning they had there."""
    gymnasium, tensorboard = import_module("gymnasium"), import_module("torch.utils.tensorboard")
    spec = find_spec("cleanrl")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("cleanrl is not installed; see --help")
    course = Course(protocol_of(cfg), sizes, began)
    train, algorithm = cfg.env.train, cfg.source["algorithm"]
    task = ManiSkill(**course.measured.protocol["env"]["init_params"])
    single: Any = partial(
        as_single_env, task, max_episode_steps=train.max_episode_steps, ignore_terminations=train.ignore_terminations
    )
    ordinary: Any = gymnasium.wrappers.TransformObservation
    synchronous: Any = gymnasium.vector.SyncVectorEnv
    gymnasium.register("Compared-v0", entry_point=single, disable_env_checker=True)

    class SyncVectorEnv(synchronous):
        """Resets within the step, as 0.28 did; what it tells of episodes, which the script prints, has another form today."""

        def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
            synchronous.__init__(self, makers, autoreset_mode="SameStep")

        def reset(self, **given: Any) -> Any:
            """Called once, right before the first step."""
            course.reached(0, lambda states: states)
            return synchronous.reset(self, **given)

        def step(self, actions: Any) -> Any:
            observation, reward, terminated, truncated, _ = synchronous.step(self, actions)
            return observation, reward, terminated, truncated, {}

    def transformed(env: Any, func: Callable[[Any], Any]) -> Any:
        return ordinary(env, func, env.observation_space)

    class Writer:
        """In place of TensorBoard's: the script writes its rate last in each iteration."""

        def __init__(self, folder: str) -> None:
            pass

        def add_text(self, name: str, text: str) -> None:
            """The script has been read; it begins."""

        def add_scalar(self, name: str, value: float, steps: int) -> None:
            """Of an iteration."""
            if name == "charts/SPS":
                frame = inspect.currentframe()
                assert frame is not None
                assert frame.f_back is not None
                seen = frame.f_back.f_globals
                course.reached(steps, partial(_cleanrl_decides, seen["agent"], seen["envs"]))

        def close(self) -> None:
            """The run is over."""

    replaced = (gymnasium.vector, SyncVectorEnv), (gymnasium.wrappers, transformed), (tensorboard, Writer)
    for (module, stand_in), name in zip(replaced, ("SyncVectorEnv", "TransformObservation", "SummaryWriter"), strict=True):
        setattr(module, name, stand_in)
    steps, iteration = train.max_steps_per_rollout_epoch, cfg.decisions_per_iteration
    settings = {
        "env-id": "Compared-v0",
        "seed": cfg.runner.seed,
        "total-timesteps": sizes.max_steps,
        "num-envs": train.total_num_envs,
        "num-steps": steps,
        "num-minibatches": iteration // cfg.actor.global_batch_size,
        "update-epochs": cfg.algorithm.update_epoch,
        "learning-rate": cfg.source["actor"]["optim"]["lr"],
        "gamma": algorithm["gamma"],
        "gae-lambda": algorithm["gae_lambda"],
        "cuda": False,
    }
    sys.argv = ["ppo_continuous_action.py", *(f"--{name}={value}" for name, value in settings.items())]
    runpy.run_path(str(Path(next(iter(spec.submodule_search_locations))) / "ppo_continuous_action.py"), run_name="__main__")
    return course.close()


def _cleanrl_decides(agent: Any, envs: Any, states: Any) -> Any:
    """The mean action; observations are normalised by the statistics of all environments, of which each has its own."""
    import torch

    known = [env.get_wrapper_attr("obs_rms") for env in envs.envs]
    mean = np.mean([each.mean for each in known], axis=0)
    variance = np.mean([each.var + (each.mean - mean) ** 2 for each in known], axis=0)
    seen = np.clip((states - mean) / np.sqrt(variance + 1e-8), -10, 10)
    with torch.no_grad():
        return agent.actor_mean(torch.as_tensor(seen, dtype=torch.float32)).numpy()


SYSTEMS: dict[str, Callable[[EmbodiedConfig, Sizes, float], Measured]] = {
    "rlinf": rlinf,
    "sb3": sb3,
    "sb3_tuned": partial(sb3, tuned=True),
    "cleanrl": cleanrl,
}
