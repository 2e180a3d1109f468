"""Trains a reward classifier from labelled frames: `uv run apps/embodied/reward_classifier.py --data DATASET --out FOLDER`.

The dataset is one that `collect.py --format numpy` recorded, or any other whose episodes say in which steps the task was solved: by
the pose of the tool in a simulator, or by whoever pressed y (`success: key`). The classifier is then who says it in a run:
`env.train.init_params.success=rlinf.models.reward_models:frame_judge` with `success_params: {folder: FOLDER}`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_generator
from rlinf.core.registry import DATASETS
from rlinf.models.reward_models import SuccessClassifier, SuccessClassifierConfig
from rlinf.runners import run_app


def main(argv: Sequence[str]) -> int:
    """Trains, and says how many frames of episodes that were held out it judges as they are labelled."""
    args = _parse(argv)
    episodes = list(DATASETS.build(args.type, {"path": str(args.data)}, place="--data").open().episodes())
    held = max(1, round(len(episodes) * args.held_out))
    if len(episodes) < 2:
        raise ConfigError("--data", "expected at least 2 episodes, one of which is held out", "Record more of them.")
    (frames, labels), (unseen, expected) = (labelled(part, args.key) for part in (episodes[held:], episodes[:held]))
    if labels.all() or not labels.any():
        raise ConfigError("--data", f"all {len(labels)} frames to learn from have the same label", "Record both kinds.")
    classifier = trained(frames, labels, steps=args.steps, seed=args.seed)
    classifier.save(args.out)
    judged = classifier.score(unseen).numpy() >= args.threshold
    right = [int((judged[expected == kind] == kind).sum()) for kind in (True, False)]
    sizes = [int(expected.sum()), int((~expected).sum())]
    told = f"learned from {len(labels)} frames, {int(labels.sum())} of them solved; of {held} episodes held out it knows"
    sys.stdout.write(f"{told} {right[0]} of {sizes[0]} solved frames and {right[1]} of {sizes[1]} others; it is in {args.out}\n")
    return 0


def labelled(episodes: Sequence[OfflineEpisode], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[B, H, W, 3]` uint8 after each action, and whether each shows success, `[B]`."""
    frames, labels = list[np.ndarray](), list[np.ndarray]()
    for episode in episodes:
        if key not in episode.observation or episode.success is None:
            lacking = f"frames '{key}'" if key not in episode.observation else "where the task was solved"
            raise ConfigError(
                "--data", f"episode {episode.number} does not record {lacking}", "Record them, or name another --key."
            )
        seen = np.asarray(episode.observation[key])[1:]
        # A format without final observations has a frame less than labels.
        frames.append(seen)
        labels.append(np.asarray(episode.success, bool)[: len(seen)])
    return np.concatenate(frames), np.concatenate(labels)


def trained(frames: np.ndarray, labels: np.ndarray, *, steps: int, seed: int) -> SuccessClassifier:
    """A small classifier of frames, by batches of 32 of which half show success."""
    torch.set_num_threads(1)
    height, width = frames.shape[1:3]
    classifier = SuccessClassifierConfig(image_size=(height, width), preset="tiny").build(seed=seed)
    optimizer: Any = torch.optim.AdamW(classifier.parameters(), lr=1e-3, weight_decay=1e-4)
    draw, kinds = keyed_generator(seed, "frames"), [np.flatnonzero(labels), np.flatnonzero(~labels)]
    for _ in range(steps):
        rows = np.concatenate([draw.choice(kind, 16) for kind in kinds])
        # Shifted by a few pixels, so that few frames are not learned by heart.
        across, down = draw.integers(-2, 3, 2).tolist()
        loss = classifier.loss(np.roll(frames[rows], (down, across), (1, 2)), torch.as_tensor(labels[rows]))
        mean: Any = loss.total / loss.weight
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    return classifier.eval()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the dataset")
    parser.add_argument("--type", default="numpy", help="its format, a registered dataset (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="where the classifier is written, as safetensors")
    parser.add_argument("--key", default="main_images", help="of the frames in observations (default: %(default)s)")
    parser.add_argument("--steps", type=whole(1), default=600, help="of training (default: %(default)s)")
    parser.add_argument("--threshold", type=real(0, 1), default=0.8, help="of the probability of success (default: %(default)s)")
    parser.add_argument("--held-out", type=real(0, 1), default=0.25, help="share of the episodes (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of weights and batches (default: %(default)s)")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    run_app(main)
