"""The policy losses' speed and memory beside those of the same losses in verl.

    uv run benchmarks/algorithms_losses.py [--repeats 9] [--threads 1] [--rows 1024] [--columns 4096] [--only gspo]

verl is the other contestant; `pip install --no-deps verl` is enough where what it imports (Ray, transformers, tensordict, …) is
there. Without it only our times are shown. Every pair computes one loss with its metrics, forward and backward, of the same
float32 tensors; both run one after the other in every repeat, and the ratio is the median of the repeats' ratios, so that a busy
machine disturbs both alike. Memory is the most that operations held at once beside the inputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algorithms import Row, Run, imported, printed
from rlinf.algorithms.losses.kl import kl_loss
from rlinf.algorithms.losses.policy.cispo import cispo
from rlinf.algorithms.losses.policy.covariance import clip_cov, kl_cov
from rlinf.algorithms.losses.policy.gmpo import gmpo
from rlinf.algorithms.losses.policy.gspo import gspo
from rlinf.algorithms.losses.policy.ppo import ppo_clip
from rlinf.algorithms.losses.policy.reinforce import reinforce
from rlinf.algorithms.losses.policy.sapo import sapo
from rlinf.algorithms.losses.terms import Aggregation
from rlinf.algorithms.losses.value import clipped_value_loss
from rlinf.core.data import LossOutput

BOUNDS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
ROWS = Aggregation("seq-mean-token-mean")
OURS: dict[str, tuple[Callable[..., LossOutput[Tensor]], dict[str, Any]]] = {
    "ppo": (ppo_clip, {**BOUNDS, "clip_ratio_c": 3.0}),
    "gspo": (gspo, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "token_level": True}),
    "gmpo": (gmpo, {}),
    "cispo": (cispo, BOUNDS),
    "sapo": (sapo, {}),
    "clip-cov": (clip_cov, BOUNDS),
    "kl-cov": (kl_cov, {}),
}
THEIRS = {
    "ppo": ("vanilla", "token-mean"),
    "gspo": ("gspo", "seq-mean-token-mean"),
    "gmpo": ("geo_mean", "seq-mean-token-mean"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "clip-cov": ("clip_cov", "token-mean"),
    "kl-cov": ("kl_cov", "token-mean"),
    "reinforce": ("gpg", "token-mean"),
}
NAMES = [*OURS, "reinforce", "value", "kl"]
"""Every loss that both have."""


class Tensors:
    """What losses are called with, `[B, T]`: rows of different lengths, policies a little apart."""

    def __init__(self, rows: int, columns: int) -> None:
        self.old = -torch.rand(rows, columns)
        self.new = (self.old + 0.1 * torch.randn(rows, columns)).requires_grad_()
        self.advantage = torch.randn(rows, 1).expand(rows, columns).contiguous()
        self.mask = torch.arange(columns) < torch.randint(columns // 4, columns + 1, (rows, 1))
        self.theirs = self.mask.float()


def row(name: str, x: Tensors) -> Row:
    """A loss, ours and verl's."""

    def ours() -> LossOutput[Tensor]:
        if name == "reinforce":
            return reinforce(x.new, x.advantage, x.mask)
        if name == "value":
            return clipped_value_loss(x.new, x.old, x.advantage, x.mask, value_clip=0.2)
        if name == "kl":
            return kl_loss(x.new, x.old, x.mask, kind="low_var_kl")
        function, options = OURS[name]
        return function(x.new, x.old, x.advantage, x.mask, **options)

    def run() -> None:
        output = ours()
        torch.autograd.backward(output.total / output.weight)
        x.new.grad = None

    contestants: dict[str, Run] = {f"rlinf {name}": run}
    other = verl_loss(name, x)
    if other is not None:
        contestants[f"verl {name}"] = other
    return f"{name}, {list(x.new.shape)}", contestants


def verl_loss(name: str, x: Tensors) -> Run | None:
    """The same loss in verl, forward and backward; None if it isn't installed."""
    config, core = imported("verl.workers.config", "ActorConfig"), "verl.trainer.ppo.core_algos"
    if config is None:
        return None
    actor = config(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **BOUNDS)

    def loss() -> Tensor:
        if name == "value":
            return imported(core, "compute_value_loss")(x.new, x.advantage, x.old, x.theirs, 0.2)[0]
        if name == "kl":
            penalty = imported(core, "kl_penalty")(x.new, x.old, "low_var_kl")
            return imported(core, "agg_loss")(penalty, x.theirs, "token-mean")
        function, mode = THEIRS[name]
        policy_loss = imported(core, "get_policy_loss_fn")(function)
        return policy_loss(x.old, x.new, x.advantage, x.theirs, loss_agg_mode=mode, config=actor)[0]

    def run() -> None:
        torch.autograd.backward(loss())
        x.new.grad = None

    return run


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    tensors = Tensors(given.rows, given.columns)
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    for name in given.only:
        printed(row(name, tensors), given.repeats, clock)


if __name__ == "__main__":
    main()
