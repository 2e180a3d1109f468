import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.openvla import ActionBins
from rlinf.models.openvla.prompt import encode_prompts, prompt_text
from rlinf.models.openvla.tokens import bin_entropy, bin_logprobs, chosen, draw

LLAMA = ActionBins(32000, 256)
FOUR = ActionBins(6, 4)
"""Ids 2 to 5 of an embedding of 8 rows."""
LOGITS = torch.tensor([[9.0, 9.0, 0.0, 1.0, 2.0, 3.0, 9.0, 9.0]]).log_softmax(-1)
ONE = torch.ones(1)


def test_ids_by_hand():
    actions = torch.tensor([-1.0, -0.9999, 0.0, 0.9999, 1.0, -7.0, 7.0])
    assert LLAMA.encode(actions).tolist() == [31999, 31999, 31872, 31745, 31744, 31999, 31744]
    three = ActionBins(10, 3)  # edges −1, 0, 1; centres −0.5, 0.5
    assert three.encode(torch.tensor([-0.3, 0.0, 0.3, 1.0])).tolist() == [9, 8, 8, 7]
    assert three.decode(torch.tensor([9, 8, 7])).tolist() == [-0.5, 0.5, 0.5]


@given(st.floats(-1, 1), st.integers(2, 512))
@settings(max_examples=200)
def test_a_round_trip_costs_half_a_bin(action, count):
    bins = ActionBins(1000, count)
    token = bins.encode(torch.tensor(action))
    assert bins.first <= token < bins.vocabulary
    assert abs(bins.decode(token).item() - action) <= 1.0 / (count - 1) + 1e-6


def test_decoded_actions_keep_their_tokens():
    tokens = torch.arange(LLAMA.first + 1, LLAMA.vocabulary)
    assert torch.equal(LLAMA.encode(LLAMA.decode(tokens)), tokens)
    assert (LLAMA.decode(tokens).diff() < 0).all(), "a higher id is a lower action"


def test_a_word_is_no_action():
    for token in (31743, 32000):
        with pytest.raises(ShapeError, match=str(token)):
            LLAMA.decode(torch.tensor([token]))
    with pytest.raises(ConfigError, match="n_action_bins"):
        ActionBins(100, 101)


def test_distribution_by_hand():
    weights = torch.tensor([0.0, 1.0, 2.0, 3.0]).exp()
    found = bin_logprobs(LOGITS, FOUR, temperature=ONE, top_k=0)
    torch.testing.assert_close(found.exp()[0], weights / weights.sum())
    halved = bin_logprobs(LOGITS, FOUR, temperature=2 * ONE, top_k=0)
    torch.testing.assert_close(halved.exp()[0], weights.sqrt() / weights.sqrt().sum())
    two = bin_logprobs(LOGITS, FOUR, temperature=ONE, top_k=2)
    torch.testing.assert_close(two.exp()[0], torch.tensor([0, 0, weights[2], weights[3]]) / weights[2:].sum())
    gone = chosen(two, torch.tensor([2]), FOUR)
    assert gone.isfinite()
    assert gone.exp() == 0
    assert chosen(found, torch.tensor([5]), FOUR).item() == pytest.approx(math.log(weights[3] / weights.sum()))


def test_entropy_by_hand_and_its_gradient():
    logits = torch.zeros(1, 8, requires_grad=True)
    assert bin_entropy(bin_logprobs(logits, FOUR, temperature=ONE, top_k=0)).item() == pytest.approx(math.log(4))
    raised = torch.tensor([[0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0]], requires_grad=True)
    two = bin_entropy(bin_logprobs(raised, FOUR, temperature=ONE, top_k=2))
    p = torch.tensor([1.0, math.e]) / (1 + math.e)
    assert two.item() == pytest.approx(-(p * p.log()).sum().item())
    two.backward()
    assert raised.grad.isfinite().all()
    assert raised.grad[0, :4].abs().max() == 0


def test_draws_follow_the_distribution():
    options = bin_logprobs(LOGITS, FOUR, temperature=ONE, top_k=3).expand(20000, -1)
    noise = torch.empty(20000, 4).exponential_(generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(draw(options, noise, FOUR), minlength=8) / 20000
    torch.testing.assert_close(counts[2:6], options[0].exp(), atol=0.01, rtol=0)
    assert counts[[0, 1, 2, 6, 7]].sum() == 0
    assert draw(options[:1], None, FOUR).item() == 5


def test_prompt():
    assert prompt_text("Pick UP the cup") == "In: What action should the robot take to pick up the cup?\nOut:"
    tokenizer = tiny_tokenizer()
    tokens, mask = encode_prompts(["open it", "open the door of the microwave", "open it"], tokenizer, length=40, last=7)
    assert tokens.shape == mask.shape == (3, 40)
    assert tokens[:, 0].tolist() == [tokenizer.bos_token_id] * 3
    assert tokens[:, -1].tolist() == [7] * 3
    assert tokenizer.decode(tokens[1][mask[1]][1:-1]) == prompt_text("open the door of the microwave")
    assert torch.equal(tokens[0], tokens[2])
    first = mask[0].int()
    assert first[0] == 1
    assert (first[1:].diff() >= 0).all(), "padding stands between BOS and text"
    assert (tokens[~mask] == tokenizer.pad_token_id).all()


class Swallower:
    """A tokenizer that writes the space itself."""

    bos_token_id, pad_token_id = 1, 0

    def __call__(self, text, *, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [5, 6, 29871]}


def test_the_last_token_is_not_doubled():
    tokens, _ = encode_prompts(["a"], Swallower(), length=5, last=29871)
    assert tokens.tolist() == [[1, 0, 5, 6, 29871]]


def test_a_long_prompt_is_not_cut():
    with pytest.raises(ConfigError, match=r"max_prompt_length.*the prompt of 'go .*there is room for 12.*Set it to 56 or more"):
        encode_prompts(["go", "go " * 20], tiny_tokenizer(), length=12, last=None)
