"""What turns hidden states into actions, and proprioception into a token.

Module names are those of the public checkpoints, so that their state dicts load as they are.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.layers.gaussian import LOG_2PI


class ResidualBlock(nn.Module):
    """x ↦ x + ReLU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """`[*, W]`."""
        return x + self.ffn(x)


class ResidualPerceptron(nn.Module):
    """Linear layers with two residual blocks between the first and the last.

    Args:
        size_in: of the input.
        width: of the blocks.
        size_out: of the output.
    """

    def __init__(self, size_in: int, width: int, size_out: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(size_in)
        self.fc1 = nn.Linear(size_in, width)
        self.mlp_resnet_blocks = nn.ModuleList([ResidualBlock(width) for _ in range(2)])
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, size_out)

    def forward(self, x: Tensor) -> Tensor:
        """`[*, size_out]` of `[*, size_in]`."""
        x = functional.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class RegressionHead(nn.Module):
    """Continuous actions from the hidden states of the A slots of each step.

    Kim, Finn, Liang (2025), section IV.B, arXiv:2502.19645.

    Args:
        width: L, of a hidden state.
        actions: A.
    """

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.actions = actions
        self.model = ResidualPerceptron(width * actions, width, actions)

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalised actions `[B, K, A]` of hidden states `[B, K·A, L]`, step by step."""
        rows, slots, width = hidden.shape
        return self.model(hidden.reshape(rows, slots // self.actions, self.actions * width))


class ProprioProjector(nn.Module):
    """A normalised state as one token.

    Args:
        states: D.
        width: L, of a token.
    """

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(states, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """`[B, 1, L]` of `[B, D]`."""
        return self.fc2(functional.gelu(self.fc1(states.to(self.fc1.weight.dtype))))[:, None]


def normal_logprob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log N(xᵢ; μᵢ, σᵢ²) of each element, in nats.

    Bishop, "Pattern Recognition and Machine Learning" (2006), eq. 1.46.

    Args:
        x: `[*, A]`.
        mean: `[*, A]`, μ.
        log_std: `[A]`, log σ.
    """
    return -0.5 * ((x - mean) * (-log_std).exp()).square() - log_std - 0.5 * LOG_2PI


def normal_entropy(log_std: Tensor) -> Tensor:
    """Log σᵢ + ½ (1 + log 2π) of each element, `[A]`, in nats."""
    return log_std + 0.5 * (1.0 + LOG_2PI)
