"""Makes `pi0.safetensors` and `pi05.safetensors`: what LeRobot's π0 and π0.5 answer, with tiny sizes and made-up weights.

    uv venv --python 3.12 /tmp/ref && uv pip install --python /tmp/ref/bin/python lerobot==0.6.1 'transformers==5.5.*'
    /tmp/ref/bin/python packages/models/tests/parity/make_pi0.py

Names and shapes of LeRobot's own tensors are in the metadata; the weights follow from them.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_weights import made_up_weights

HERE = Path(__file__).parent
ROWS, CAMERAS, HORIZON, SIZE, IMAGE, TOKENS, VOCABULARY, STEPS = 3, 2, 4, 8, 32, 12, 384, 5
LANGUAGE, EXPERT, VISION = (64, 2, 96, 8, 1, 16), (48, 2, 80, 8, 1, 16), (32, 2, 64, 4, 16)


def shrink(module):
    """Makes LeRobot's module build small models; sizes that it takes from names of variants are replaced."""
    vlm, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM

    def small_vlm(config):
        vision = config.vision_config
        vision.hidden_size, vision.num_hidden_layers, vision.intermediate_size, vision.num_attention_heads, vision.patch_size = (
            VISION
        )
        vision.projection_dim = config.projection_dim = config.text_config.hidden_size
        config.text_config.vocab_size = VOCABULARY
        return vlm(config)

    def small_expert(config):
        config.vocab_size = 8
        return expert(config)

    module.PaliGemmaForConditionalGenerationWithPiGemma = lambda config: small_vlm(config)
    module.PiGemmaForCausalLM = lambda config: small_expert(config)
    module.get_gemma_config = lambda variant: module.GemmaConfig(*(LANGUAGE if variant == "gemma_2b" else EXPERT))


def answers(model, kind, x):
    """Actions of a whole chain, one velocity, and the squared errors of training, which take another path through the model."""
    images, masks = list(x["pixels"].unbind(1)), list(x["image_masks"].unbind(1))
    given = (images, masks, x["tokens"], x["token_masks"]) + ((x["state"],) if kind == "pi0" else ())
    step, kept = model.denoise_step, {}

    def spy(**arguments):
        kept.update(arguments)
        return step(**arguments)

    model.denoise_step = spy
    actions = model.sample_actions(*given, noise=x["noise"], num_steps=STEPS)
    velocity = step(**(kept | {"x_t": x["noise"], "timestep": x["time"]}))
    errors = model(*given, x["action"], x["noise"], x["time"])
    return {"actions": actions, "velocity": velocity, "errors": errors}


@torch.no_grad()
def make(kind):
    if kind == "pi0":
        from lerobot.policies.pi0 import modeling_pi0 as module

        config, cls = module.PI0Config, "PI0Pytorch"
    else:
        from lerobot.policies.pi05 import modeling_pi05 as module

        config, cls = module.PI05Config, "PI05Pytorch"
    shrink(module)
    sizes = {"chunk_size": HORIZON, "n_action_steps": HORIZON, "max_state_dim": SIZE, "max_action_dim": SIZE}
    model = getattr(module, cls)(config(image_resolution=(IMAGE, IMAGE), device="cpu", **sizes)).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights = {name: torch.from_numpy(tensor) for name, tensor in made_up_weights(shapes).items()}
    tied = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    weights["paligemma_with_expert.paligemma.lm_head.weight"] = weights[tied].clone()
    model.load_state_dict(weights)
    torch.manual_seed(0)
    levels = torch.randint(256, (ROWS, CAMERAS, IMAGE, IMAGE, 3), dtype=torch.uint8)
    x = {
        "pixels": (levels.float() / 255.0 * 2.0 - 1.0).movedim(-1, -3).contiguous(),
        "image_masks": torch.tensor([[True, False], [True, True], [True, True]]),
        "tokens": torch.randint(VOCABULARY, (ROWS, TOKENS)),
        "token_masks": torch.arange(TOKENS) < torch.tensor([[5], [12], [8]]),
        "state": torch.randn(ROWS, SIZE),
        "noise": torch.randn(ROWS, HORIZON, SIZE),
        "action": torch.randn(ROWS, HORIZON, SIZE),
        "time": torch.tensor([1.0, 0.3, 0.05]),
    }
    found = answers(model, kind, x)
    del x["pixels"]
    metadata = {"shapes": json.dumps(shapes), "steps": str(STEPS)}
    save_file(
        {**x, "images": levels, **{k: v.contiguous() for k, v in found.items()}}, HERE / f"{kind}.safetensors", metadata=metadata
    )
    print(kind, {name: round(float(tensor.abs().max()), 3) for name, tensor in found.items()})


if __name__ == "__main__":
    for kind in ("pi0", "pi05"):
        make(kind)
