"""The sizes of OpenVLA's vision-language model; nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlinf.core.errors import ConfigError

# As the published preprocessor has them: ImageNet's, rounded to bfloat16.
_IMAGENET_MEAN, _IMAGENET_STD = (0.484375, 0.455078125, 0.40625), (0.228515625, 0.2236328125, 0.224609375)
_HALF = (0.5, 0.5, 0.5)
_TINY_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """One vision transformer, whose features are those of the last block but one."""

    image_size: int
    """Pixels, each way."""
    patch_size: int
    """Pixels, each way."""
    width: int
    depth: int
    """Blocks of the published network; the last one is never built, as its output is not used."""
    heads: int
    mlp_width: int
    layer_scale: bool = False
    """Whether each branch is multiplied by a learned vector (DINOv2)."""
    registers: int | None = None
    """Register tokens beside a class token (DINOv2); None if there is neither (SigLIP)."""
    mean: tuple[float, float, float] = _HALF
    """What is taken from the three channels of a picture in [0, 1]."""
    std: tuple[float, float, float] = _HALF
    """By what the three channels are divided then."""
    initializer_range: float = 0.02
    """The standard deviation of random weights."""

    def __post_init__(self) -> None:
        if self.image_size % self.patch_size:
            found = f"expected a multiple of the patch size {self.patch_size}, found {self.image_size}"
            raise ConfigError("vision.image_size", found, "Change one of the two.")
        if self.depth < 2 or self.width % self.heads:
            found = f"expected depth ≥ 2 and a width that {self.heads} heads divide, found {self.depth} and {self.width}"
            raise ConfigError("vision", found)

    @property
    def patches(self) -> int:
        """P, the features of one picture."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """A Llama; the defaults are those of `transformers.LlamaConfig`, which fill the gaps of published configurations."""

    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    """As many as `num_attention_heads` if None."""
    vocab_size: int = 32064
    """Rows of the embedding: the vocabulary and `pad_to_multiple_of` rows that no text and no action uses."""
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.02
    """The standard deviation of random weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrismaticConfig:
    """Two vision transformers side by side, a projector, and a Llama."""

    vision: tuple[VisionConfig, VisionConfig]
    """In the order of the stacked channels: `featurizer`, then `fused_featurizer`."""
    text: TextConfig
    pad_to_multiple_of: int = 64
    """Rows at the end of the embedding that are no tokens."""

    def __post_init__(self) -> None:
        first, second = self.vision
        if (first.image_size, first.patches) != (second.image_size, second.patches):
            found = f"expected equal pictures and patches, found {first.image_size} px with {first.patches}"
            raise ConfigError("vision", f"{found} and {second.image_size} px with {second.patches}")

    @property
    def vocabulary(self) -> int:
        """V: token ids lie in [0, V); actions are the last ones."""
        return self.text.vocab_size - self.pad_to_multiple_of

    @property
    def image_size(self) -> int:
        """Pixels, each way."""
        return self.vision[0].image_size

    @staticmethod
    def tiny(*, vocabulary: int = 640, image_size: int = 32, patch_size: int = 16, width: int = 64) -> PrismaticConfig:
        """Everything that the published network has, in less than a million numbers.

        Args:
            vocabulary: V, text and actions.
            image_size: pixels, each way.
            patch_size: pixels, each way.
            width: of the Llama and of both vision transformers.
        """
        siglip = VisionConfig(
            image_size=image_size,
            patch_size=patch_size,
            width=width,
            depth=3,
            heads=4,
            mlp_width=2 * width,
            initializer_range=_TINY_SPREAD,
        )
        dino = replace(siglip, layer_scale=True, registers=2)
        text = TextConfig(
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            # Behind the tokens the `pad_to_multiple_of` rows that are none, as in the published network.
            vocab_size=vocabulary + 64,
            initializer_range=_TINY_SPREAD,
        )
        return PrismaticConfig(vision=(dino, siglip), text=text)

    @staticmethod
    def base() -> PrismaticConfig:
        """OpenVLA-7B: DINOv2-L with 4 registers and SigLIP-so400m at 224 pixels, Llama-2-7B.

        Kim et al., "OpenVLA: An Open-Source Vision-Language-Action Model" (2024), arXiv:2406.09246.
        """
        dino = VisionConfig(
            image_size=224,
            patch_size=14,
            width=1024,
            depth=24,
            heads=16,
            mlp_width=4096,
            layer_scale=True,
            registers=4,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
        )
        siglip = VisionConfig(image_size=224, patch_size=14, width=1152, depth=27, heads=16, mlp_width=4304)
        return PrismaticConfig(vision=(dino, siglip), text=TextConfig())
