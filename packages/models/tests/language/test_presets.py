"""A preset that can't be made is refused before it is built."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rlinf.core.errors import ConfigError, UnknownName
from rlinf.models.language import CausalLMConfig, VisionLanguageConfig

LIGHT = """
import sys
from rlinf.models.language import CausalLMConfig
CausalLMConfig(preset="tiny", overrides={"hidden_size": 96, "head_dim": 24, "tie_word_embeddings": True}).check("actor.model")
print("transformers" in sys.modules)
"""


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"architecture": "qwen9"},
            UnknownName,
            r"^actor\.model\.architecture: transformers has no 'qwen9'\. Did you mean 'qwen3'",
        ),
        ({"overrides": {"hiden_size": 9}}, UnknownName, r"^actor\.model\.overrides\.hiden_size: no such value in Qwen3Config"),
        ({"overrides": {"hidden_size": "abc"}}, ConfigError, r"overrides\.hidden_size: expected a whole number .* found 'abc'"),
        ({"overrides": {"head_dim": 0}}, ConfigError, r"overrides\.head_dim: expected a whole number of at least 1, found 0"),
        ({"overrides": {"num_key_value_heads": 3}}, ConfigError, r"num_key_value_heads: expected a divisor of .* = 4, found 3"),
        ({"overrides": {"num_attention_heads": 5}}, ConfigError, r"num_key_value_heads: expected a divisor of .* = 5, found 2"),
    ],
)
def test_what_can_not_be_made_is_refused_with_its_key(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CausalLMConfig(preset="tiny", **fields).check("actor.model")


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "qwen3_moe", "llama", "gpt2", "gpt-sw3"])
def test_what_can_be_made_passes(architecture: str) -> None:
    CausalLMConfig(preset="tiny", architecture=architecture, overrides={"tie_word_embeddings": True}).check("actor.model")


def test_a_vision_language_model_passes() -> None:
    VisionLanguageConfig(preset="tiny", overrides={"text_config": {"hidden_size": 32}}).check("actor.model")


def test_what_is_known_is_looked_up_without_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"
