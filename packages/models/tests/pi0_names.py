"""The names that weights of π0 have in public checkpoints."""


def published(name, layout):
    """The name that a tensor of ours has in a public checkpoint."""
    if layout == "transformers":
        return name.removeprefix("core.")
    name = name.removeprefix("core.").removeprefix("embed_action_time.")
    name = name.replace("model.vlm.", "paligemma_with_expert.paligemma.model.")
    name = name.replace("model.dit.", "paligemma_with_expert.gemma_expert.model.")
    name = name.replace("vision_tower.", "vision_tower.vision_model.")
    if name.endswith("language_model.embed_tokens.weight"):
        name = "paligemma_with_expert.paligemma.lm_head.weight"
    return f"model.{name}" if layout == "lerobot" else name
