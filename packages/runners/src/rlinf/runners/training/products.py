"""Which library multiplies the matrices of a policy on a processor, where there is no accelerator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from rlinf.runners.lazy import torch

LARGE: Final = 256 * 256
"""Numbers of a matrix from which on oneDNN is asked: a call of it takes 10 µs longer than one of MKL."""
_PRECISE: Final = 1e-5
"""Relative to the result; float32 is wrong by about 1e-6, bfloat16 by 4e-3."""


_own = "highest"
"""The precision that this module has set; torch's own at first."""


def choose_products(policy: Any) -> None:
    """Chooses what multiplies matrices in this process: oneDNN where it is faster and as exact, else MKL.

    MKL, which torch asks for products of 32 bits, uses half of the vector units of recent AMD processors. torch asks oneDNN instead
    when it may compute in bfloat16 (`torch.set_float32_matmul_precision("medium")`), and oneDNN does not where there are no units
    for matrices of bfloat16, as on AMD: whether it is exact is tried here, once. What somebody else has set stays.

    It compiles code for each shape that it meets, which language models would have it do all the time: they never ask for it.

    Args:
        policy: what is trained or asked in batches of one size; MKL is faster for small ones, and multiplies for what is no module.
    """
    global _own
    if torch.accelerator.is_available() or not _may_choose():
        return
    _own = "medium" if isinstance(policy, torch.nn.Module) and _large(policy) and _exact() else "highest"
    torch.set_float32_matmul_precision(_own)


def _large(policy: torch.nn.Module) -> bool:
    """Whether it multiplies by a matrix of so many numbers."""
    # The matrix of an embedding is looked up in, not multiplied by.
    looked_up = {id(module.weight) for module in policy.modules() if isinstance(module, torch.nn.Embedding)}
    sizes = (each.shape[-2] * each.shape[-1] for each in policy.parameters() if each.dim() > 1 and id(each) not in looked_up)
    return max(sizes, default=0) >= LARGE


def _may_choose() -> bool:
    """Whether nobody else has chosen a precision."""
    try:
        return torch.get_float32_matmul_precision() == _own
    except RuntimeError:  # chosen for one of the libraries only
        return False


@functools.cache
def _exact() -> bool:
    """Whether this is an AMD processor on which products of 32 bits stay as exact when oneDNN may compute in bfloat16."""
    processor = Path("/proc/cpuinfo")
    if not processor.is_file() or "AuthenticAMD" not in processor.read_text():
        return False
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    expected = a.double() @ b.double()
    torch.set_float32_matmul_precision("medium")
    error = (a @ b - expected).abs().max() / expected.abs().max()
    torch.set_float32_matmul_precision(_own)
    return error.item() < _PRECISE
