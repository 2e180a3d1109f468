"""Names that RLinf's users know, and what stands for them here; `rlinf.core.registry` tells them where a name is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PI: Final = "π0 is 'pi0', and π0.5 is 'pi05'."
_TOLD: Final = "A π0 that is told which actions were good is 'pi0' with condition: {} and data.labels (docs/runners/recap.md)."
_LANGUAGE: Final = "A language model is 'causal_lm', with model_path: its folder, which says the architecture."
_PICTURES: Final = "A model that reads pictures is 'vlm', with model_path: its folder, which says the architecture."
_ABSENT: Final = "It is not among ours; 'module:attr' names a model of your own (docs/models/your-own-policy.md)."

MODELS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("openpi", "openpi_rlinf", "openpi_pytorch", "pi0.5", "pi0_5"), _PI),
    **dict.fromkeys(("cfg_model", "openpi_cfg"), _TOLD),
    **dict.fromkeys(("qwen2", "qwen2.5", "qwen3", "qwen3_moe", "deepseek_v3", "llama"), _LANGUAGE),
    **dict.fromkeys(("qwen2_vl", "qwen2.5_vl", "qwen3_vl", "qwen3_vl_moe"), _PICTURES),
    **dict.fromkeys(("gr00t_n1d5", "gr00t_n1d6", "gr00t_n1d7"), "Of GR00T there is N1.5: 'gr00t'."),
    **dict.fromkeys(("rlt_mlp_policy", "rlt_td3_mlp_policy"), "RLT's actor and critics are 'rlt', whose base is a π0 or π0.5."),
    "resnet": "A classifier of frames is no policy: apps/embodied/reward_classifier.py trains one, for a robot's reward.",
    **dict.fromkeys(
        (
            "abot_m0",
            "dexbotic_dm0",
            "dexbotic_pi",
            "dreamzero",
            "evo1",
            "lingbotvla",
            "molmoact2",
            "sd3",
            "starvla",
            "wan22_ti2v_5b",
        ),
        _ABSENT,
    ),
}
"""What to say of a word that is no model."""
