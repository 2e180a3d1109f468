"""Language models as rewards of a run."""

import pickle

import pytest
import torch

from rlinf.core.config import read
from rlinf.core.errors import ConfigError
from rlinf.core.language.answered import answered_tokens
from rlinf.core.registry import REWARDS
from rlinf.core.rewards import RewardSample
from rlinf.models.language import CausalLMConfig, TokensConfig
from rlinf.models.reward_models import JudgeReward, ModelReward, SequenceRewardConfig

DIGITS = TokensConfig(kind="characters", alphabet="0123456789+=#")
TINY = SequenceRewardConfig(preset="tiny", tokens=DIGITS)
ASKED = (("1+2=", "3#3"), ("1+2=", "4"), ("10+20=", "10+20=30#30"), ("7=", ""), ("1+2=", "3#3"))
SAMPLES = [RewardSample(text=text, answer="", asked=prompt) for prompt, text in ASKED]


def alone(config, tokenizer, text):
    ids = torch.tensor([text])
    with torch.no_grad():
        return float(config.build(seed=0).network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)


def test_a_text_is_scored_alone_whatever_its_batch():
    """Prompt, response and the end, as transformers itself scores them one by one."""
    tokenizer = TINY.tokenizer(())
    texts = [[*tokenizer.encode(prompt + text), 2] for prompt, text in ASKED]
    expected = [alone(TINY, tokenizer, text) for text in texts]
    for size in (1, 2, 16):
        found = ModelReward(model=TINY, batch_size=size).score_samples(SAMPLES)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len(set(expected)) == len(ASKED) - 1, "random weights tell texts apart, and the same text twice is the same"
    cut = ModelReward(model=TINY, max_length=4).score_samples(SAMPLES)
    assert cut[2] == pytest.approx(alone(TINY, tokenizer, texts[2][-4:]), rel=1e-4, abs=1e-5)


def test_messages_go_through_the_template_of_the_reward_models_own_folder(tmp_path):
    TINY.build(seed=3).save(tmp_path)
    tokenizer = TINY.tokenizer(())
    tokenizer.chat_template = "{% for m in messages %}{{ '#' + m['content'] + '=' }}{% endfor %}"
    tokenizer.save_pretrained(str(tmp_path))
    config = SequenceRewardConfig(model_path=str(tmp_path))
    reward = ModelReward(model=config)
    reward.check("reward")
    assert pickle.loads(pickle.dumps(reward)) == reward
    asked = ({"role": "user", "content": "1+2"},)
    assert tokenizer.decode(answered_tokens(tokenizer, asked, "3")) == "#1+2=#3="
    (score,) = reward.score_samples([RewardSample(text="3", answer="", prompt="not read", asked=asked)])
    assert score == pytest.approx(alone(config, tokenizer, tokenizer.encode("#1+2=#3=")), rel=1e-4, abs=1e-5)


def test_a_judge_is_asked_with_prompt_response_and_answer():
    asked = CausalLMConfig(preset="tiny")
    judge = JudgeReward(model=asked, question="{prompt}|{response}|{answer}?", yes="y", no="n", batch_size=2)
    judge.check("reward")
    samples = [RewardSample(text=text, answer="{response}", asked=prompt) for prompt, text in ASKED]
    tokenizer, network = asked.tokenizer(("y", "n")), asked.build(seed=0).network
    for (prompt, text), found in zip(ASKED, judge.score_samples(samples), strict=True):
        ids = tokenizer.encode(f"user: {prompt}|{text}|{{response}}?\nassistant: ")
        logits = network(input_ids=torch.tensor([ids])).logits[0, -1]
        expected = logits[[tokenizer.encode("y")[0], tokenizer.encode("n")[0]]].softmax(-1)[0]
        assert found == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)


def test_they_are_registered_and_can_be_parts():
    assert REWARDS.get("reward_model", place="") is ModelReward
    assert REWARDS.get("yes_no", place="") is JudgeReward


def test_what_cannot_score_is_refused_before_a_worker_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.fresh_head: expected a trained head"):
        read(ModelReward, {"model": {"model_path": "x", "fresh_head": True}})
    with pytest.raises(ConfigError, match="batch_size"):
        ModelReward(model=TINY, batch_size=0)
    with pytest.raises(ConfigError, match=r"reward\.model\.model_path: expected a local folder"):
        ModelReward(model=SequenceRewardConfig(model_path=str(tmp_path / "none"))).check("reward")
    CausalLMConfig(preset="tiny", tokens=DIGITS).build(seed=0).save_network(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")  # what it says is not read before
    with pytest.raises(ConfigError, match="found Qwen3ForCausalLM with 2 labels"):
        ModelReward(model=SequenceRewardConfig(model_path=str(tmp_path))).check("reward")
    with pytest.raises(ConfigError, match=r"^actor\.model\.model_path: .* found Qwen3ForCausalLM .* fresh_head: true"):
        SequenceRewardConfig(model_path=str(tmp_path)).check("actor.model")
    SequenceRewardConfig(model_path=str(tmp_path), fresh_head=True).check("actor.model")
    judge = CausalLMConfig(preset="tiny")
    with pytest.raises(ConfigError, match=r"question: expected a text with \{response\}"):
        JudgeReward(model=judge, question="Is it right?")
    with pytest.raises(ConfigError, match="two answers"):
        JudgeReward(model=judge, yes="no")
    with pytest.raises(ConfigError, match=r"reward\.no: expected one token"):
        JudgeReward(model=CausalLMConfig(preset="tiny", tokens=DIGITS), yes="1", no="10").check("reward")
