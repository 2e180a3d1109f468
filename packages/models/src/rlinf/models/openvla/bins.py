"""Actions as tokens: 256 bins of equal width on the last ids of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.core.config import expect_range
from rlinf.core.errors import ShapeError


@dataclass(frozen=True, slots=True)
class ActionBins:
    """n edges e = linspace(−1, 1, n) and the n − 1 centres between them; a higher id is a lower action.

    encode: d = #{i : eᵢ ≤ clip(a, −1, 1)} ∈ 1 … n, id = V − d;   decode: j = clip(V − id − 1, 0, n − 2), a = (eⱼ + eⱼ₊₁) / 2.

    A round trip changes an action by at most half a bin, 1 / (n − 1). Brohan et al., "RT-2" (2023), arXiv:2307.15818; the ids:
    Kim et al., "OpenVLA" (2024), section 3.2, arXiv:2406.09246.
    """

    vocabulary: int
    """V, ids in use; rows that only pad the embedding don't count."""
    count: int = 256
    """n."""

    def __post_init__(self) -> None:
        expect_range("n_action_bins", self.count, 2, self.vocabulary)

    @property
    def first(self) -> int:
        """The least id of an action, V − n."""
        return self.vocabulary - self.count

    def encode(self, action: Tensor) -> Tensor:
        """Token ids of normalised actions `[*]`; those outside ±1 are clipped."""
        # In float64 and with right=True as np.digitize by default, with which the training data was made.
        edges = torch.linspace(-1.0, 1.0, self.count, device=action.device, dtype=torch.float64)
        digit = torch.bucketize(action.double().clamp(-1.0, 1.0), edges, right=True)
        return self.vocabulary - digit

    def decode(self, tokens: Tensor) -> Tensor:
        """Normalised actions `[*]` of token ids, float32.

        Raises:
            ShapeError: an id is not that of an action.
        """
        if tokens.numel() and (int(tokens.min()) < self.first or int(tokens.max()) >= self.vocabulary):
            found = f"expected ids in [{self.first}, {self.vocabulary}), found {int(tokens.min())} … {int(tokens.max())}"
            raise ShapeError("ActionBins.decode(tokens)", found)
        bin_index = (self.vocabulary - tokens - 1).clamp(0, self.count - 2)
        return (2.0 * bin_index.float() + 1.0) / (self.count - 1) - 1.0
