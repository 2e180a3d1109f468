"""What configurations may choose of layers, by name; apart from the layers, which load torch."""

from __future__ import annotations

from typing import Literal

Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]
"""What follows each hidden layer."""
Preset = Literal["tiny", "base"]
"""`base`: ResNet-10; `tiny`: the same with few channels, for images of some 32 pixels."""
Pooling = Literal["spatial_embeddings", "spatial_softmax", "mean"]
"""Learned weights for each place; where each channel looks; how much of each channel there is."""
