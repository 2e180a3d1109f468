"""The configurations of language models; light to import, transformers is reached when one is built."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rlinf.core.checkpoints.weight_files import CANDIDATES, expect_whole
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import HOTTEST
from rlinf.core.language.problems import ImageProcessor, Tokenizer
from rlinf.core.registry import require_modules
from rlinf.models.actor_config import folder_of
from rlinf.models.importing import import_transformers
from rlinf.models.language.presets import check_preset
from rlinf.models.language.vocabulary import IMAGE_TOKENS, TokensConfig, folder_end_tokens
from rlinf.models.lora import LoRAConfig

if TYPE_CHECKING:
    from rlinf.models.language.model import LanguageModel

Preset = Literal["tiny", "base"]
Precision = Literal["fp32", "bf16"]
_WEIGHTS: Final = [name for name in CANDIDATES if name.startswith(("model.", "pytorch_model."))]
_SMALL: Final = 1 << 16
"""Bytes of a file of JSON that is read as a whole to see whether it is one."""
Attention = Literal["sdpa", "eager", "flash_attention_2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """A network of transformers that reads text: from a folder, or with random weights."""

    model_path: str | None = None
    """A local folder in the layout of Hugging Face; exactly one of this and `preset`."""
    preset: Preset | None = None
    """Random weights: "tiny" is built in seconds, "base" has the sizes that transformers gives `architecture`."""
    architecture: str = "qwen3"
    """The `model_type` of transformers (`llama`, `qwen2`, `qwen3`, `qwen3_moe`, …), for a preset."""
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the model's own configuration that differ: sizes, `tie_word_embeddings`, sections such as `text_config`."""
    tokens: TokensConfig | None = None
    """The tokens of a preset, which decide the size of its vocabulary; None for bytes, or for those of `model_path`."""
    lora: LoRAConfig | None = None
    """Adapters; everything else but the heads is then frozen."""
    precision: Precision = "fp32"
    """The type of the weights; log-probabilities, values and scores are float32 in any case."""
    attention: Attention = "sdpa"
    """The kernel. "flash_attention_2" needs the package and a GPU; rows are then joined to one."""
    gradient_checkpointing: bool = False
    """Whether hidden states of layers are computed again on the way back, in the module's train mode."""

    def __post_init__(self) -> None:
        if (self.model_path is None) == (self.preset is None):
            found = "both" if self.model_path is not None else "neither"
            raise ConfigError("model_path", f"expected exactly one of model_path and preset, found {found}", "Set one of them.")
        if self.tokens is not None and (self.model_path is not None or "vocab_size" in self.overrides):
            other = "model_path" if self.model_path is not None else "overrides.vocab_size"
            raise ConfigError("tokens", f"expected one vocabulary, found that of {other} too", f"Set tokens or {other}.")

    def check(self, place: str) -> None:
        """Refuses a folder that is not whole, an architecture that can't be made, and a machine without what it needs.

        Raises:
            ConfigError: no such folder, or one without configuration, weights or tokenizer; or see `check_preset`.
            CheckpointError: its weights were cut.
            MissingExtra: something is not installed.
        """
        require_modules("transformers", place=f"{place}.model_type", extra="rlinf-models[language]")
        if self.lora is not None:
            require_modules("peft", place=f"{place}.lora", extra="rlinf-models[lora]")
        check_folder(self.model_path, f"{place}.model_path")
        if self.preset is not None:
            check_preset(self.architecture, self.overrides, place, tiny=self.preset == "tiny")

    def tokenizer(self, corpus: Iterable[str]) -> Tokenizer:
        """The tokenizer of `model_path`, or one that is made for a preset; without a template for chats it gets a plain one.

        Args:
            corpus: texts that it must be able to write, and of which "bytes" learns what to merge; the same texts in the same
                order give the same tokenizer. Not read if there is a folder.

        Raises:
            ConfigError: "characters" misses one that is in the texts.
            CheckpointError: the folder has no tokenizer.
            MissingExtra: transformers is not installed.
        """
        require_modules("transformers", "tokenizers", place="actor.model.tokens", extra="rlinf-models[language]")
        from rlinf.models.language._tokenizers import made, of_folder

        return of_folder(self.model_path) if self.model_path is not None else made(self._tokens(), corpus)

    def check_corpus(self, corpus: Callable[[], Iterable[str]]) -> None:
        """Refuses texts that `tokenizer` would refuse, without making one.

        Args:
            corpus: gives them; not called where any text can be written.

        Raises:
            ConfigError: "characters" misses one that is in the texts.
        """
        tokens = self._tokens()
        if self.model_path is None and tokens.kind == "characters":
            tokens.expect_writable(corpus())

    def end_tokens(self) -> tuple[int, ...]:
        """What ends a response beside the tokenizer's end: see `folder_end_tokens`.

        Raises:
            CheckpointError: a file is no JSON, or has something else there.
        """
        folder = folder_of(self.model_path)
        return () if folder is None else folder_end_tokens(folder)

    def _tokens(self) -> TokensConfig:
        """Those of a preset."""
        return self.tokens or TokensConfig(size=self.overrides.get("vocab_size", TokensConfig().size))


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConfig(NetworkConfig):
    """What all language models have in common."""

    add_value_head: bool = False
    """Whether there is a critic, linear in the last hidden states."""
    temperature: float = 1.0
    """The sampling temperature; log-probabilities are those of the distribution at this temperature."""
    logit_chunk: int = 256
    """Tokens whose logits exist at the same time."""

    def __post_init__(self) -> None:
        NetworkConfig.__post_init__(self)
        expect_range("temperature", self.temperature, 0.0, HOTTEST, open_low=True)
        expect_at_least("logit_chunk", self.logit_chunk, 1)

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(
            critic=self.add_value_head,
            critic_key="add_value_head",
            entropy=True,
            recurrent=False,
            language=True,
            temperature=self.temperature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLMConfig(LanguageConfig):
    """Any causal language model of transformers, by name: `model_type: causal_lm`."""

    def build(self, *, seed: int) -> LanguageModel:
        """The model; torch's global generator is neither read nor moved.

        Args:
            seed: decides the weights of a preset, of adapters and of the value head.

        Raises:
            ConfigError: an unknown architecture or override, or logits that are scaled in an unknown way.
            CheckpointError: the folder misses weights.
            MissingExtra: transformers or peft is not installed.
        """
        import_transformers(place="causal_lm", extra="rlinf-models[language]")
        from rlinf.models.language._policy import build_causal

        return build_causal(self, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionLanguageConfig(LanguageConfig):
    """A vision-language model of transformers, by name: `model_type: vlm`. Images: Qwen2.5-VL and Qwen3-VL; text: any."""

    architecture: str = "qwen3_vl"
    """The `model_type` of transformers (`qwen2_5_vl`, `qwen3_vl`), for a preset."""
    freeze_vision: bool = False
    """Whether the vision tower is left as it is."""

    def _tokens(self) -> TokensConfig:
        """Those of a preset; the largest of the bytes' default are those that stand for the parts of images and videos."""
        return self.tokens or TokensConfig(size=TokensConfig().size - IMAGE_TOKENS)

    def build(self, *, seed: int) -> LanguageModel:
        """The model; see `CausalLMConfig.build`."""
        import_transformers(place="vlm", extra="rlinf-models[language]")
        from rlinf.models.language._policy import build_vision

        return build_vision(self, seed=seed)

    def image_processor(self) -> ImageProcessor:
        """What turns pictures into patches as the model reads them: the image processor of `model_path`, or one that fits a preset.

        Raises:
            ConfigError: the architecture is none of Qwen-VL.
            CheckpointError: the folder has no image processor.
            MissingExtra: transformers or Pillow is not installed.
        """
        require_modules("transformers", "PIL", place="vlm", extra="rlinf-models[language,images]")
        from rlinf.models.language._image_processor import qwen_image_processor
        from rlinf.models.language._policy import vision_sizes

        return qwen_image_processor(vision_sizes(self), folder_of(self.model_path))


def check_folder(path: str | None, place: str) -> None:
    """Refuses the folder of a model that is not there, or that is not whole; None passes.

    Raises:
        ConfigError: no such folder, or it lacks configuration, weights or tokenizer.
        CheckpointError: its weights were cut.
    """
    folder = folder_of(path)
    if folder is None:
        return
    if not folder.is_dir():
        raise ConfigError(place, f"expected a local folder, found none at '{path}'", "Download the model first.")
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    has = {
        "config.json": (folder / "config.json").is_file(),
        "weights": weights is not None,
        # Some families have no more than `vocab.json` or `qwen.tiktoken`.
        "tokenizer": any(next(folder.glob(pattern), None) for pattern in ("*token*", "vocab.*", "*.model")),
    }
    lacking = [name for name, found in has.items() if not found]
    if lacking:
        found = f"expected a model with its tokenizer, in the layout of Hugging Face; '{path}' lacks {', '.join(lacking)}"
        raise ConfigError(place, found, "Download or save the whole folder; weights of a run go to runner.ckpt_path.")
    if weights is not None:
        expect_whole(weights, place=place)
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        _expect_json(folder / name, place)


def _expect_json(file: Path, place: str) -> None:
    """Refuses a file that was cut or damaged; of a large one the end alone is read, as vocabularies take long."""
    if not file.is_file():
        return
    try:
        if file.stat().st_size < _SMALL:
            json.loads(file.read_bytes())
        elif not file.read_bytes().rstrip().endswith(b"}"):
            raise ValueError("it does not end with a brace")
    except (OSError, ValueError) as error:
        raise ConfigError(place, f"'{file}' is no JSON ({error})", "It was cut or changed: copy it again.") from error
