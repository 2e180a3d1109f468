"""A classifier of frames: has the task succeeded?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from rlinf.core.config import read
from rlinf.core.data import LossOutput
from rlinf.core.errors import CheckpointError, ShapeError
from rlinf.models.heads import ValueHead
from rlinf.models.resnet import SHAPES, ResNetEncoder, make_pooling
from rlinf.models.reward_models.config import SuccessClassifierConfig
from rlinf.models.reward_models.losses import success_loss

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_safetensors = cast("Any", safetensors.torch)


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
        model = config.build(seed=0)
        try:
            model.load_state_dict(_safetensors.load_file(folder / _WEIGHTS))
        except RuntimeError as error:
            raise CheckpointError(str(folder / _WEIGHTS), str(error), "The file and its config.json disagree.") from error
        return model
