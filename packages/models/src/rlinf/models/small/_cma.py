"""The cross-modal attention policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf.core.data import ArraySpec, Decision
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import STATES
from rlinf.models.heads import ValueHead
from rlinf.models.layers.action_distribution import ActionDistribution
from rlinf.models.layers.choices import Preset
from rlinf.models.layers.resnet import SHAPES, ResNetEncoder
from rlinf.models.observations.cameras import Camera
from rlinf.models.observations.reading import read_images, read_observation, read_states, views_of
from rlinf.models.seeding import seeded_weights
from rlinf.models.small.actor_critic import ActorCritic, Context, QFunctions, make_q_head
from rlinf.models.small.cma import TASKS, CMAPolicyConfig
from rlinf.models.small.cross_attention import Attention, InstructionEncoder
from rlinf.models.small.word_hashing import hash_words

POLICY_STATE, NEXT_STATE, WORDS = "policy_state", "next_policy_state", "words"
_PLACE_SIZE = 64


class MapEncoder(nn.Module):
    """What a view shows, place by place, and in sum.

    Args:
        preset: the size of the residual network.
        size: of images, in pixels.
        features: F, of the summary.
    """

    def __init__(self, preset: Preset, size: tuple[int, int], features: int) -> None:
        super().__init__()
        self.resnet = ResNetEncoder(SHAPES[preset])
        height, width = self.resnet.map_size(*size)
        channels, places = self.resnet.channels, height * width
        self.places = nn.Parameter(0.02 * torch.randn(places, _PLACE_SIZE))
        self.summary = nn.Sequential(nn.Linear(channels * places, features), nn.ReLU())
        self.width = channels + _PLACE_SIZE

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """`[n, P, C + 64]` with what tells places apart, and `[n, F]`, of images `[n, H, W, 3]` uint8."""
        maps = self.resnet(images).flatten(2)
        items = torch.cat([maps.mT, self.places.expand(len(maps), -1, -1)], -1)
        return items, self.summary(maps.flatten(1))


@dataclass(frozen=True, slots=True)
class Percept:
    """What is seen and read at decisions, before memory; each `[B, T, *]`."""

    words: Tensor
    known: Tensor
    maps: tuple[Tensor, ...]
    summary: Tensor

    def at(self, t: int) -> Percept:
        """That of column t, without the time axis."""
        maps = tuple(view[:, t] for view in self.maps)
        return Percept(self.words[:, t], self.known[:, t], maps, self.summary[:, t])


class CrossModalMemory(nn.Module):
    """Two recurrent layers with attention to words and to places between them.

    h₁ = GRU₁([v̄, s, a₋₁], h₁),   î = Attn(words, h₁),   v̂ = Attn(places, î),   h₂ = GRU₂([î, v̂, a₋₁, h₁], h₂)

    Krantz et al., "Beyond the Nav-Graph: Vision-and-Language Navigation in Continuous Environments" (2020),
    arXiv:2004.02857, with cameras in place of colour and depth, and a continuous last action.

    Args:
        config: of the policy.
        words: the size of a word.
        maps: the size of an item of each view.
        seen: of what is seen in sum, states included.
        action: K · A.
    """

    def __init__(self, config: CMAPolicyConfig, words: int, maps: Sequence[int], seen: int, action: int) -> None:
        super().__init__()
        size, memory = config.image_features, config.memory_size
        self.look = nn.GRUCell(seen + action, memory)
        self.read = Attention(memory, words, size)
        self.find = nn.ModuleList(Attention(size, item, size) for item in maps)
        self.compress = nn.Sequential(nn.Linear(size * (1 + len(maps)) + action + memory, memory), nn.ReLU())
        self.think = nn.GRUCell(memory, memory)

    def forward(self, percept: Percept, state: Tensor) -> Tensor:
        """h₁ and h₂ `[n, 2 M]`, of a percept and the state `[n, 2 M + K · A]` before it: h₁, h₂, a₋₁."""
        memory = self.think.hidden_size
        first, second, action = state[:, :memory], state[:, memory : 2 * memory], state[:, 2 * memory :]
        first = self.look(torch.cat([percept.summary, action], -1), first)
        told = self.read(first, percept.words, percept.known)
        found = [find(told, view) for find, view in zip(self.find, percept.maps, strict=True)]
        second = self.think(self.compress(torch.cat([told, *found, action, first], -1)), second)
        return torch.cat([first, second], -1)


class CMAPolicy(ActorCritic):
    """Actor and critic on the second memory; `policy_state` is that memory as data (`rlinf.core.capabilities.RecurrentPolicy`).

    A row of a batch whose columns follow each other is run from its first column on, so that gradients flow back through time; a
    column that doesn't follow the one before it starts from the state that was recorded with it. With unchanged weights both are
    the same.

    Args:
        config: the hyper-parameters.
        cameras: through which it looks.
        states: D, the size of the states; 0 if they are not seen.
        action: one control step.
        seed: decides the weights.
    """

    def __init__(self, config: CMAPolicyConfig, *, cameras: Sequence[Camera], states: int, action: ArraySpec, seed: int) -> None:
        super().__init__()
        self.cameras, self.state_size = tuple(cameras), states
        self.vocab_size, self.max_words = config.vocab_size, config.max_words
        self.distribution = ActionDistribution(config, action, "cma")
        self.log_std = self.distribution.free_log_std()
        sizes = [camera.size for camera in cameras for _ in range(camera.views)]
        with seeded_weights(seed):
            self.instruction = InstructionEncoder(config.vocab_size, config.word_size, config.instruction_size)
            self.views = nn.ModuleList(MapEncoder(config.preset, size, config.image_features) for size in sizes)
            maps = [cast("MapEncoder", view).width for view in self.views]
            seen = len(sizes) * config.image_features + states
            self.memory = CrossModalMemory(config, self.instruction.width, maps, seen, self.distribution.size)
            self.actor = nn.Linear(config.memory_size, self.distribution.outputs)
            # A small gain, as in the MLP policy: the mean of a fresh policy is near 0, so that its noise decides.
            nn.init.orthogonal_(self.actor.weight, 0.01)
            nn.init.zeros_(self.actor.bias)
            self.value_head = ValueHead(config.memory_size, ()) if config.add_value_head else None
        self.memory_size = config.memory_size

    def initial_state(self, rows: int) -> Mapping[str, Tensor]:
        """`policy_state` `[rows, S]` at the start of an episode: nothing remembered, nothing done."""
        return {POLICY_STATE: self.actor.weight.new_zeros(rows, 2 * self.memory_size + self.distribution.size)}

    def next_state(self, decision: Decision[Any]) -> Mapping[str, Tensor]:
        return {POLICY_STATE: cast("Context", decision.context)[NEXT_STATE]}

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for a batch of observations; without `policy_state` as at the start of an episode. See `BasePolicy`."""
        context = self._context(env_obs)
        memory = self._remember(context)
        decision = self._decide(context, memory[..., self.memory_size :], mode, generator)
        # Recorded, too: by it `_remember` sees whether the next column follows this one.
        following = torch.cat([memory, self.distribution.unit(decision.action)], -1)
        return dataclasses.replace(decision, context={**cast("Context", decision.context), NEXT_STATE: following})

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        like = self.actor.weight
        texts = [str(text) for text in np.asarray(read_observation(env_obs, TASKS, "cma")).tolist()]
        words = hash_words(texts, vocab_size=self.vocab_size, max_words=self.max_words)
        context = {camera.key: read_images(env_obs, camera, "cma", like.device) for camera in self.cameras}
        context[WORDS] = words.to(like.device)
        if self.state_size:
            context[STATES] = read_states(env_obs, self.state_size, "cma", like)
        context[POLICY_STATE] = self._state(cast("Mapping[str, Any]", env_obs), len(texts))
        return context

    def _state(self, env_obs: Mapping[str, Any], rows: int) -> Tensor:
        start = self.initial_state(rows)[POLICY_STATE]
        state = torch.as_tensor(env_obs.get(POLICY_STATE, start))
        if state.shape != start.shape:
            remedy = "Give what initial_state or next_state returned."
            raise ShapeError(f"cma(env_obs).{POLICY_STATE}", f"expected {tuple(start.shape)}, found {tuple(state.shape)}", remedy)
        return state.to(start, copy=True)

    def _features(self, context: Context) -> Tensor:
        return self._remember(context)[..., self.memory_size :]

    def _remember(self, context: Context) -> Tensor:
        """h₁ and h₂ `[*, 2 M]` after decisions, of a context with leaves `[B, …]` or `[B, T, …]`."""
        if context[POLICY_STATE].dim() == 2:
            return self._remember({key: leaf[:, None] for key, leaf in context.items()})[:, 0]
        # All columns at once: only the memory has to go step by step.
        percept, recorded = self._perceive(context), context[POLICY_STATE].to(self.actor.weight.dtype)
        memory: list[Tensor] = []
        for t in range(recorded.shape[1]):
            state = recorded[:, t]
            if t:
                # Bit for bit: where the episode goes on, what next_state gave comes back unchanged.
                follows = (state == context[NEXT_STATE][:, t - 1].to(state.dtype)).all(-1, keepdim=True)
                action = state[:, 2 * self.memory_size :]
                state = torch.where(follows, torch.cat([memory[-1], action], -1), state)
            memory.append(self.memory(percept.at(t), state))
        return torch.stack(memory, 1)

    def _perceive(self, context: Context) -> Percept:
        leading = context[POLICY_STATE].shape[:2]
        words, known = self.instruction(context[WORDS].flatten(0, 1))
        images = [view.flatten(0, 1) for camera in self.cameras for view in views_of(context[camera.key], camera)]
        seen = [view(image) for view, image in zip(self.views, images, strict=True)]
        summary = torch.cat([total for _, total in seen], -1).view(*leading, -1)
        if self.state_size:
            summary = torch.cat([summary, context[STATES].to(summary.dtype)], -1)
        maps = tuple(items.view(*leading, *items.shape[1:]) for items, _ in seen)
        return Percept(words.view(*leading, *words.shape[1:]), known.view(*leading, -1), maps, summary)

    def _output(self, features: Tensor) -> Tensor:
        return self.actor(features)

    def _value(self, features: Tensor) -> Tensor | None:
        return None if self.value_head is None else self.value_head(features)


class CMAQPolicy(QFunctions, CMAPolicy):
    """The cross-modal attention policy with Q-functions of its memory, which the critics alone train."""

    def __init__(self, config: CMAPolicyConfig, *, cameras: Sequence[Camera], states: int, action: ArraySpec, seed: int) -> None:
        super().__init__(config, cameras=cameras, states=states, action=action, seed=seed)
        with seeded_weights(seed):
            self.q_head = make_q_head(config, config.memory_size, self.distribution.size)
