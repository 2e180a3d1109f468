"""Where the tensors of public checkpoints go.

| in the checkpoint (LeRobot, openpi-PyTorch) | here |
|---|---|
| `paligemma_with_expert.paligemma.model.*` | `core.model.vlm.*` |
| `paligemma_with_expert.paligemma.lm_head.weight` | `core.model.vlm.language_model.embed_tokens.weight`: tied |
| `paligemma_with_expert.gemma_expert.model.*` | `core.model.dit.*` |
| `paligemma_with_expert.gemma_expert.lm_head.weight`, `….model.embed_tokens.weight` | dropped: the expert reads no tokens |
| `action_in_proj.*`, `state_proj.*`, `action_time_mlp_{in,out}.*`, `time_mlp_{in,out}.*` | `core.embed_action_time.*` |
| `action_out_proj.*` | `core.action_out_proj.*` |

Before that, a leading `model.` (LeRobot's policies) goes, and `vision_tower.vision_model.` (transformers 4) is `vision_tower.`
The towers of older transformers (`paligemma.language_model.model.*`, `paligemma.vision_tower.*`) are understood, too. What
transformers' own `PI0ForConditionalGeneration` saves, and what we export, gets the prefix `core.` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

# Order matters: each rule sees the name that those before it made.
_RULES: Final = tuple(
    (re.compile(pattern), target)
    for pattern, target in (
        # Names of transformers begin with `model.`, too; they keep it until the last rule.
        (r"^model\.(?!vlm\.|dit\.)", ""),
        (r"\bvision_tower\.vision_model\.", "vision_tower."),
        (r"^paligemma_with_expert\.paligemma\.language_model\.model\.", "core.model.vlm.language_model."),
        (r"^paligemma_with_expert\.paligemma\.(?:language_model\.)?lm_head\.", "core.model.vlm.language_model.embed_tokens."),
        (r"^paligemma_with_expert\.paligemma\.(?:model\.)?", "core.model.vlm."),
        (r"^paligemma_with_expert\.gemma_expert\.model\.", "core.model.dit."),
        (r"^(?:embed_action_time\.)?(action_in_proj|state_proj|(?:action_)?time_mlp_(?:in|out))\.", r"core.embed_action_time.\1."),
        (r"^(model\.(?:vlm|dit)|action_out_proj)\.", r"core.\1."),
    )
)
_DROPPED: Final = re.compile(r"^paligemma_with_expert\.gemma_expert\.lm_head\.|^core\.model\.dit\.embed_tokens\.")


def target(name: str) -> str | None:
    """The name here of a tensor in a public checkpoint; None if nobody needs it."""
    for pattern, replacement in _RULES:
        name = pattern.sub(replacement, name)
    return None if _DROPPED.search(name) else name


def sources(names: Iterable[str]) -> Mapping[str, str]:
    """By name here, the name in the checkpoint; of two names of one tensor the first in order."""
    found: dict[str, str] = {}
    for name in sorted(names):
        wanted = target(name)
        if wanted is not None:
            found.setdefault(wanted, name)
    return found
