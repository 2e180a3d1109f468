import json

import pytest

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.language import CausalLMConfig, TokensConfig, VisionLanguageConfig

TEXTS = ["1+2=", "3", "12+34=", "46"]
DIGITS = TokensConfig(kind="characters", alphabet="0123456789+=")


def test_a_character_is_a_token_and_the_vocabulary_follows():
    config = CausalLMConfig(preset="tiny", tokens=DIGITS)
    tokenizer = config.tokenizer(TEXTS)
    assert tokenizer.encode("12+3=") == [5, 6, 14, 7, 15]
    assert tokenizer.decode([5, 6, 14, 7, 15]) == "12+3="
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 2, 16)
    assert config.build(seed=1).vocabulary == 16


def test_the_end_is_written_and_left_out_as_asked():
    tokenizer = CausalLMConfig(preset="tiny", tokens=DIGITS).tokenizer(TEXTS)
    assert tokenizer.decode([5, 2], skip_special_tokens=True) == "1"
    assert tokenizer.decode([5, 2]) == "1<eos>"


def test_a_character_outside_of_the_alphabet_is_refused_by_name():
    with pytest.raises(ConfigError, match="the texts also have '-x'"):
        CausalLMConfig(preset="tiny", tokens=DIGITS).tokenizer(["1-x"])


@pytest.mark.parametrize("text", ["12+34=46", "Größe 🤖\n\ttab", "  two  spaces "])
def test_bytes_write_any_text(text):
    tokenizer = CausalLMConfig(preset="tiny").tokenizer(TEXTS)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_are_merged_as_the_texts_suggest_and_alike_each_time():
    config = CausalLMConfig(preset="tiny", tokens=TokensConfig(size=262))
    first, second = (config.tokenizer(["banana"] * 9) for _ in range(2))
    assert len(first) == 262
    assert len(first.encode("banana")) < 6
    assert first.get_vocab() == second.get_vocab()
    assert config.build(seed=1).vocabulary == 262


def test_the_default_fits_a_tiny_model():
    config = CausalLMConfig(preset="tiny")
    assert len(config.tokenizer(TEXTS * 50)) <= config.build(seed=1).vocabulary


@pytest.mark.parametrize("tokens", [None, TokensConfig(kind="characters")])
def test_tokens_of_images_are_none_of_the_text(tokens):
    config = VisionLanguageConfig(preset="tiny", tokens=tokens)
    tokenizer, own = config.tokenizer(["How many red squares are there?"] * 9), config.build(seed=1).network.config
    assert tokenizer.encode("<image>") == [own.image_token_id]
    assert len(tokenizer) <= min(own.video_token_id, own.vision_start_token_id, own.vision_end_token_id)
    assert own.text_config.vocab_size > own.vision_end_token_id


def test_messages_go_through_a_template():
    tokenizer = CausalLMConfig(preset="tiny").tokenizer(TEXTS)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+2"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "system: Add.\nuser: 1+2\nassistant: "


def test_a_folder_has_its_own(tmp_path):
    tokenizer = CausalLMConfig(preset="tiny", tokens=DIGITS).tokenizer(TEXTS)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(str(tmp_path))
    read = CausalLMConfig(model_path=str(tmp_path)).tokenizer(["not read"])
    assert read.encode("12+3=") == tokenizer.encode("12+3=")
    assert read.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True) == "hi"
    assert (read.pad_token_id, read.eos_token_id) == (0, 2)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer"):
        CausalLMConfig(model_path=str(tmp_path)).tokenizer([])
    with pytest.raises(CheckpointError, match="no folder"):
        CausalLMConfig(model_path=str(tmp_path / "nowhere")).tokenizer([])


def test_two_vocabularies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"overrides.vocab_size too"):
        CausalLMConfig(preset="tiny", tokens=DIGITS, overrides={"vocab_size": 99})
    with pytest.raises(ConfigError, match="model_path too"):
        CausalLMConfig(model_path=str(tmp_path), tokens=DIGITS)
    with pytest.raises(ConfigError, match="different characters"):
        TokensConfig(alphabet="aa")
    with pytest.raises(ConfigError, match="at least 260"):
        TokensConfig(size=100)


def test_the_tokens_that_end_a_response(tmp_path):
    """One or several; `generation_config.json` decides over `config.json`, whose text part counts too."""
    config = CausalLMConfig(model_path=str(tmp_path))
    assert config.end_tokens() == CausalLMConfig(preset="tiny").end_tokens() == ()
    for name, content, expected in (
        ("config.json", {"text_config": {"eos_token_id": 4}}, (4,)),
        ("config.json", {"eos_token_id": [3, 4]}, (3, 4)),
        ("generation_config.json", {"eos_token_id": None}, (3, 4)),
        ("generation_config.json", {"eos_token_id": [7, 5]}, (7, 5)),
        ("generation_config.json", {"eos_token_id": 0}, (0,)),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        assert config.end_tokens() == expected
    for broken, message in (
        ('{"eos_token_id": "x"}', "expected token ids, found 'x'"),
        ("[]", "can't be read"),
        ("{", "can't be read"),
    ):
        (tmp_path / "generation_config.json").write_text(broken)
        with pytest.raises(CheckpointError, match=message):
            config.end_tokens()
