"""The command line of `rlinf replay`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.replay.saved_episodes import SavedEpisode
from rlinf.envs.offline.replay import ReplaySource
from rlinf.envs.replay.sources import Skipped, Source, common_spec, judged, open_source
from rlinf.envs.replay.targets import TARGETS, write_target


def replay(args: Sequence[str]) -> int:
    """Looks at what runs collected, or writes it anew: `rlinf replay inspect|merge|filter|convert`.

    Returns:
        0; 1 if something was damaged and skipped.
    """
    given = _parser().parse_args(list(args))
    damaged: list[str] = []

    def skip(error: RLinfError) -> None:
        # What is read twice is told of once.
        if str(error) not in damaged:
            damaged.append(str(error))
            sys.stderr.write(f"skipped: {error}\n")

    # Only `filter` has these options.
    least, solved = getattr(given, "min_return", None), getattr(given, "only_success", False)
    if given.action == "filter" and least is None and not solved:
        remedy = "Set --min-return or --only-success; merge writes all episodes."
        raise ConfigError("rlinf replay filter", "nothing says which episodes are left out", remedy)
    skipped: Skipped | None = skip if given.skip_damaged else None
    sources = [open_source(path, skipped) for path in given.sources]
    if given.action == "inspect":
        for source in sources:
            _inspect(source)
    else:
        spec = common_spec(sources)

        def episodes() -> Iterator[OfflineEpisode]:
            nonlocal there
            # A format that reads them twice counts them anew.
            there = 0
            for passes, episode in judged(sources, min_return=least, only_success=solved):
                there += 1
                if passes:
                    yield episode

        there = 0
        written = write_target(given.to, given.target, episodes, spec, fps=given.fps)
        sys.stdout.write(f"{given.target}: {written} of {there} episodes as {given.to}\n")
    return 1 if damaged else 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="rlinf replay", description="Looks at what runs collected, and brings it into other forms.")
    actions = parser.add_subparsers(dest="action", required=True)
    for action, text in (
        ("inspect", "says what there is"),
        ("merge", "writes the episodes of several as one"),
        ("filter", "leaves out episodes"),
        ("convert", "writes another format"),
    ):
        own = actions.add_parser(action, help=text, description=f"rlinf replay {action}: {text}.")
        own.add_argument("sources", type=Path, nargs="+", help="a run, a global_step_N, a buffer, or a dataset's folder")
        own.add_argument("--skip-damaged", action="store_true", help="leave out what is damaged, and name it")
        if action == "inspect":
            continue
        own.add_argument("target", type=Path, help="a folder, which is made")
        own.add_argument("--to", choices=list(TARGETS), required=action == "convert", default="replay", help="format (replay)")
        own.add_argument("--fps", type=whole(1), default=20, help="control steps a second, for lerobot (20)")
        if action == "filter":
            own.add_argument("--min-return", type=real(), help="the least sum of rewards of an episode")
            own.add_argument("--only-success", action="store_true", help="leave out what was never solved")
    return parser


def _inspect(source: Source) -> None:
    """Reads everything, so that damage is found."""
    write = sys.stdout.write
    write(f"{source.path}: {source.kind}\n")
    if isinstance(source.opened, ReplaySource):
        for buffer in source.opened.buffers:
            state, sampled = buffer.state, "uniform" if buffer.state["largest_priority"] is None else "prioritized"
            size = f"{buffer.producers} producers with {buffer.slots:,} slots each, {buffer.nbytes:,} bytes on the disk"
            write(f"  {buffer.folder}: {size}\n")
            write(f"    {state['added']:,} transitions ever added; n_step {state['n_step']}, gamma {state['gamma']:g}, {sampled}\n")
    spec = source.opened.spec
    for key, of in (*spec.observation.items(), ("action", spec.action)):
        write(f"  {key:20} {of.dtype} {list(of.shape)}\n")
    # Reduced to numbers one by one: all episodes of a large buffer may not fit into memory.
    _count(list(map(_Counted, source.episodes())))


class _Counted:
    """The numbers of one episode."""

    def __init__(self, saved: SavedEpisode) -> None:
        episode = saved.episode
        self.whole, self.begun, self.ended = saved.begun and saved.ended, saved.begun, saved.ended
        self.steps, self.total = len(episode), float(episode.reward.sum())
        self.solved = None if episode.success is None else bool(episode.success.any())


def _count(episodes: list[_Counted]) -> None:
    write, whole = sys.stdout.write, [each for each in episodes if each.whole]
    cut, going = sum(not each.begun for each in episodes), sum(not each.ended for each in episodes)
    write(f"  {sum(each.steps for each in episodes):,} transitions in {len(episodes):,} episodes, {len(whole):,} of them whole")
    write(f" ({cut} may lack their beginning, {going} were under way or given up)\n" if cut or going else "\n")
    if whole:
        for name, numbers in (("return", [each.total for each in whole]), ("steps", [each.steps for each in whole])):
            write(f"  {name:20} mean {np.mean(numbers):.4g}, least {min(numbers):.4g}, greatest {max(numbers):.4g}\n")
        known = [each.solved for each in whole if each.solved is not None]
        if known:
            write(f"  {'success':20} {np.mean(known):.1%} of {len(known)}\n")
