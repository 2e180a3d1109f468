"""The OpenVLA-OFT policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.core.data import Batch, Decision, EnvSpec, LossOutput, Rescored
from rlinf.core.data.sequences import at_granularity
from rlinf.core.data.tree import Tree
from rlinf.core.metrics import Metric
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import folder_of
from rlinf.models.base import BasePolicy, flat_context
from rlinf.models.heads import ValueHead
from rlinf.models.lora import apply_lora
from rlinf.models.normalization import Normalizer
from rlinf.models.observations.images import standardize
from rlinf.models.observations.reading import read_states
from rlinf.models.openvla._loading import Source, from_folder, from_preset
from rlinf.models.openvla.folder import action_statistics, read_facts
from rlinf.models.openvla.prompt import encode_prompts
from rlinf.models.openvla_oft.checkpoint import load_parts
from rlinf.models.openvla_oft.decoders import Bins, Regression
from rlinf.models.openvla_oft.film import Film
from rlinf.models.openvla_oft.heads import ProprioProjector
from rlinf.models.openvla_oft.layout import lay_out, mean_language
from rlinf.models.openvla_oft.observation import instructions, pictures, state_size
from rlinf.models.openvla_oft.policy import OpenVLAOFTPolicyConfig
from rlinf.models.precision import cast_weights
from rlinf.models.seeding import seeded_weights


class OpenVLAOFTPolicy(BasePolicy):
    """Decides a chunk `[B, K, A]` at once; given s its dimensions are independent: log π(a|s) = Σᵢ log πᵢ(aᵢ|s).

    Args:
        config: the hyper-parameters.
        spec: the environment.
        source: the vision-language model, its tokenizer and the bins.
    """

    def __init__(self, config: OpenVLAOFTPolicyConfig, spec: EnvSpec, source: Source) -> None:
        super().__init__()
        self.config = config
        vlm = source.vlm
        self._tokenizer, self._last = source.tokenizer, source.last_prompt_token
        actions, width = spec.action.shape[0], vlm.config.text.hidden_size
        self.chunk = (config.num_action_chunks, actions)
        self.vlm = vlm
        self.film = Film(vlm.config) if config.use_film else None
        self.decoder: Bins | Regression
        if config.action_head == "l1":
            vlm.language_model.lm_head.requires_grad_(False)  # it would never get a gradient
            self.decoder = Regression(width, actions, log_std=config.logstd_init)
        else:
            self.decoder = Bins(source.bins, self.chunk, temperature=config.temperature, top_k=config.top_k)
        self.proprio_projector = self.normalize_states = None
        if config.use_proprio:
            self.proprio_projector = ProprioProjector(state_size(spec), width)
            self.normalize_states = Normalizer(state_size(spec), config.normalization, clip=True, constant=0.0)
            self.normalize_states.mask.fill_(False)  # until statistics are known, states stay as they are
        self.value_head = ValueHead(width, last_bias=False) if config.add_value_head else None
        self.normalize_actions = Normalizer(actions, config.normalization, clip=True, constant=0.0)

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """See `BasePolicy`; "eval" takes the most likely bin of each slot, or the mean."""
        context = self._context(env_obs)
        answers = self._answers(context)
        action, kept, logprob = self.decoder.decide(answers, self._lm_head, mode, generator)
        return Decision(
            action=self.normalize_actions.unnormalize(action),
            logprob=at_granularity(logprob, self.config.logprob_type, axes=1),
            value=self._value(answers),
            context={**context, **kept},
            version=self.version,
        )

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        rows, horizon = batch.trajectory.reward.shape
        context = flat_context(batch, self.device)
        answers = self._answers(context)
        logprob, entropy = self.decoder.score(answers, self._lm_head, context)
        level, value = self.config.logprob_type, self._value(answers)
        logprob, entropy = at_granularity(logprob, level, axes=1), at_granularity(entropy, level, axes=1)
        return Rescored(
            logprob=logprob.reshape(rows, horizon, *logprob.shape[1:]),
            entropy=entropy.reshape(rows, horizon, *entropy.shape[1:]),
            value=None if value is None else value.reshape(rows, horizon),
        )

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        self.normalize_actions.fit(action)
        if self.normalize_states is not None:
            self.normalize_states.fit(states)

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """Cross-entropy over the vocabulary, or the L1 distance of normalised actions; the weight counts dimensions.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            action: `[B, K, A]`.
            mask: `[B, K]` bool, False where the episode was over.
            generator: not used.
        """
        del generator
        target = self.normalize_actions.normalize(torch.as_tensor(action, dtype=torch.float32, device=self.device))
        used = target.new_ones(target.shape[:2]) if mask is None else torch.as_tensor(mask, device=self.device).to(target.dtype)
        answers = self._answers(self._context(env_obs))
        loss = self.decoder.distance(answers, self._lm_head, target)
        total, weight = (loss * used[..., None]).sum(), used.sum() * target.shape[-1]
        return LossOutput(total=total, weight=weight, metrics={"sft_loss": Metric(total.item(), weight.item())})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._lm_head.weight.device

    @property
    def _lm_head(self) -> Any:
        return self.vlm.language_model.lm_head

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        """What the network needs of an observation, in its smallest form."""
        config = self.config
        images = pictures(env_obs, count=config.num_images_in_input, size=self.vlm.config.image_size, crop=config.center_crop)
        length = config.max_prompt_length
        tokens, mask = encode_prompts(instructions(env_obs), self._tokenizer, length=length, last=self._last)
        context = {"images": images, "tokens": tokens, "token_mask": mask}
        if self.normalize_states is not None:
            context["states"] = read_states(env_obs, len(self.normalize_states.mask), "openvla_oft", self.normalize_states.first)
        return {key: leaf.to(self.device) for key, leaf in context.items()}

    def _answers(self, context: Mapping[str, Tensor]) -> Tensor:
        """One forward pass: the hidden states that answer the slots, `[B, K·A, L]`."""
        tokens, valid = context["tokens"], context["token_mask"][:, 1:]
        embedded = self.vlm.embed_tokens(tokens)
        stop = self.vlm.embed_tokens(tokens.new_tensor(int(self._tokenizer.eos_token_id)))
        bos, text = embedded[:, :1], embedded[:, 1:]
        seen = [self._see(context["images"], mean_language(bos[:, 0], text, valid, stop))]
        if self.proprio_projector is not None and self.normalize_states is not None:
            state = self.normalize_states.normalize(context["states"])
            seen.append(self.proprio_projector(state).to(text.dtype))
        slots = self.chunk[0] * self.chunk[1]
        layout = lay_out(bos, torch.cat(seen, 1), text, valid, stop, slots=slots)
        output = self.vlm.language_model.model(
            inputs_embeds=layout.embeddings,
            # transformers takes a mask of four axes as it is; from one of two it would make a causal one.
            attention_mask=layout.attention(),
            position_ids=layout.positions(),
            use_cache=False,
        )
        return layout.answers(output.last_hidden_state, slots)

    def _see(self, images: Tensor, language: Tensor) -> Tensor:
        """Embeddings `[B, V·P, L]` of pictures `[B, V, h, w, 3]`."""
        towers = [standardize(images, mean=vision.mean, std=vision.std) for vision in self.vlm.config.vision]
        pixels = torch.cat(towers, 2).to(language.dtype)
        if self.film is None:
            return self.vlm.embed_images(pixels.flatten(1, 2))
        rows, views = images.shape[:2]
        repeated = language.repeat_interleave(views, dim=0)
        features = self.film(self.vlm.vision_backbone, pixels.flatten(0, 1), repeated)
        return self.vlm.projector(features).reshape(rows, -1, language.shape[-1])

    def _value(self, answers: Tensor) -> Tensor | None:
        return None if self.value_head is None else self.value_head(answers[:, 0])


def build(config: OpenVLAOFTPolicyConfig, spec: EnvSpec, *, seed: int) -> OpenVLAOFTPolicy:
    folder = folder_of(config.model_path)
    if folder is None:
        source = from_preset(config.preset or "tiny", config.n_action_bins, spec, seed)
    else:
        source = from_folder(folder, config.n_action_bins, config.unnorm_key, spec)
    with seeded_weights(seed):
        policy = OpenVLAOFTPolicy(config, spec, source)
    # First the bounds: they remain where a checkpoint has no statistics.
    policy.normalize_actions.set_statistics(_bounds(spec))
    if folder is not None:
        _read(policy, folder)
    if config.precision == "bf16":
        cast_weights(policy.vlm, torch.bfloat16)
        if policy.film is not None:
            cast_weights(policy.film, torch.bfloat16)
    if config.lora is not None:
        apply_lora(policy.vlm, config.lora, seed=seed)
    return policy


def _read(policy: OpenVLAOFTPolicy, folder: Path) -> None:
    """Statistics and the weights outside the vision-language model."""
    key, statistics = policy.config.unnorm_key, read_facts(folder).statistics
    _take(policy.normalize_actions, action_statistics(statistics, key))
    if policy.normalize_states is not None:
        # Under the key that action_statistics looks for.
        states = {name: {"action": found["proprio"]} for name, found in statistics.items() if "proprio" in found}
        _take(policy.normalize_states, action_statistics(states, key if key in states else None))
    load_parts(
        folder,
        decoder=policy.decoder,
        proprio_projector=policy.proprio_projector,
        film=policy.film,
        backbone=policy.vlm.vision_backbone,
    )


def _take(normalizer: Normalizer, statistics: Any) -> None:
    if statistics is not None:
        # Statistics without a mask mean all dimensions, whatever the normaliser's mask was before.
        everywhere = np.ones(len(normalizer.mask), np.bool_)
        normalizer.set_statistics({"mask": everywhere, **statistics})


def _bounds(spec: EnvSpec) -> dict[str, Any]:
    """The bounds of the environment as statistics of actions, where they are finite."""
    size = spec.action.shape[0]
    if spec.action.low is None or spec.action.high is None:
        low, high = np.full(size, -np.inf), np.full(size, np.inf)
    else:
        low, high = (np.asarray(bound, np.float64) for bound in (spec.action.low, spec.action.high))
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    return {"q01": low, "q99": high, "min": low, "max": high, "mask": finite}
