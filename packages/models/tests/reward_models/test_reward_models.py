import math

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import AutoModelForSequenceClassification

from rlinf.core.config import read
from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.models.language import CausalLMConfig, VisionLanguageConfig, image_columns, save_language_model, text_context
from rlinf.models.lora import LoRAConfig
from rlinf.models.reward_models import (
    SequenceRewardConfig,
    SuccessClassifier,
    SuccessClassifierConfig,
    YesNoRewardConfig,
    bradley_terry,
    frame_judge,
    success_loss,
)

TEXTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]


def test_losses_by_hand():
    pairs = bradley_terry(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    assert float(pairs.total) == pytest.approx(math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2)))
    assert (float(pairs.weight), pairs.metrics["reward/accuracy"].mean) == (2.0, 0.5)
    frames = success_loss(torch.tensor([2.0, -1.0, 1.0]), torch.tensor([True, False, False]), positive_weight=3.0)
    expected = 3 * math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1))
    assert float(frames.total) == pytest.approx(expected)
    assert frames.metrics["success/accuracy"].mean == pytest.approx(2 / 3)
    with pytest.raises(ShapeError, match="bradley_terry"):
        bradley_terry(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ShapeError, match="success_loss"):
        success_loss(torch.zeros(2), torch.zeros(2, 1))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_sequence_rewards_are_those_of_transformers_whatever_the_padding(architecture):
    model = SequenceRewardConfig(preset="tiny", architecture=architecture).build(seed=0)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([text])
        expected.append(model.network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 0])
    for side in ("right", "left"):
        torch.testing.assert_close(
            model.score(text_context(TEXTS, side=side, pad_id=9)), torch.stack(expected), rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ShapeError, match="one sequence in each row"):
        model.score({"input_ids": torch.tensor([[5, 6]]), "segment_ids": torch.tensor([[1, 2]])})


def test_bradley_terry_learns_to_order_pairs():
    """Preferred is the text that has the token 9 more often."""
    model = SequenceRewardConfig(preset="tiny", architecture="qwen3").build(seed=0)
    generator = torch.Generator().manual_seed(0)

    def pairs(count):
        texts = torch.randint(5, 12, (2 * count, 8), generator=generator)
        liked = (texts == 9).sum(1).view(2, count)
        keep = liked[0] != liked[1]
        first, second = texts.view(2, count, 8)[:, keep]
        better = (liked[0] > liked[1])[keep, None]
        return {"input_ids": torch.where(better, first, second)}, {"input_ids": torch.where(better, second, first)}

    def ordered(chosen, rejected):
        return float((model.score(chosen) > model.score(rejected)).float().mean())

    held_out = pairs(256)
    before = ordered(*held_out)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(60):
        loss = model.preference_loss(*pairs(32))
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
    assert before < 0.8
    assert ordered(*held_out) > 0.95


def frames(count, generator):
    """A blue block on a grey table; success is a block on the green plate."""
    images = generator.integers(90, 120, size=(count, 32, 32, 3)).astype(np.uint8)
    plate, success = generator.integers(0, 22, size=(count, 2)), generator.random(count) < 0.5
    away = (plate + generator.integers(11, 18, size=(count, 2))) % 22
    block = np.where(success[:, None], plate + 2, away)
    for image, (y, x), (row, column) in zip(images, plate, block, strict=True):
        image[y : y + 10, x : x + 10] = (40, 160, 60)
        image[row : row + 6, column : column + 6] = (30, 40, 200)
    return images, torch.from_numpy(success)


def test_classifier_learns_to_see_success(tmp_path):
    generator = np.random.default_rng(0)
    model = SuccessClassifierConfig(image_size=(32, 32), preset="tiny", pooling="spatial_softmax", hidden_sizes=(64,)).build(seed=0)
    images, success = frames(300, generator)

    def accuracy():
        return float(((model.score(images) > 0.5) == success).float().mean())

    before = accuracy()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        loss = model.loss(*frames(24, generator))
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
    assert before < 0.75
    assert accuracy() > 0.95
    model.save(tmp_path)
    again = SuccessClassifier.from_folder(tmp_path)
    assert again.config == model.config
    torch.testing.assert_close(again.score(images[:8]), model.score(torch.from_numpy(images[:8])), rtol=0, atol=0)
    scores, judge = again.score(images[:32]), frame_judge(str(tmp_path), key="front", threshold=0.9)
    images.flags.writeable = False
    assert [judge({"front": image}) for image in images[:32]] == (scores >= 0.9).tolist()
    with pytest.raises(ConfigError, match="threshold"):
        frame_judge(str(tmp_path), threshold=1.0)
    with pytest.raises(CheckpointError, match=r"no file 'config\.json'"):
        frame_judge(str(tmp_path / "none"))


def test_yes_and_no_with_and_without_images():
    asked = CausalLMConfig(preset="tiny", architecture="llama")
    text = YesNoRewardConfig(causal_lm=asked, yes_id=20, no_id=21).build(seed=0)
    contexts = [{"input_ids": torch.tensor([question])} for question in TEXTS]
    logits = torch.cat([text.model.network(**context).logits[:, -1] for context in contexts])
    pair = logits[:, [20, 21]].softmax(-1)[:, 0]
    torch.testing.assert_close(text.score(text_context(TEXTS, side="left")), pair, rtol=1e-4, atol=1e-5)
    loss = text.loss(text_context(TEXTS), torch.tensor([True, False, True]))
    expected = -(pair[0].log() + (1 - pair[1]).log() + pair[2].log())
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-5)
    loss.total.backward()
    assert text.model.network.lm_head.weight.grad is not None

    sight = YesNoRewardConfig(vlm=VisionLanguageConfig(preset="tiny"), yes_id=20, no_id=21).build(seed=0)
    context = text_context([[5, *[3] * 4, 6], [5, *[3] * 4, 6]])
    pixels = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    images = image_columns(context["input_ids"], pixels, torch.tensor([[1, 4, 4]] * 2), image_token_id=3)
    scores = sight.score({**context, **images})
    assert ((scores > 0) & (scores < 1)).all()
    assert scores[0] != scores[1]


def test_one_question_is_learned():
    model = YesNoRewardConfig(causal_lm=CausalLMConfig(preset="tiny", lora=LoRAConfig(rank=4)), yes_id=20, no_id=21).build(seed=0)
    context, answer = text_context(TEXTS), torch.tensor([True, False, True])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-2)
    for _ in range(15):
        optimizer.zero_grad()
        model.loss(context, answer).total.backward()
        optimizer.step()
    assert ((model.score(context) > 0.5) == answer).all()


def test_folders(tmp_path):
    model = SequenceRewardConfig(preset="tiny", architecture="qwen2", lora=LoRAConfig(rank=2)).build(seed=0)
    assert {name for name, p in model.named_parameters() if p.requires_grad and ".lora_" not in name} == {"network.score.weight"}
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    model.save(tmp_path / "reward")
    context = text_context(TEXTS)
    again = SequenceRewardConfig(model_path=str(tmp_path / "reward")).build(seed=5)
    torch.testing.assert_close(again.score(context), model.score(context), rtol=1e-4, atol=1e-5)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward", local_files_only=True)
    torch.testing.assert_close(theirs(torch.tensor([TEXTS[0]])).logits[0, 0], model.score(context)[0], rtol=1e-4, atol=1e-5)

    save_language_model(CausalLMConfig(preset="tiny", architecture="qwen2").build(seed=0), tmp_path / "text")
    with pytest.raises(CheckpointError, match=r"score\.weight"):
        SequenceRewardConfig(model_path=str(tmp_path / "text")).build(seed=0)
    SequenceRewardConfig(model_path=str(tmp_path / "text"), fresh_head=True).build(seed=0)

    classifier = SuccessClassifierConfig(image_size=(16, 16), preset="tiny").build(seed=0)
    classifier.save(tmp_path / "frames")
    safetensors.torch.save_file({}, tmp_path / "frames" / "model.safetensors")
    with pytest.raises(CheckpointError, match="disagree"):
        SuccessClassifier.from_folder(tmp_path / "frames")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        SuccessClassifier.from_folder(tmp_path)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="exactly one of vlm and causal_lm"):
        read(YesNoRewardConfig, {"yes_id": 1, "no_id": 2})
    with pytest.raises(ConfigError, match="two tokens"):
        read(YesNoRewardConfig, {"yes_id": 1, "no_id": 1, "causal_lm": {"preset": "tiny"}})
    with pytest.raises(ConfigError, match=r"no_id: expected a token in \[0, 384\), found 384"):
        read(YesNoRewardConfig, {"yes_id": 1, "no_id": 384, "causal_lm": {"preset": "tiny"}}).build(seed=0)
    with pytest.raises(ConfigError, match="exactly one of model_path and preset"):
        SequenceRewardConfig()
    with pytest.raises(ConfigError, match="'opt' sees padding"):
        SequenceRewardConfig(preset="tiny", architecture="opt").build(seed=0)
    with pytest.raises(ConfigError, match="image_size"):
        SuccessClassifierConfig(image_size=(4, 32))
    classifier = SuccessClassifierConfig(image_size=(16, 16), preset="tiny").build(seed=0)
    with pytest.raises(ShapeError, match=r"expected \[B, 16, 16, 3\] uint8, found \(2, 8, 16, 3\)"):
        classifier.score(np.zeros((2, 8, 16, 3), dtype=np.uint8))
