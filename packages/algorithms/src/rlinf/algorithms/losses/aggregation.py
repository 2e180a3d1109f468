"""How the losses of decisions become one number: a factor for each decision, and a weight that adds up over any split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rlinf.algorithms.compat import AGGREGATIONS
from rlinf.core.errors import ConfigError, did_you_mean

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "constant-length", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A mean over decisions (tokens), or over rows (sequences) of what their decisions add up to.

    | mode | Σ over micro-batches and ranks of `factor · loss`, divided by Σ `weight` | used by |
    |---|---|---|
    | `token-mean` | Σ ℓ / number of decisions | DAPO (2025), eq. 12, arXiv:2503.14476; robots |
    | `seq-mean-token-sum` | mean over rows of Σₜ ℓ | REINFORCE; RLOO |
    | `seq-mean-token-mean` | mean over rows of their mean ℓ | GRPO (2024), eq. 3, arXiv:2402.03300 |
    | `constant-length` | mean over rows of Σₜ ℓ / length | Dr. GRPO (2025), arXiv:2503.20783 |

    `seq-mean-token-sum-norm` is verl's name of the last.

    A row without decisions is padding and counts nowhere. A row must not be parted: where decisions are trained on one by one
    (`Batch.decisions`), every row is one decision, and the four differ by `length` at most.
    """

    mode: Mode = "token-mean"
    length: int | None = None
    """The constant L of `constant-length`, in decisions: the longest that a row may get. None for the other modes."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigError("loss_agg_func", f"no aggregation '{self.mode}'", did_you_mean(self.mode, get_args(Mode)))
        object.__setattr__(self, "mode", AGGREGATIONS.get(self.mode, self.mode))
        if (self.mode == "constant-length") != (self.length is not None):
            problem = f"expected a length with 'constant-length' and with no other mode, found {self.length} with '{self.mode}'"
            raise ConfigError("loss_agg_length", problem)
        if self.length is not None and self.length < 1:
            raise ConfigError("loss_agg_length", f"expected at least 1, found {self.length}")

    def factors(self, mask: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """What each decision's loss is multiplied with, and what the sum is divided by.

        Args:
            mask: `[B, T]` bool.
            dtype: of the result; float32 or finer.

        Returns:
            `[B, T]` factors, 0 where masked, and the weight `[]`.
        """
        factor, weight = self.of_rows(mask.bool().sum(1).to(dtype))
        return torch.where(mask.bool(), factor[:, None], 0.0), weight

    def of_rows(self, decisions: Tensor) -> tuple[Tensor, Tensor]:
        """What each row's sum of losses is multiplied with, and what the sum over rows is divided by: `[B]` and `[]`.

        Args:
            decisions: `[B]`, how many each row has; float32 or finer.
        """
        if self.mode == "token-mean":
            return torch.ones_like(decisions), decisions.sum()
        weight = (decisions > 0).sum().to(decisions.dtype)
        if self.mode == "seq-mean-token-mean":
            return 1.0 / decisions.clamp(min=1.0), weight
        return torch.full_like(decisions, 1.0 / (self.length or 1)), weight


TOKEN_MEAN = Aggregation()
