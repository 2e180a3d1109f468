"""A tiny vision-language model of transformers, and prompts that get a picture by their length."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from generation_toy import SIZES, ToyWriter
from torch import nn

from rlinf.core.language.problems import ShownPrompt

IMAGE, MERGE, PATCH = 3, 2, 3 * 2 * 4 * 4
TEXT = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "window_size": 16,
    "fullatt_block_indexes": [1],
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
    "initializer_range": 0.3,
}


class SeeingWriter(ToyWriter):
    """Its oracle is the forward pass of transformers, one sequence at a time, with positions of its own making."""

    def __init__(self, architecture: str) -> None:
        nn.Module.__init__(self)
        self.architecture, self.sizes = architecture, {}
        own = transformers.CONFIG_MAPPING[architecture](
            text_config=TEXT,
            vision_config=VISION,
            image_token_id=IMAGE,
            video_token_id=61,
            vision_start_token_id=62,
            vision_end_token_id=63,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = transformers.AutoModelForImageTextToText.from_config(own, attn_implementation="sdpa").eval()
        self.network.lm_head.register_forward_hook(no_marks)

    def network_inputs(self, context):
        ids, real = context["input_ids"], context["segment_ids"]
        marks = (ids == IMAGE) & (real > 0)
        grid = context["image_grid"][context["image_grid"][..., 0] > 0]
        positions, _ = self.network.model.get_rope_index(
            ids, mm_token_type_ids=marks.int(), image_grid_thw=grid, attention_mask=real
        )
        along = torch.arange(ids.shape[1]).expand(1, *ids.shape)
        positions = torch.cat([along, positions])
        pixels = context["image_patches"][marks].reshape(-1, PATCH)
        return {"input_ids": ids, "position_ids": positions, "pixel_values": pixels, "image_grid_thw": grid}

    @torch.no_grad()
    def score(self, prompt, tokens):
        seen = shown(prompt)
        ids = torch.tensor([[*seen.tokens, *tokens]])
        pictures = {}
        if len(seen.at):
            pictures = {
                "pixel_values": torch.from_numpy(seen.shown["image_patches"]).view(-1, PATCH),
                "image_grid_thw": torch.from_numpy(seen.shown["image_grid"][seen.shown["image_grid"][:, 0] > 0]),
                "mm_token_type_ids": (ids == IMAGE).int(),
            }
        self.network.model.rope_deltas = None
        logits = self.network(input_ids=ids, use_cache=False, **pictures).logits[0, len(seen.tokens) - 1 : -1].float()
        logprob = torch.log_softmax(logits, -1).gather(-1, torch.as_tensor(list(tokens))[:, None]).squeeze(-1)
        return logprob.numpy(), logits.argmax(-1).numpy()


def no_marks(module, args, logits):
    """A mark without a picture could not be read again."""
    return logits.index_fill(-1, torch.tensor(IMAGE), -1e4)


def shown(prompt, picture=None) -> ShownPrompt:
    """Every third length is text alone; others begin with a picture of 4 × 4 patches, or with two of 2 × 4 and 6 × 2.

    Args:
        prompt: tokens; marks become other tokens.
        picture: the seed of the pixels; by default the length of the prompt.
    """
    tokens = [token if token != IMAGE else 4 for token in prompt]
    grids = ([], [(1, 4, 4)], [(1, 2, 4), (1, 6, 2)])[len(tokens) % 3]
    counts = [rows * columns // MERGE**2 for _, rows, columns in grids]
    ids, at = [], []
    for count in counts:
        ids += [7]
        at += range(len(ids), len(ids) + count)
        ids += [IMAGE] * count
    random = np.random.default_rng(len(tokens) if picture is None else picture)
    patches = random.standard_normal((len(at), MERGE**2 * PATCH)).astype(np.float32)
    starts = np.zeros((len(at), 3), np.int64)
    if grids:
        starts[np.cumsum(counts) - counts] = grids
    return ShownPrompt(
        tokens=tuple(ids + tokens), at=np.asarray(at, np.int64), shown={"image_patches": patches, "image_grid": starts}
    )


class Picturing:
    """A generator whose every prompt gets its pictures on the way."""

    def __init__(self, generator) -> None:
        self.generator = generator

    def __getattr__(self, name):
        return getattr(self.generator, name)

    async def generate(self, prompt, sampling, **options):
        return await self.generator.generate_with_images(shown(prompt), sampling, **options)
