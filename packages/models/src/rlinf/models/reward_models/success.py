"""Whether a frame shows success: a small residual network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from rlinf.core.config import expect_range, read
from rlinf.core.data import LossOutput
from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.models.heads import ValueHead
from rlinf.models.layers.choices import Pooling
from rlinf.models.layers.choices import Preset as ResNetPreset
from rlinf.models.layers.resnet import SHAPES, ResNetEncoder, make_pooling
from rlinf.models.reward_models.losses import success_loss
from rlinf.models.seeding import seeded_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessClassifierConfig:
    """A small residual network that says whether a frame shows success."""

    image_size: tuple[int, int]
    """Height and width of frames in pixels."""
    preset: ResNetPreset = "base"
    """The size of the network."""
    pooling: Pooling = "spatial_embeddings"
    """How feature maps become vectors: "spatial_embeddings", with a learned weight for each place; "spatial_softmax", where each
    channel looks; "mean", how much of each channel there is."""
    hidden_sizes: tuple[int, ...] = (256,)
    """Units of the layers between features and log-odds."""
    positive_weight: float = 1.0
    """What a success counts in the loss, where successes are rare."""

    def __post_init__(self) -> None:
        if min(self.image_size) < 8:
            raise ConfigError("image_size", f"expected at least 8 pixels a side, found {list(self.image_size)}")
        expect_range("positive_weight", self.positive_weight, 0.0, open_low=True)

    def build(self, *, seed: int) -> SuccessClassifier:
        """The classifier with fresh weights; torch's global generator is neither read nor moved."""
        with seeded_weights(seed):
            return SuccessClassifier(self)


_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_safetensors: Any = safetensors.torch


class SuccessClassifier(nn.Module):
    """P(success | frame) = σ(MLP(ResNet(frame))).

    Args:
        config: the hyper-parameters.
    """

    def __init__(self, config: SuccessClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = ResNetEncoder(SHAPES[config.preset])
        size = self.encoder.map_size(*config.image_size)
        self.pooling = make_pooling(config.pooling, self.encoder.channels, size)
        self.score_head = ValueHead(self.pooling.width, config.hidden_sizes, "relu")

    def log_odds(self, images: Any) -> Tensor:
        """`[B]`, of frames `[B, H, W, 3]` uint8, NumPy or torch; differentiable.

        Raises:
            ShapeError: frames of another size or type.
        """
        frames = torch.as_tensor(images)
        if tuple(frames.shape[1:]) != (*self.config.image_size, 3) or frames.dtype != torch.uint8:
            height, width = self.config.image_size
            found = f"expected [B, {height}, {width}, 3] uint8, found {tuple(frames.shape)} {frames.dtype}"
            raise ShapeError("success_classifier(images)", found, "Resize the frames, or build for their size.")
        return self.score_head(self.pooling(self.encoder(frames.to(next(self.parameters()).device))))

    @torch.no_grad()
    def score(self, images: Any) -> Tensor:
        """`[B]` in [0, 1], the probability of success of frames `[B, H, W, 3]` uint8."""
        return self.log_odds(images).sigmoid()

    def loss(self, images: Any, success: Tensor) -> LossOutput[Tensor]:
        """Binary cross-entropy against labels `[B]`; see `success_loss`."""
        logit = self.log_odds(images)
        return success_loss(logit, success.to(logit.device), positive_weight=self.config.positive_weight)

    def save(self, folder: Path) -> None:
        """Writes `model.safetensors` and `config.json`; the folder is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _CONFIG).write_text(json.dumps(dataclasses.asdict(self.config), indent=2) + "\n")
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(self.state_dict().items())}
        _safetensors.save_file(state, folder / _WEIGHTS)

    @staticmethod
    def from_folder(folder: Path) -> SuccessClassifier:
        """Reads what `save` wrote.

        Raises:
            CheckpointError: a file is missing, or weights don't fit.
        """
        for file in (_CONFIG, _WEIGHTS):
            if not (folder / file).is_file():
                raise CheckpointError(str(folder), f"no file '{file}'", "Point to a folder that SuccessClassifier.save wrote.")
        config = read(SuccessClassifierConfig, json.loads((folder / _CONFIG).read_text()), place=str(folder / _CONFIG))
        # Any seed does: all weights are read.
        model = config.build(seed=0)
        try:
            model.load_state_dict(_safetensors.load_file(folder / _WEIGHTS))
        except RuntimeError as error:
            raise CheckpointError(str(folder / _WEIGHTS), str(error), "The file and its config.json disagree.") from error
        return model


def frame_judge(folder: str, *, key: str = "main_images", threshold: float = 0.5) -> Callable[[Mapping[str, Any]], bool]:
    """What says of an observation whether its frame shows success, by a classifier that was saved.

    Args:
        folder: what `SuccessClassifier.save` wrote.
        key: of the frame `[H, W, 3]` uint8.
        threshold: the probability from which on it is one, in (0, 1).

    Raises:
        CheckpointError: there is none in the folder.
        ConfigError: the threshold is out of range.
    """
    expect_range("threshold", threshold, 0.0, 1.0, open_low=True, open_high=True)
    classifier = SuccessClassifier.from_folder(Path(folder)).eval()

    def judge(observation: Mapping[str, Any]) -> bool:
        # A copy: torch warns of memory that may not be written, such as that of a message.
        return bool(classifier.score(np.array(observation[key])[None]) >= threshold)

    return judge
