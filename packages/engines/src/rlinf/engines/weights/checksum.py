"""Checksums of tensors, at the speed of memory and on the device where they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf.engines.lazy import torch
from rlinf.engines.weights.tensor_bytes import as_bytes

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 1 << 18
"""32-bit words that are summed at once: 1 MiB."""


def checksum(tensor: Tensor) -> str:
    """32 hexadecimal digits of a tensor's bytes; neither its shape nor its type counts.

    hᵦ = Σᵢ kᵢ xᵢ mod 2⁶⁴ over the 32-bit words xᵢ of block β, with random 64-bit kᵢ: two blocks that differ have equal upper
    halves of h with probability 2⁻³² for random k. All hᵦ and the number of bytes go through BLAKE2b. Good against accidents,
    not against attackers.

    Lemire & Kaser, "Strongly universal string hashing is fast" (2012), arXiv:1202.4961 (MULTILINEAR).
    """
    data = as_bytes(tensor)
    whole = data.numel() // 4 * 4
    words = _aligned(data[:whole]).view(torch.int32)
    keys = _keys(str(data.device))
    sums = [_dot(words[start : start + WORDS], keys) for start in range(0, words.numel(), WORDS)]
    digest = hashlib.blake2b(np.array(sums, dtype=np.int64).tobytes(), digest_size=16)
    digest.update(data[whole:].cpu().numpy().tobytes() + data.numel().to_bytes(8, "little"))
    return digest.hexdigest()


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The checksum of each tensor by name."""
    return {name: checksum(tensors[name]) for name in sorted(tensors)}


def _aligned(data: Tensor) -> Tensor:
    # Bytes can be viewed as words only from a multiple of four on.
    return data if data.storage_offset() % 4 == 0 else data.clone()


def _dot(words: Tensor, keys: Tensor) -> int:
    """Σ kᵢ xᵢ mod 2⁶⁴, as a signed number."""
    # Products and sums of int64 wrap around, which is the modulus 2⁶⁴.
    wide, keys = words.to(torch.int64), keys[: words.numel()]
    if words.device.type == "cpu":
        product: Any = np.dot(wide.numpy(), keys.numpy())  # ten times as fast as torch's, which can't do it on a GPU either
        return int(product)
    return int((wide * keys).sum())


@lru_cache(maxsize=16)
def _keys(device: str) -> Tensor:
    """The same everywhere and always."""
    drawn = np.random.Philox(key=2012).random_raw(WORDS).view(np.int64)
    return torch.from_numpy(drawn).to(device)  # pyright: ignore[reportUnknownMemberType]
