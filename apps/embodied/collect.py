"""Records an expert or a person: `uv run apps/embodied/collect.py [--config-name RECIPE] [--episodes N] [--human] [key=value …]`.

The environment is `env.eval` of a recipe, and the dataset goes where the recipe looks for it: `data.path` of one of
fine-tuning (`apps/embodied/sft.py`), `algorithm.demo_buffer.path` or `algorithm.co_training.path` of one with demonstrations
(`apps/embodied/train.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.config.arguments import ArgumentParser, real, reals, whole
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeResult, canonical
from rlinf.envs.recording import Continued, LeRobotWriter, NumpyWriter, expect_new, record_expert
from rlinf.runners import ProgressDisplay, compose_app_recipe, demonstrations_path, run_app
from rlinf.runners.entry import INTERRUPTED
from rlinf.runners.task_types import task_type_of

CONFIG_DIR = Path(__file__).parent / "config_sft"
_SPEED = real(0, 1, open_low=True)
SIDE_BY_SIDE = 32
"""Environments that play together."""


def main(argv: Sequence[str]) -> int:
    """Records what a recipe asks for, and says how many episodes were solved."""
    args = _parse(argv)
    data = compose_app_recipe(CONFIG_DIR, args.config_name, args.overrides, elsewhere=args.config_dir).data
    cfg = task_type_of(data).read(data)
    if getattr(cfg, "env", None) is None:
        raise ConfigError("env", "this recipe names no environment to record in", "Set env.eval.env_type and env.eval.init_params.")
    if args.labels == "expert" and getattr(getattr(cfg, "algorithm", None), "demo_buffer", None):
        raise ConfigError("--labels", "algorithm.demo_buffer has to hold what was executed", "Leave it out.")
    config = cfg.env.eval
    config.init_params.check("env.eval.init_params")
    folder = Path(args.out or demonstrations_path(data)).expanduser()
    if not args.resume:
        expect_new(folder, "--out" if args.out else "data.path")
    env = config.init_params.make(
        1 if args.human else min(SIDE_BY_SIDE, args.episodes, config.total_num_envs),
        max_episode_steps=config.max_episode_steps,
        ignore_terminations=config.ignore_terminations,
        render=False,
    )
    if args.format == "numpy":
        writer = NumpyWriter(folder)
    else:
        writer = LeRobotWriter(folder, fps=args.fps, robot_type=config.env_type, finalize_interval=100, use_videos=args.videos)
    asked = {name: getattr(args, name) for name in ("seed", "speed", "noise", "labels", "only_success", "human")}
    played_in = {name: getattr(config, name) for name in ("env_type", "init_params", "max_episode_steps", "ignore_terminations")}
    settings = canonical({**asked, **played_in, "format": args.format, "videos": args.videos, "fps": args.fps})
    writer = Continued(writer, folder, settings, resume=args.resume)
    played: list[EpisodeResult] = []

    def report(episode: EpisodeResult) -> None:
        played.append(episode)
        progress.iteration(len(writer.done) + len(played), f"{sum(bool(each.success_once) for each in played)} solved")

    try:
        with ProgressDisplay(args.episodes, len(writer.done), "record") as progress:
            record_expert(env, writer, episodes=args.episodes, done=writer.done, report=report, **asked)
    except KeyboardInterrupt:
        kept = f"the {writer.count} episodes that had ended are in {folder}, and can be learned from; --resume goes on"
        sys.stdout.write(f"interrupted: {kept if writer.count else 'no episode had ended'}\n")
        return INTERRUPTED
    solved, steps = sum(bool(each.success_once) for each in played), sum(each.episode_len for each in played)
    sys.stdout.write(f"{len(played)} episodes of {steps} steps, {solved} of them solved; {writer.count} are in {folder}\n")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--config-name", default="tabletop_openvla_oft_sft", help="the recipe (default: %(default)s)")
    parser.add_argument("--config-dir", type=Path, help="where the recipe is (default: config_sft or config, beside this script)")
    parser.add_argument("--episodes", type=whole(1), default=24, help="how many (default: %(default)s)")
    parser.add_argument("--out", default=None, help="the folder of the dataset (default: data.path of the recipe)")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted collection, or with more episodes")
    parser.add_argument("--seed", type=whole(0), default=0, help="of initial states and noise (default: %(default)s)")
    parser.add_argument("--speed", type=_SPEED, default=1.0, help="multiplies the expert's actions (default: %(default)s)")
    added = "added to them, uniform in ± this; 0.4,0.4,0 gives each number of an action its own (default: %(default)s)"
    parser.add_argument("--noise", type=reals(0), default=0.0, help=added)
    told = "the actions that are recorded: those executed, or the expert's without noise (default: %(default)s)"
    parser.add_argument("--labels", choices=("executed", "expert"), default="executed", help=told)
    parser.add_argument("--only-success", action="store_true", help="leave out episodes that are not solved")
    parser.add_argument("--human", action="store_true", help="a person plays, at `rlinf robot console`, and not the expert")
    parser.add_argument("--format", choices=("lerobot", "numpy"), default="lerobot", help="numpy keeps final observations, too")
    parser.add_argument("--videos", action="store_true", help="images as videos, smaller and lossy, instead of PNG")
    parser.add_argument("--fps", type=whole(1), default=20, help="control steps a second, for the metadata (default: %(default)s)")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: key=value")
    return parser.parse_intermixed_args(list(argv))


if __name__ == "__main__":
    run_app(main)
