from functools import cache

import pytest
import torch

from rlinf.core.data import Batch, Trajectory
from rlinf.core.errors import ShapeError
from rlinf.models.language import VisionLanguageConfig, image_columns, token_batch
from rlinf.models.lora import LoRAConfig, adapter_state

IMAGE, PATCH = 3, 3 * 2 * 4 * 4
GRIDS = torch.tensor([[1, 4, 4], [1, 2, 4], [1, 4, 2]])
COUNTS = [4, 2, 2]
PIXELS = torch.randn(32, PATCH, generator=torch.Generator().manual_seed(0))
"""16, 8 and 8 patches."""
PIECES = [
    ([5, *[IMAGE] * 4, 6], [7, 8]),
    ([9, *[IMAGE] * 2, 10, *[IMAGE] * 2], [11]),
    ([12, 13], [14, 15, 16]),
]
SHOWN = [(PIXELS[:16], GRIDS[:1]), (PIXELS[16:], GRIDS[1:]), None]


@cache
def model(architecture):
    config = VisionLanguageConfig(preset="tiny", architecture=architecture, add_value_head=True, temperature=0.8, logit_chunk=3)
    return config.build(seed=0)


def batch_of(rows, **layout):
    tokens = token_batch(rows, **layout)
    images = image_columns(tokens.context["input_ids"], PIXELS, GRIDS, image_token_id=IMAGE)
    logprob, context = torch.zeros(tokens.mask.shape), {**tokens.context, **images}
    return Batch.of(Trajectory.of(context=context, action=tokens.action, logprob=logprob, mask=tokens.mask))


def responses(policy, rows, **layout):
    batch = batch_of(rows, **layout)
    return policy.default_forward(batch).logprob[batch.trajectory.mask]


def expected_of(policy):
    """What transformers says, one sequence at a time, on the path of its own."""
    found = []
    for (prompt, response), shown in zip(PIECES, SHOWN, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        images = {}
        if shown is not None:
            images = {"pixel_values": shown[0], "image_grid_thw": shown[1], "mm_token_type_ids": (ids == IMAGE).int()}
        policy.network.base_model.rope_deltas = None
        logits = policy.network(input_ids=ids, use_cache=False, **images).logits[0, len(prompt) - 1 : -1]
        found.append(torch.distributions.Categorical(logits=logits / 0.8).log_prob(torch.tensor(response)))
    return torch.cat(found)


@pytest.mark.parametrize("architecture", ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_scores_are_those_of_transformers_however_rows_are_laid_out(architecture):
    policy = model(architecture)
    expected = expected_of(policy)
    apart = [[piece] for piece in PIECES]
    for rows, layout in (
        (apart, {}),
        (apart, {"side": "left", "pad_id": 9}),
        ([PIECES], {}),
        ([PIECES[:1], PIECES[1:]], {"side": "left"}),
    ):
        torch.testing.assert_close(responses(policy, rows, **layout), expected, rtol=1e-5, atol=1e-5)
    policy.joined = True
    try:
        torch.testing.assert_close(responses(policy, [PIECES[:1], PIECES[1:]]), expected, rtol=1e-5, atol=1e-5)
    finally:
        policy.joined = False


def test_rows_take_their_images_along():
    policy = model("qwen3_vl")
    batch = batch_of([[piece] for piece in PIECES])
    whole = policy.default_forward(batch).logprob
    parts = torch.cat([policy.default_forward(part).logprob for part in batch.micro_batches(1)])
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)
    shuffled = policy.default_forward(batch.rows(torch.tensor([2, 1, 0]))).logprob
    torch.testing.assert_close(shuffled, whole.flip(0), rtol=1e-5, atol=1e-5)
    joined = Trajectory.concat([batch.trajectory.rows(slice(0, 1)), batch.trajectory.rows(slice(1, 3))])
    again = policy.default_forward(Batch(trajectory=joined, credit=batch.credit)).logprob
    torch.testing.assert_close(again, whole, rtol=0, atol=0)


def test_pixels_matter_and_gradients_reach_the_vision_tower_unless_frozen():
    policy = model("qwen2_5_vl")
    batch = batch_of([[piece] for piece in PIECES])
    other = batch.trajectory.context["image_patches"] * 0
    plain = policy.default_forward(batch).logprob
    batch.trajectory.context["image_patches"] = other
    blank = policy.default_forward(batch).logprob
    assert (plain - blank)[0].abs().max() > 1e-3
    assert torch.equal(plain[2], blank[2])
    for frozen in (False, True):
        built = VisionLanguageConfig(preset="tiny", architecture="qwen2_5_vl", freeze_vision=frozen).build(seed=0)
        built.default_forward(batch_of([[piece] for piece in PIECES])).logprob.sum().backward()
        assert any(p.grad is not None for p in built.network.base_model.visual.parameters()) is not frozen


def test_adapters_on_the_text_tower_only():
    lora = LoRAConfig(rank=2, exclude_modules=("visual",))
    policy = VisionLanguageConfig(preset="tiny", architecture="qwen3_vl", lora=lora).build(seed=0)
    assert adapter_state(policy.network)
    assert not any("visual" in name for name in adapter_state(policy.network))


def test_a_frozen_tower_has_no_adapter_in_training():
    config = VisionLanguageConfig(preset="tiny", architecture="qwen3_vl", freeze_vision=True, lora=LoRAConfig(rank=2))
    trained = [name for name, parameter in config.build(seed=0).named_parameters() if parameter.requires_grad]
    assert trained
    assert not any("visual" in name for name in trained)


def test_images_must_fit_their_tokens():
    ids = torch.tensor([[5, IMAGE, IMAGE]])
    with pytest.raises(ShapeError, match="found 2 tokens, 16 patches and grids of 4 tokens"):
        image_columns(ids, PIXELS[:16], GRIDS[:1], image_token_id=IMAGE)
    with pytest.raises(ShapeError, match="expected 'image_patches' and 'image_grid'"):
        model("qwen3_vl").hidden_states({"input_ids": ids})
