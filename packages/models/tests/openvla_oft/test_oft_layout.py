"""The layout of parallel decoding against a loop over rows that knows no padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlinf.models.openvla_oft.layout import Layout, lay_out, mean_language

WIDTH, SLOTS, PATCHES = 32, 6, 5
LENGTHS = (3, 9, 1, 6)


@pytest.fixture(scope="module")
def llama() -> Any:
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=50,
        initializer_range=0.3,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def parts(lengths: tuple[int, ...] = LENGTHS, *, pad: int = 0) -> dict[str, Tensor]:
    """Random parts; texts padded on the left with large numbers that would be noticed, `pad` more than needed."""
    size = max(lengths) + pad
    valid = torch.arange(size) >= size - torch.tensor(lengths)[:, None]
    g = torch.Generator().manual_seed(1)
    token = {name: torch.randn(WIDTH, generator=g) for name in ("bos", "stop")}
    seen = torch.stack([torch.randn(PATCHES, WIDTH, generator=g) for _ in lengths])
    texts = [torch.randn(length, WIDTH, generator=g) for length in lengths]
    text = torch.full((len(lengths), size, WIDTH), 9.0)
    for row, words in enumerate(texts):
        text[row, size - len(words) :] = words
    return {**token, "seen": seen, "text": text, "text_valid": valid}


def answers(llama: Any, layout: Layout, *, attention: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
    attention = layout.attention() if attention is None else attention
    positions = layout.positions() if positions is None else positions
    output = llama.model(inputs_embeds=layout.embeddings, attention_mask=attention, position_ids=positions, use_cache=False)
    return layout.answers(output.last_hidden_state, SLOTS).detach()


def row_by_row(llama: Any, p: dict[str, Tensor]) -> Tensor:
    """One row at a time, nothing padded, everyone sees everyone; the layout written out in full."""
    found: list[Tensor] = []
    for row in range(len(p["text"])):
        words = p["text"][row][p["text_valid"][row]]
        pieces = [p["bos"][None], p["seen"][row], words, torch.zeros(SLOTS, WIDTH), p["stop"][None]]
        sequence = torch.cat(pieces)[None]
        size = sequence.shape[1]
        output = llama.model(
            inputs_embeds=sequence,
            attention_mask=torch.zeros(1, 1, size, size),
            position_ids=torch.arange(size)[None],
            use_cache=False,
        )
        before = 1 + PATCHES + len(words)
        found.append(output.last_hidden_state[0, before - 1 : before - 1 + SLOTS].detach())
    return torch.stack(found)


@pytest.mark.parametrize("pad", [0, 4])
def test_a_padded_batch_agrees_with_rows_alone(llama: Any, pad: int) -> None:
    p = parts(pad=pad)
    assert torch.allclose(answers(llama, lay_out(**p, slots=SLOTS)), row_by_row(llama, p), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_batch_sizes(llama: Any, rows: int) -> None:
    p = parts((4, 2, 8, 8, 1, 5, 3)[:rows])
    assert torch.allclose(answers(llama, lay_out(**p, slots=SLOTS)), row_by_row(llama, p), atol=1e-5)


def test_padding_that_is_seen_is_noticed(llama: Any) -> None:
    p = parts()
    layout = lay_out(**p, slots=SLOTS)
    open_mask = torch.zeros_like(layout.attention())
    wrong = answers(llama, layout, attention=open_mask) - row_by_row(llama, p)
    assert wrong.abs().amax((1, 2)).gt(1e-2).tolist() == [True, False, True, True]


def test_positions_that_count_padding_are_noticed(llama: Any) -> None:
    p = parts()
    layout = lay_out(**p, slots=SLOTS)
    counted = torch.arange(layout.embeddings.shape[1]).expand(len(LENGTHS), -1)
    wrong = answers(llama, layout, positions=counted) - row_by_row(llama, p)
    assert wrong.abs().amax((1, 2)).gt(1e-3).tolist() == [True, False, True, True]


def test_a_causal_mask_is_noticed(llama: Any) -> None:
    p = parts()
    layout = lay_out(**p, slots=SLOTS)
    size = layout.embeddings.shape[1]
    causal = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)
    wrong = answers(llama, layout, attention=layout.attention() + causal) - row_by_row(llama, p)
    assert wrong.abs().amax((1, 2)).gt(1e-2).all()


def test_every_answer_depends_on_the_last_token(llama: Any) -> None:
    p = parts()
    changed = {**p, "stop": p["stop"] + 1.0}
    moved = answers(llama, lay_out(**changed, slots=SLOTS)) - answers(llama, lay_out(**p, slots=SLOTS))
    assert moved.abs().amax(-1).gt(1e-3).all()


def test_the_layout_by_hand() -> None:
    layout = lay_out(**parts((1, 2)), slots=2)
    assert layout.first_slot == 1 + PATCHES + 2
    assert layout.embeddings.shape == (2, 1 + PATCHES + 2 + 2 + 1, WIDTH)
    assert layout.valid[0].tolist() == [True] * 6 + [False] + [True] * 4
    assert layout.positions()[0].tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert (layout.embeddings[:, layout.first_slot : layout.first_slot + 2] == 0.0).all()
    assert (layout.answers(layout.embeddings, 2)[:, 0] == layout.embeddings[:, layout.first_slot - 1]).all()


def test_no_nan_where_nothing_is_text() -> None:
    p = parts((1, 2))
    p["text_valid"] = torch.zeros_like(p["text_valid"])
    layout = lay_out(**p, slots=2)
    assert layout.first_slot == 1 + PATCHES
    assert layout.valid.all()


def test_the_mean_of_language_ignores_padding() -> None:
    p = parts((2, 3))
    mean = mean_language(p["bos"], p["text"], p["text_valid"], p["stop"])
    by_hand = torch.stack([p["bos"], *p["text"][0][p["text_valid"][0]], p["stop"]]).mean(0)
    assert torch.allclose(mean[0], by_hand, atol=1e-6)
