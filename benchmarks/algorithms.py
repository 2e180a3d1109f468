"""The algorithms' speed and memory beside those of naive loops, of torch, and of the same functions in TRL and torchrl.

    uv run benchmarks/algorithms.py [--repeats 5] [--threads 1] [--only gae]
    uv run --with trl --with torchrl benchmarks/algorithms.py

All contestants of a row run one after the other in every repeat, so that a busy machine disturbs all alike; the time is that of
the best repeat, the ratio the median of the repeats' ratios. Times are CPU seconds of the one thread that computes (wall-clock
seconds with more threads). Memory is the most that operations held at once beside the inputs, forward and backward, counted at
every operation. A library that isn't installed has no row, and the script says so.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, log_softmax
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rlinf.algorithms.advantages.group import grpo
from rlinf.algorithms.advantages.returns import gae, lambda_returns
from rlinf.algorithms.logits.entropy import entropy_from_logits
from rlinf.algorithms.logits.linear import logprob_from_hidden
from rlinf.algorithms.logits.logprob import logprob_from_logits
from turns import timed

Run = Callable[[], object]
Row = tuple[str, dict[str, Run]]
GAMMA, LAM = 0.99, 0.95


def imported(module: str, name: str) -> Any:
    """A function of a library, or None if the library is missing."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        print(f"{module.partition('.')[0]} is not installed: no row for {name}")
        return None


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that operations made and somebody still holds."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.storages: Any = WeakIdKeyDictionary()
        self.peak, self.bound = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and looks at what it returns."""
        given = {id_of(x) for x in tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for x in tensors(out):
            if id_of(x) not in given:
                self.storages[x.untyped_storage()] = size = x.untyped_storage().nbytes()
                self.bound += size
        if self.bound > 1.01 * self.peak:  # else not worth a look at what has been freed
            self.bound = sum(self.storages.values())
            self.peak = max(self.peak, self.bound)
        return out


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in arguments or results."""
    leaves = cast("list[object]", tree_leaves(tree))
    return [x for x in leaves if isinstance(x, Tensor)]


def id_of(x: Tensor) -> int:
    """What tells one piece of memory from another."""
    return cast("Any", x.untyped_storage())._cdata


def gae_row(dones: float, mask: str = "") -> Row:
    """GAE over [1024, 4096].

    Args:
        dones: how many decisions end an episode.
        mask: "" for none, "lengths" for rows of different lengths, "gaps" for one column in three that nobody decided as well.
    """
    rows, columns = 1024, 4096
    reward, value = torch.randn(rows, columns), torch.randn(rows, columns + 1)
    ended, no = torch.rand(rows, columns) < dones, torch.zeros(rows, columns, dtype=torch.bool)
    valid = torch.arange(columns) < torch.randint(columns // 4, columns + 1, (rows, 1))
    if mask == "gaps":
        valid &= torch.rand(rows, columns) < 2 / 3
    given = valid if mask else None
    done, counts = ended.float(), valid.float()

    def column_loop() -> Tensor:
        last, found = torch.zeros(rows), list[Tensor]()
        for t in reversed(range(columns)):
            delta = reward[:, t] + GAMMA * value[:, t + 1] * (1 - done[:, t]) - value[:, t]
            last = delta + GAMMA * LAM * (1 - done[:, t]) * last
            found.append(last)
        advantage = torch.stack(found[::-1], dim=1)
        return advantage + value[:, :-1]

    def masked_loop() -> Tensor:
        last, after, found = torch.zeros(rows), torch.zeros(rows), list[Tensor]()
        for t in reversed(range(columns)):
            delta = reward[:, t] + GAMMA * after - value[:, t]
            here = counts[:, t]
            after = value[:, t] * here + (1 - here) * after
            last = (delta + GAMMA * LAM * last) * here + (1 - here) * last
            found.append(last)
        advantage = torch.stack(found[::-1], dim=1)
        return advantage + value[:, :-1]

    reward_t, value_t, done_t = (x.t().contiguous() for x in (reward, value, done))

    def row_loop() -> Tensor:
        advantage, last = torch.zeros_like(reward_t), torch.zeros(rows)
        for t in reversed(range(columns)):
            alive = 1.0 - done_t[t]
            delta = reward_t[t] + GAMMA * value_t[t + 1] * alive - value_t[t]
            advantage[t] = last = delta + GAMMA * LAM * alive * last
        return advantage + value_t[:-1]

    def chunked(width: int = 64) -> Tensor:
        delta = (reward + GAMMA * value[:, 1:] - value[:, :-1]).view(rows, -1, width)
        steps = torch.arange(width)
        powers = torch.tril((GAMMA * LAM) ** (steps[:, None] - steps).clamp(min=0).float())
        found, carry = delta @ powers, torch.zeros(rows)
        ahead = (GAMMA * LAM) ** (width - steps).float()
        for i in reversed(range(columns // width)):
            found[:, i] += carry[:, None] * ahead
            carry = found[:, i, 0]
        return found.view(rows, columns) + value[:, :-1]

    contestants: dict[str, Run] = {"rlinf gae": lambda: gae(reward, value, ended, no, gamma=GAMMA, lam=LAM, mask=given)}
    if mask:
        contestants["rlinf gae, without the mask"] = lambda: gae(reward, value, ended, no, gamma=GAMMA, lam=LAM)
        contestants["loop over columns with a mask, as in verl"] = masked_loop
        return f"GAE, [1024, 4096], {dones:.0%} dones, mask of {mask}", contestants
    contestants["loop over columns, [B, T], as in TRL"] = column_loop
    contestants["loop over rows, [T, B], as in CleanRL"] = row_loop
    if not dones:
        contestants["chunks of 64 by a matrix, no dones"] = chunked
    now, after = value[:, :-1, None].contiguous(), value[:, 1:, None].contiguous()
    for name in ("generalized_advantage_estimate", "vec_generalized_advantage_estimate"):
        theirs = imported("torchrl.objectives.value.functional", name)
        if theirs is not None:
            arguments = (GAMMA, LAM, now, after, reward[..., None], ended[..., None], ended[..., None])
            contestants[f"torchrl {name}"] = partial(theirs, *arguments)
    return f"GAE, [1024, 4096], {dones:.0%} dones", contestants


def returns_row() -> Row:
    """λ-returns over [256, 1024]."""
    reward, value = torch.randn(256, 1024), torch.randn(256, 1025)
    ended, no = torch.rand(256, 1024) < 0.01, torch.zeros(256, 1024, dtype=torch.bool)
    alive = 1.0 - ended.float()

    def loop() -> Tensor:
        following, found = value[:, -1], list[Tensor]()
        for t in reversed(range(1024)):
            following = reward[:, t] + GAMMA * alive[:, t] * ((1 - LAM) * value[:, t + 1] + LAM * following)
            found.append(following)
        return torch.stack(found[::-1], dim=1)

    return "λ-returns, [256, 1024]", {
        "rlinf lambda_returns": lambda: lambda_returns(reward, value, ended, no, gamma=GAMMA, lam=LAM),
        "loop over columns": loop,
    }


def grpo_row() -> Row:
    """GRPO of 10⁵ samples in groups of 8."""
    score, group = torch.randn(100_000), torch.arange(100_000) // 8
    shuffled = group[torch.randperm(100_000)]

    def dictionary() -> Tensor:
        members: defaultdict[int, list[Tensor]] = defaultdict(list)
        names, out = cast("list[int]", shuffled.tolist()), score.clone()  # pyright: ignore[reportUnknownMemberType]
        for i, name in enumerate(names):
            members[name].append(score[i])
        stacked = {name: torch.stack(found) for name, found in members.items()}
        moments = {name: (found.mean(), found.std()) for name, found in stacked.items()}
        for i, name in enumerate(names):
            mean, deviation = moments[name]
            out[i] = (score[i] - mean) / (deviation + 1e-6)
        return out

    def view() -> Tensor:
        mean, deviation = score.view(-1, 8).mean(1), score.view(-1, 8).std(1)
        return (score - mean.repeat_interleave(8)) / (deviation.repeat_interleave(8) + 1e-6)

    return "GRPO, 100 000 samples", {
        "rlinf grpo, any order, any size": lambda: grpo(score, shuffled),
        "rlinf grpo, sorted": lambda: grpo(score, group),
        "dict of lists, as in verl": dictionary,
        "view, equal groups in order only, as in TRL": view,
    }


def backwards(forward: Callable[[], Tensor], *inputs: Tensor) -> Run:
    """Forward and backward from ones; gradients are dropped at once."""

    def run() -> None:
        torch.autograd.backward(forward().sum())
        for x in inputs:
            x.grad = None

    return run


def logprob_row(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Row:
    """Log-probabilities from logits, forward and backward."""
    logits = torch.randn(shape).to(dtype).requires_grad_()
    tokens = torch.randint(shape[2], shape[:2])
    contestants: dict[str, Run] = {
        "rlinf logprob_from_logits": backwards(lambda: logprob_from_logits(logits, tokens), logits),
        "log_softmax(float) and gather": backwards(
            lambda: log_softmax(logits.float(), -1).gather(-1, tokens[..., None])[..., 0], logits
        ),
        "cross_entropy(float)": backwards(
            lambda: cross_entropy(logits.float().view(-1, shape[2]), tokens.view(-1), reduction="none"), logits
        ),
    }
    theirs = imported("trl.trainer.utils", "selective_log_softmax")
    if theirs is not None:
        contestants["trl selective_log_softmax"] = backwards(lambda: theirs(logits, tokens), logits)
    return f"log-probability, {list(shape)} {str(dtype)[6:]}, with gradient", contestants


def entropy_row(shape: tuple[int, int, int]) -> Row:
    """Entropy from logits, forward and backward."""
    logits = torch.randn(shape, requires_grad=True)

    def plain() -> Tensor:
        logprobs = log_softmax(logits, -1)
        return -(logprobs.exp() * logprobs).sum(-1)

    contestants: dict[str, Run] = {
        "rlinf entropy_from_logits": backwards(lambda: entropy_from_logits(logits), logits),
        "log_softmax, exp, sum": backwards(plain, logits),
    }
    theirs = imported("trl.trainer.utils", "entropy_from_logits")
    if theirs is not None:
        contestants["trl entropy_from_logits"] = backwards(lambda: theirs(logits), logits)
    return f"entropy, {list(shape)}, with gradient", contestants


def hidden_row(rows: int, width: int, vocabulary: int) -> Row:
    """Log-probabilities from hidden states, forward and backward, to states and weights."""
    hidden, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocabulary, width).mul_(width**-0.5).requires_grad_()
    tokens = torch.randint(vocabulary, (rows,))
    return f"log-probability from hidden [{rows}, {width}], V = {vocabulary}, with gradients", {
        "rlinf logprob_from_hidden": backwards(lambda: logprob_from_hidden(hidden, weight, tokens), hidden, weight),
        "rlinf linear, logprob_from_logits": backwards(lambda: logprob_from_logits(linear(hidden, weight), tokens), hidden, weight),
        "linear, cross_entropy": backwards(lambda: cross_entropy(linear(hidden, weight), tokens, reduction="none"), hidden, weight),
    }


ROWS: dict[str, Callable[[], Row]] = {
    "gae": lambda: gae_row(0.01),
    "gae-tokens": lambda: gae_row(0.0),
    "gae-lengths": lambda: gae_row(0.0, "lengths"),
    "gae-gaps": lambda: gae_row(0.0, "gaps"),
    "returns": returns_row,
    "grpo": grpo_row,
    "logprob": lambda: logprob_row((4, 128, 32768)),
    "logprob-bf16": lambda: logprob_row((4, 128, 32768), torch.bfloat16),
    "logprob-small": lambda: logprob_row((64, 256, 256)),
    "entropy": lambda: entropy_row((4, 128, 32768)),
    "entropy-small": lambda: entropy_row((64, 256, 256)),
    "hidden": lambda: hidden_row(1024, 256, 32768),
}


def printed(row: Row, repeats: int, clock: Callable[[], float]) -> None:
    """Measures a row and prints the best time of each contestant, its ratio to the first one's, and its peak of memory."""
    title, contestants = row
    times = timed(contestants, repeats, clock=clock)
    print(f"\n{title}\n{'':46} {'ms':>9} {'ratio':>7} {'MiB':>8}", flush=True)
    first = next(iter(times.values()))
    for name, run in contestants.items():
        with Live() as live:
            run()
        ratio = median(theirs / ours for theirs, ours in zip(times[name], first, strict=True))
        print(f"{name:46} {1e3 * min(times[name]):9.2f} {ratio:7.2f} {live.peak / 2**20:8.1f}", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(ROWS), choices=list(ROWS))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    for key in given.only:
        printed(ROWS[key](), given.repeats, clock)


if __name__ == "__main__":
    main()
