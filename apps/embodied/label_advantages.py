"""Says which recorded actions were good: `uv run apps/embodied/label_advantages.py VALUE_RUN --out FILE [--positive-quantile P]`.

VALUE_RUN is the folder of a run of `apps/embodied/sft.py` whose model is a `recap_value_model` or a `steam_value_model`; the
dataset is the one that it learned from. An action is good if the next steps led further than expected (RECAP), or far in the eyes
of all critics (STEAM): its advantage is among the best of its task. What an expert did in place of a policy always is.
`data.labels=FILE` lets a policy learn from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf.algorithms.objectives import advantage_labels, advantage_threshold, lookahead_advantages, worst_of_ensemble
from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.rewards import LearnsOffsets, LearnsReturns
from rlinf.runners import read_checkpoint, run_app
from rlinf.runners.checkpoints.starting_weights import load_starting_weights
from rlinf.runners.embodied_sft.labels import write_labels
from rlinf.runners.embodied_sft.returns import rewards_of
from rlinf.runners.embodied_sft.scoring import progress_of, values_of
from rlinf.runners.task_types import task_type_of


def main(argv: Sequence[str]) -> int:
    """Labels a dataset, and says how much of it is good."""
    args = _parse(argv)
    checkpoint = read_checkpoint(args.value_run)
    cfg = task_type_of(checkpoint.config).read(checkpoint.config)
    source = cfg.data.dataset.open()
    model = cfg.actor.model.build(source.spec, seed=0)
    if not isinstance(model, LearnsReturns | LearnsOffsets):
        problem = f"expected the run of a value model, and it trained a '{cfg.actor.model.model_type}'"
        raise ConfigError(str(args.value_run), problem, "Name one of a recap_value_model or a steam_value_model.")
    load_starting_weights(model, str(checkpoint.folder), "VALUE_RUN")
    episodes = list(source.episodes())
    advantages, known = _judged(model, episodes, args.advantage_lookahead_step, cfg.data.failure_penalty)
    thresholds, strict = _thresholds(episodes, advantages, args.positive_quantile), isinstance(model, LearnsOffsets)
    labels = [
        advantage_labels(advantage, threshold=thresholds[episode.task], strict=strict, forced=_expert(episode)).numpy()
        for episode, advantage in zip(episodes, advantages, strict=True)
    ]
    write_labels(args.out, labels, advantages=torch.cat(advantages).numpy(), **known)
    for task, threshold in sorted(thresholds.items()):
        sys.stdout.write(f"{task or 'all episodes'}: good {'above' if strict else 'from'} an advantage of {threshold:.4f}\n")
    good, count = sum(int(each.sum()) for each in labels), sum(map(len, labels))
    sys.stdout.write(f"{good:,} of {count:,} steps of {len(episodes):,} episodes are good; labels are in {args.out}\n")
    return 0


def _judged(
    model: LearnsReturns | LearnsOffsets, episodes: Sequence[OfflineEpisode], steps: int, failure_penalty: float
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The advantage of each step, `[T]` of each episode, and what it was computed from, of all steps."""
    if isinstance(model, LearnsOffsets):
        critics = [progress_of(model, episode, steps=steps) for episode in episodes]
        return [worst_of_ensemble(each) for each in critics], {"critics": torch.cat(critics, 1).T.numpy()}
    rewards = map(torch.as_tensor, rewards_of(episodes, failure_penalty=failure_penalty))
    values = [values_of(model, episode) for episode in episodes]
    advantages = [lookahead_advantages(*each, steps=steps) for each in zip(rewards, values, strict=True)]
    return advantages, {"values": torch.cat(values).numpy()}


def _thresholds(episodes: Sequence[OfflineEpisode], advantages: Sequence[torch.Tensor], share: float) -> Mapping[str, float]:
    """By task, the advantage that a share of its steps reaches."""
    found = {task: list[torch.Tensor]() for task in {episode.task for episode in episodes}}
    for episode, advantage in zip(episodes, advantages, strict=True):
        found[episode.task].append(advantage)
    return {task: advantage_threshold(torch.cat(parts), positive_fraction=share) for task, parts in found.items()}


def _expert(episode: OfflineEpisode) -> torch.Tensor | None:
    return None if episode.intervened is None else torch.as_tensor(np.asarray(episode.intervened, bool))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("value_run", type=Path, help="the folder of the value model's run, or one of its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="the file that is written, as .npz")
    parser.add_argument("--advantage-lookahead-step", type=whole(1), default=10, help="N (default: %(default)s)")
    parser.add_argument("--positive-quantile", type=real(0, 1), default=0.3, help="the share that is good (default: %(default)s)")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    run_app(main)
