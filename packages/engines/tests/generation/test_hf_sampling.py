"""One uniform number makes one token: hand-computed."""

import math

import pytest
import torch

from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.generation._sampling import cuts, draw, uniforms

P = [0.1, 0.4, 0.3, 0.2]


def drawn(uniform, p=P, **sampling):
    config = SamplingConfig(max_new_tokens=1, **sampling)
    logits = torch.tensor([p]).log()
    tokens, logprobs = draw(logits, cuts([config], len(p), logits.device), torch.tensor([uniform], dtype=torch.float64))
    return tokens.item(), logprobs.item()


@pytest.mark.parametrize(
    ("uniform", "sampling", "token"),
    [
        (0.0, {}, 0),
        (0.0999, {}, 0),
        (0.1001, {}, 1),
        (0.79, {}, 2),
        (0.81, {}, 3),
        (0.9999999, {}, 3),
        (0.0, {"top_k": 2}, 1),  # 4/7 and 3/7 are left
        (0.571, {"top_k": 2}, 1),
        (0.572, {"top_k": 2}, 2),
        (0.9999999, {"top_k": 1}, 1),
        (0.9999999, {"top_p": 0.39}, 1),  # the likeliest alone has as much
        (0.571, {"top_p": 0.41}, 1),
        (0.572, {"top_p": 0.41}, 2),
        (0.99, {"top_p": 0.71, "top_k": 2}, 2),
        (0.0, {"temperature": 0.0}, 1),
    ],
)
def test_a_token_by_hand(uniform, sampling, token):
    found, logprob = drawn(uniform, **sampling)
    assert found == token
    assert logprob == pytest.approx(math.log(P[token]), abs=1e-6)


def test_temperature_divides_the_logits():
    squares = [p * p for p in P]
    found, logprob = drawn(0.5, temperature=0.5)
    assert found == 1
    assert logprob == pytest.approx(math.log(squares[1] / sum(squares)), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_what_has_no_probability_is_never_drawn(uniform):
    assert drawn(uniform, p=[0.0, 1.0, 0.0])[0] == 1


def test_a_row_without_cuts_is_drawn_alike_beside_one_with_cuts():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    uniform = torch.tensor([0.37, 0.37], dtype=torch.float64)
    plain, cut = SamplingConfig(max_new_tokens=1), SamplingConfig(max_new_tokens=1, top_p=0.1)
    alone = draw(logits[:1], cuts([plain], 50, logits.device), uniform[:1])
    beside = draw(logits, cuts([plain, cut], 50, logits.device), uniform)
    assert alone[0][0] == beside[0][0]
    assert alone[1][0] == beside[1][0]


def test_a_number_depends_on_seed_and_position_alone():
    assert uniforms(7, 3) == uniforms(7, 50)[:3] != uniforms(8, 3)
    assert all(0 <= u < 1 for u in uniforms(7, 500))
