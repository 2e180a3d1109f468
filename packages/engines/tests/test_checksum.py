import hashlib

import numpy as np
import pytest
import torch

from rlinf.engines.weights.checksum import WORDS, _keys, checksum


def reference(data: bytes) -> str:
    """The formula in Python's own integers."""
    keys = [int(k) for k in np.random.Philox(key=2012).random_raw(WORDS)]
    words = np.frombuffer(data[: len(data) // 4 * 4], np.int32).tolist()
    blocks = [words[i : i + WORDS] for i in range(0, len(words), WORDS)]
    sums = [sum(k * x for k, x in zip(keys, block, strict=False)) % 2**64 for block in blocks]
    tail = data[len(data) // 4 * 4 :] + len(data).to_bytes(8, "little")
    return hashlib.blake2b(b"".join(s.to_bytes(8, "little") for s in sums) + tail, digest_size=16).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 1001, WORDS * 4, WORDS * 4 + 7])
def test_the_formula(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert checksum(torch.from_numpy(data)) == reference(data.tobytes())


def test_one_bit_anywhere_counts():
    data = torch.randint(0, 256, (600,), dtype=torch.uint8)
    found = {checksum(data)}
    for bit in range(0, 4800, 7):
        other = data.clone()
        other[bit // 8] ^= 1 << bit % 8
        found.add(checksum(other))
    assert len(found) == 1 + len(range(0, 4800, 7))


def test_pairs_of_signs_and_swaps_count():
    """What sums without random factors don't see."""
    x = torch.randn(64)
    found = {checksum(x)}
    for i in range(0, 62):
        for change in ((i, i + 1), (i, i + 2)):
            signs, swapped = x.clone(), x.clone()
            signs[list(change)] *= -1
            swapped[list(change)] = x[list(change)[::-1]]
            found |= {checksum(signs), checksum(swapped)}
    assert len(found) == 1 + 62 * 4


def test_memory_layout_does_not_count():
    x = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    assert checksum(x.T) == checksum(x.T.contiguous())
    assert checksum(x.reshape(-1)[1:9]) == checksum(x.reshape(-1)[1:9].clone())
    assert checksum(torch.zeros(3)) != checksum(torch.zeros(4))


def test_the_keys_never_change():
    assert _keys("cpu")[:2].tolist() == np.random.Philox(key=2012).random_raw(2).view(np.int64).tolist()
    assert checksum(torch.arange(10)) == "3e4cd1127a51d0f130d0f83ee8485bcb"
