"""The OpenVLA policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlinf.core.data import Batch, Decision, EnvSpec, LossOutput, Rescored
from rlinf.core.data.sequences import at_granularity
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import folder_of
from rlinf.models.base import BasePolicy, flat_context
from rlinf.models.flow.draws import drawn
from rlinf.models.heads.value import ValueHead
from rlinf.models.lora import apply_lora
from rlinf.models.observations.images import standardize
from rlinf.models.openvla._loading import Source, from_folder, from_preset
from rlinf.models.openvla._prismatic import PrismaticVLM
from rlinf.models.openvla.policy import IMAGES, TASKS, OpenVLAPolicyConfig
from rlinf.models.openvla.prompt import encode_prompts
from rlinf.models.openvla.tokens import bin_entropy, bin_logprobs, chosen, draw
from rlinf.models.openvla.vision import fit_pictures
from rlinf.models.precision import cast_weights
from rlinf.models.seeding import seeded_weights

PROMPT, MASK, TOKENS, TEMPERATURE = "prompt_tokens", "prompt_mask", "action_tokens", "temperature"


class OpenVLAPolicy(BasePolicy):
    """p(a | o) = Πᵢ p(tokenᵢ | picture, instruction, tokens before i); V from the state that the first token is read from.

    Kim et al., "OpenVLA: An Open-Source Vision-Language-Action Model" (2024), arXiv:2406.09246.

    Args:
        config: the hyper-parameters.
        source: network, tokenizer, bins, and statistics of actions.
        value_head: the critic, if there is one.
    """

    def __init__(self, config: OpenVLAPolicyConfig, source: Source, value_head: ValueHead | None) -> None:
        super().__init__()
        self.config = config
        self.bins = source.bins
        self.vlm: PrismaticVLM = source.vlm
        self.value_head = value_head
        self.normalizer = source.normalizer
        self.chunk = (config.num_action_chunks, len(source.normalizer.first))
        self._tokenizer, self._last = source.tokenizer, source.last_prompt_token

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for `main_images` `[B, H, W, 3]` uint8 and `task_descriptions` `[B]`; see `BasePolicy`."""
        context = self.look(env_obs)
        heat = self.config.temperature if mode == "train" else self.config.temperature_eval
        # The most likely token is scored as a draw of mode "train" would be.
        context[TEMPERATURE] = torch.full((len(context[IMAGES]),), heat or self.config.temperature, device=self._device)
        # Kept beside the action, which doesn't tell them: n ids decode to n − 1 centres.
        context[TOKENS], logprobs, state = self._write(context, generator, greedy=heat == 0.0)
        return Decision(
            action=self._actions(context[TOKENS]),
            logprob=self._leveled(logprobs, logprobs.shape[:1]),
            value=self._value(state),
            context=context,
            version=self.version,
        )

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """Log-probability and entropy at the declared granularity and value of each decision, in one pass for all tokens."""
        axes = batch.trajectory.mask.shape
        context = self._filled(flat_context(batch, self._device), batch.trajectory.mask.flatten().to(self._device))
        states = self._states(context, context[TOKENS])
        logprobs = self._logprobs(states, context[TEMPERATURE])
        value = self._value(states[:, 0])
        return Rescored(
            logprob=self._leveled(chosen(logprobs, context[TOKENS], self.bins), axes),
            entropy=self._leveled(bin_entropy(logprobs), axes),
            value=None if value is None else value.view(axes),
        )

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        del states  # not seen
        self.normalizer.fit(action)

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """Cross-entropy of demonstrated tokens over the whole vocabulary; its weight is their number.

        Args:
            env_obs: as of `predict_action_batch`.
            action: `[B, K, A]`.
            mask: `[B, K]` bool, False for steps that don't count.
            generator: not used, nothing is drawn.

        Raises:
            ShapeError: `action` is of another shape.
        """
        context = self.look(env_obs)
        shown = torch.as_tensor(action, dtype=torch.float32, device=self._device)
        if shown.shape != (len(context[IMAGES]), *self.chunk):
            found = f"expected {(len(context[IMAGES]), *self.chunk)}, found {tuple(shown.shape)}"
            raise ShapeError("sft_loss(action)", found)
        tokens = self.bins.encode(self.normalizer.normalize(shown)).flatten(1)
        logits = self._logits(self._states(context, tokens))
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view(-1, *self.chunk)
        used = torch.ones(shown.shape[:2]) if mask is None else torch.as_tensor(mask)
        weight = used.to(loss)[..., None].expand_as(loss)
        right = (logits.argmax(-1) == tokens).view_as(loss).to(loss) * weight
        total, count = (loss * weight).sum(), weight.sum()
        number = float(count)
        metrics = {"sft_loss": Metric(float(total.detach()), number), "token_accuracy": Metric(float(right.sum()), number)}
        return LossOutput(total=total, weight=count, metrics=metrics)

    def _filled(self, context: dict[str, Tensor], used: Tensor) -> dict[str, Tensor]:
        """Rows that only pad a trajectory are zeros, which no prompt, token or temperature is: they get some that can be scored."""
        first = context[MASK].clone()
        first[:, 0] = True
        return {
            **context,
            MASK: first,
            TOKENS: context[TOKENS].where(used[:, None], self.bins.first),
            TEMPERATURE: context[TEMPERATURE].where(used, 1.0),
        }

    def look(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        """What is stored of observations: pictures in the size of the network, and prompts."""
        found = sorted(cast("Mapping[str, Any]", env_obs)) if isinstance(env_obs, Mapping) else type(env_obs).__name__
        if not isinstance(env_obs, Mapping) or IMAGES not in env_obs or TASKS not in env_obs:
            raise ShapeError("openvla(env_obs)", f"expected the keys '{IMAGES}' and '{TASKS}', found {found}")
        leaves = cast("Mapping[str, Any]", env_obs)
        tasks = [str(task) for task in np.asarray(leaves[TASKS]).reshape(-1).tolist()]
        images = self._pictures(leaves[IMAGES])
        if images.dim() != 4 or len(tasks) != len(images):
            raise ShapeError(
                "openvla(env_obs)", f"expected [B, H, W, 3] pictures and [B] texts, found {list(images.shape)} and {len(tasks)}"
            )
        length = self.config.max_prompt_length
        tokens, mask = encode_prompts(tasks, self._tokenizer, length=length, last=self._last)
        return {IMAGES: images, PROMPT: tokens.to(self._device), MASK: mask.to(self._device)}

    def _pictures(self, images: Any) -> Tensor:
        """`[B, s, s, 3]` uint8 in the size of the network; what is stored of a decision."""
        return fit_pictures(images, self.vlm.config.image_size, crop=self.config.center_crop).to(self._device)

    def embed_context(self, context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Embeddings and mask of what the Llama reads first, without the columns that are padding in every row."""
        used = context[MASK].any(0)
        towers = self.vlm.config.vision
        pixels = torch.cat([standardize(context[IMAGES], mean=tower.mean, std=tower.std) for tower in towers], dim=1)
        dtype = self.vlm.projector.fc1.weight.dtype
        return self.vlm.embed_prompt(pixels.to(dtype), context[PROMPT][:, used], context[MASK][:, used])

    def _write(
        self, context: Mapping[str, Tensor], generator: torch.Generator | None, *, greedy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Writes action tokens, each seeing those before it through the cache.

        Returns:
            Tokens `[B, N]`, their log-probabilities `[B, N]`, and the state before the first `[B, L]`.
        """
        embedded, mask = self.embed_context(context)
        count = self.chunk[0] * self.chunk[1]
        noise = None if greedy else self._noise(len(embedded), count, generator)
        llama = self.vlm.language_model.model
        cache: Any = None
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        first: Tensor | None = None
        # Padding lies between BOS and the text: a column's index is not its position.
        positions = mask.cumsum(1) - 1
        for i in range(count):
            out = llama(inputs_embeds=embedded, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache, state = out.past_key_values, out.last_hidden_state[:, -1]
            first = state if first is None else first
            options = self._logprobs(state[:, None], context[TEMPERATURE])[:, 0]
            tokens.append(draw(options, None if noise is None else noise[:, i], self.bins))
            logprobs.append(chosen(options, tokens[-1], self.bins))
            embedded = self.vlm.embed_tokens(tokens[-1][:, None])
            mask, positions = functional.pad(mask, (0, 1), value=True), positions[:, -1:] + 1
        assert first is not None
        return torch.stack(tokens, 1), torch.stack(logprobs, 1), first

    def _states(self, context: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """The states that N given tokens are read from, `[B, N, L]`, in one pass."""
        prompt, mask = self.embed_context(context)
        # A token is read from the state before it, so the last one is never an input.
        embedded = torch.cat([prompt, self.vlm.embed_tokens(tokens[:, :-1])], dim=1)
        mask = functional.pad(mask, (0, tokens.shape[1] - 1), value=True)
        out = self.vlm.language_model.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=mask.cumsum(1) - 1, use_cache=False
        )
        return out.last_hidden_state[:, prompt.shape[1] - 1 :]

    def _logits(self, states: Tensor) -> Tensor:
        """`[B, N, R]` float32."""
        return cast("Tensor", self.vlm.language_model.lm_head(states)).float()

    def _logprobs(self, states: Tensor, temperature: Tensor) -> Tensor:
        """`[B, N, n]`."""
        return bin_logprobs(self._logits(states), self.bins, temperature=temperature, top_k=self.config.top_k)

    def _leveled(self, x: Tensor, axes: torch.Size) -> Tensor:
        """What belongs to single tokens `[·, N]` at the declared granularity, `[*axes, …]`."""
        leveled = at_granularity(x.view(-1, *self.chunk), self.config.logprob_type, axes=1)
        return leveled.view(*axes, *leveled.shape[1:])

    def _value(self, state: Tensor) -> Tensor | None:
        return None if self.value_head is None else self.value_head(state)

    def _actions(self, tokens: Tensor) -> Tensor:
        """`[B, K, A]` in the units of the environment."""
        return self.normalizer.unnormalize(self.bins.decode(tokens).view(-1, *self.chunk))

    def _noise(self, rows: int, count: int, generator: torch.Generator | None) -> Tensor:
        """Exp(1), `[B, N, n]`."""
        # Drawn where the generator is: the numbers don't depend on where the weights are.
        source = torch.device("cpu") if generator is None else generator.device
        noise = drawn(
            (rows, count, self.bins.count),
            generator,
            lambda shape, part: torch.empty(shape, device=source).exponential_(generator=part),
        )
        return noise.to(self._device)

    @property
    def _device(self) -> torch.device:
        return self.vlm.projector.fc1.weight.device


def build_policy(config: OpenVLAPolicyConfig, spec: EnvSpec, seed: int) -> OpenVLAPolicy:
    """The policy of a configuration; see `OpenVLAPolicyConfig.build`."""
    folder = folder_of(config.model_path)
    if folder is not None:
        source = from_folder(folder, config.n_action_bins, config.unnorm_key, spec)
    else:
        source = from_preset(config.preset or "tiny", config.n_action_bins, spec, seed)
    if config.precision == "bf16":
        cast_weights(source.vlm, torch.bfloat16)
    if config.lora is not None:
        apply_lora(source.vlm, config.lora, seed=seed)
    if config.freeze_vision:
        # After apply_lora, so that adapters of what is to stay as it is are frozen, too.
        source.vlm.vision_backbone.requires_grad_(requires_grad=False)
    with seeded_weights(seed):
        width = source.vlm.config.text.hidden_size
        value_head = ValueHead(width, (512, 128), "gelu", last_bias=False) if config.add_value_head else None
    return OpenVLAPolicy(config, source, value_head)
