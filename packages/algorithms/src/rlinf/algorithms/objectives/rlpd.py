"""RLPD: every batch half from experience, half from demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data.tree import Tree, tree_combine, tree_index, tree_leaves
from rlinf.core.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def symmetric_sizes(batch_size: int, *, demo_fraction: float = 0.5) -> tuple[int, int]:
    """How many rows come from experience, and how many from demonstrations.

    demo = ⌊f B⌋,   online = B − demo;   of an odd batch, experience gets the row that is left

    Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), alg. 1, arXiv:2302.02948, with f = ½.

    Args:
        batch_size: B ≥ 1.
        demo_fraction: f in [0, 1].

    Returns:
        (online, demo).

    Raises:
        ConfigError: an argument is out of range.
    """
    expect_range("symmetric_sizes(demo_fraction)", demo_fraction, 0.0, 1.0)
    expect_at_least("symmetric_sizes(batch_size)", batch_size, 1)
    # 0.29 · 100 is 28.999… in floats, and a row would be lost.
    demo = int(demo_fraction * batch_size + 1e-9)
    return batch_size - demo, demo


def symmetric_indices(
    num_online: int, num_demo: int, batch_size: int, *, demo_fraction: float = 0.5, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Which rows of each buffer make a batch.

    Of n rows, k are drawn without replacement if k ≤ n (those of the k smallest of n uniform numbers), else with replacement
    (⌊u n⌋). Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), alg. 1, arXiv:2302.02948.

    Args:
        num_online: rows of experience.
        num_demo: rows of demonstrations.
        batch_size: B ≥ 1.
        demo_fraction: f in [0, 1]; see `symmetric_sizes`.
        generator: of random numbers, on the CPU; experience draws first.

    Returns:
        Indices of experience and of demonstrations, int64.

    Raises:
        ConfigError: an argument is out of range, or a buffer that must give rows is empty.
    """
    online, demo = symmetric_sizes(batch_size, demo_fraction=demo_fraction)
    return _drawn("num_online", num_online, online, generator), _drawn("num_demo", num_demo, demo, generator)


def _drawn(name: str, available: int, wanted: int, generator: torch.Generator) -> Tensor:
    if wanted > 0 and available < 1:
        raise ConfigError(f"symmetric_indices({name})", f"expected at least 1 row to draw {wanted} from, found {available}")
    if wanted <= available:
        return torch.rand(available, generator=generator, dtype=torch.float64).argsort()[:wanted]
    return (torch.rand(wanted, generator=generator, dtype=torch.float64) * available).to(torch.int64)


def symmetric_batch(
    online: Tree[Tensor], demo: Tree[Tensor], batch_size: int, *, demo_fraction: float = 0.5, generator: torch.Generator
) -> tuple[Tree[Tensor], Tensor]:
    """A batch from two buffers: rows of experience first, then rows of demonstrations.

    b = [online[i]; demo[j]],   i, j from `symmetric_indices`

    Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), alg. 1, arXiv:2302.02948.

    Args:
        online: experience, each leaf `[M, *]`.
        demo: demonstrations of the same structure, each leaf `[D, *]`.
        batch_size: B ≥ 1.
        demo_fraction: f in [0, 1]; see `symmetric_sizes`.
        generator: of random numbers, on the CPU.

    Returns:
        Each leaf `[B, *]`, and `[B]` bool, True where a row is a demonstration.

    Raises:
        ShapeError: the structures differ, or leaves of one buffer have different numbers of rows.
        ConfigError: an argument is out of range, or a buffer that must give rows is empty.
    """
    sizes = _length("online", online), _length("demo", demo)
    if [path for path, _ in tree_leaves(online)] != [path for path, _ in tree_leaves(demo)]:
        raise ShapeError("symmetric_batch(demo)", "expected the keys of online, found others")
    chosen = symmetric_indices(*sizes, batch_size, demo_fraction=demo_fraction, generator=generator)
    parts = [tree_index(online, chosen[0]), tree_index(demo, chosen[1])]
    is_demo = torch.arange(batch_size) >= len(chosen[0])
    return tree_combine(_stacked, cast("Sequence[Tree[Tensor]]", parts)), is_demo


def _stacked(leaves: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(leaves))


def _length(name: str, tree: Tree[Tensor]) -> int:
    leaves: Iterator[tuple[str, Tensor]] = tree_leaves(tree)
    sizes = {len(leaf) for _, leaf in leaves}
    if len(sizes) != 1:
        raise ShapeError(f"symmetric_batch({name})", f"expected leaves of one length, found {sorted(sizes)}")
    return sizes.pop()
