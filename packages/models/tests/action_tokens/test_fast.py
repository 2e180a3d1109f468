import json
import math

import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.models.action_tokens import FastActionTokenizer
from rlinf.models.action_tokens.fast import _cosines

H, A = 16, 3


def smooth(count, seed=0, horizon=H, size=A):
    """Reaching movements: a few slow waves."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.0, 1.0, horizon)[None, :, None]
    wave = sum(
        rng.normal(0, 0.6 / k, (count, 1, size)) * np.sin(math.pi * k * time + rng.uniform(0, 6, (count, 1, size))) for k in (1, 2)
    )
    return np.clip(wave, -1.0, 1.0)


@pytest.fixture(scope="module")
def fitted():
    return FastActionTokenizer.fit(smooth(400), vocab_size=512)


def test_the_transform_is_that_of_scipy():
    for horizon in (1, 2, 7, 50):
        x = np.random.default_rng(0).normal(size=(horizon, 4))
        np.testing.assert_allclose(_cosines(horizon) @ x, scipy.fft.dct(x, axis=0, norm="ortho"), atol=1e-12)
        np.testing.assert_allclose(_cosines(horizon).T @ _cosines(horizon), np.eye(horizon), atol=1e-12)


@given(actions=arrays.arrays(np.float64, (2, H, A), elements=st.floats(-1.0, 1.0)))
def test_any_chunk_comes_back_within_half_a_step(actions, fitted):
    found = fitted.decode(fitted.encode(actions))
    error = np.abs(found - actions)
    assert np.sqrt((error**2).mean(axis=1)).max() <= 0.5 / fitted.scale + 1e-6
    assert error.max() <= math.sqrt(H) * 0.5 / fitted.scale + 1e-6


def test_a_finer_scale_is_closer():
    chunks = smooth(50)
    coarse, fine = (FastActionTokenizer.fit(chunks, vocab_size=1024, scale=scale) for scale in (5.0, 100.0))
    errors = [np.sqrt(np.mean((t.decode(t.encode(chunks)) - chunks) ** 2)) for t in (coarse, fine)]
    assert errors[1] < errors[0] / 10


def test_smooth_chunks_are_few_tokens(fitted):
    tokens = fitted.encode(smooth(100, seed=7))
    assert np.mean([len(ids) for ids in tokens]) < H * A / 3
    assert max(max(ids) for ids in tokens) < fitted.vocab_size <= 512


def test_low_frequencies_of_all_dimensions_come_first(fitted):
    chunk = np.zeros((1, H, A))
    chunk[0, :, 1] = 0.5
    coefficients = _cosines(H) @ chunk[0]
    plain = FastActionTokenizer.fit(np.zeros((1, H, A)), vocab_size=81, scale=10.0)
    ids = plain.encode(chunk)[0]
    assert len(ids) == H * A
    zero = plain.encode(np.zeros((1, H, A)))[0][0]
    assert [i for i, token in enumerate(ids) if token != zero] == [1]
    assert ids[1] - zero == round(10 * coefficients[0, 1])


def test_actions_beyond_are_clipped(fitted):
    np.testing.assert_allclose(fitted.decode(fitted.encode(np.full((1, H, A), 3.0))), 1.0, atol=0.05 + 1e-6)


def test_what_is_no_chunk(fitted):
    ids = fitted.encode(smooth(1))[0]
    with pytest.raises(ShapeError, match=r"tokens\[1\]: expected 48 coefficients, found \d+"):
        fitted.decode([ids, ids[:-1]])
    with pytest.raises(ShapeError, match=r"the unknown ids \[9999, -1\]"):
        fitted.decode([[9999, -1]])
    assert fitted.decode([ids[:-1], [*ids, *ids], [], [9999]], strict=False).shape == (4, H, A)
    np.testing.assert_allclose(fitted.decode([[*ids, *ids]], strict=False), fitted.decode([ids]))
    assert not fitted.decode([[]], strict=False).any()


def test_it_comes_back_from_disk(fitted, tmp_path):
    fitted.save(tmp_path / "action_tokenizer.json")
    found = FastActionTokenizer.load(tmp_path / "action_tokenizer.json")
    chunks = smooth(20, seed=3)
    assert found.encode(chunks) == fitted.encode(chunks)
    assert (found.horizon, found.size, found.scale, found.vocab_size) == (H, A, 10.0, fitted.vocab_size)


def test_damaged_files(fitted, tmp_path):
    file = tmp_path / "t.json"
    fitted.save(file)
    content = json.loads(file.read_text())
    for text in (
        "",
        "[]",
        json.dumps({**content, "format": "other"}),
        json.dumps({**content, "bpe": {}}),
        json.dumps({"format": "x"}),
    ):
        file.write_text(text)
        with pytest.raises(CheckpointError):
            FastActionTokenizer.load(file)
    with pytest.raises(CheckpointError):
        FastActionTokenizer.load(tmp_path / "none.json")


def test_wrong_arguments(fitted):
    with pytest.raises(ShapeError, match=r"expected \[N, H, A\]"):
        FastActionTokenizer.fit(np.zeros((3, 4)))
    with pytest.raises(ConfigError, match="actions: expected finite numbers"):
        FastActionTokenizer.fit(np.full((2, 16, 3), np.nan))
    with pytest.raises(ConfigError, match="vocab_size: expected at least 81"):
        FastActionTokenizer.fit(smooth(2), vocab_size=80)
    with pytest.raises(ConfigError, match="scale: expected at most 6400 whole numbers"):
        FastActionTokenizer.fit(smooth(2), scale=1e4)
    with pytest.raises(ConfigError, match="scale: expected more than 0"):
        FastActionTokenizer.fit(smooth(2), scale=0.0)
    with pytest.raises(ShapeError, match=r"expected \[B, 16, 3\], found \[1, 16, 4\]"):
        fitted.encode(np.zeros((1, 16, 4)))
    with pytest.raises(ConfigError, match="finite"):
        fitted.encode(np.full((1, 16, 3), np.nan))
