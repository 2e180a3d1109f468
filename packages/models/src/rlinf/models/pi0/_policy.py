"""π0 and π0.5 as policies: one class for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from rlinf.core.capabilities import FlowRegression
from rlinf.core.data import ArraySpec, Batch, Decision, EnvSpec, LossOutput, Rescored
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.core.off_policy import Proposal
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import finite_bounds, folder_of
from rlinf.models.base import BasePolicy, flat_context
from rlinf.models.flow import (
    Chain,
    ChainScore,
    ExploreNoiseNet,
    FlowSampler,
    draw_noise,
    draw_time,
    interpolate,
    matching_loss,
)
from rlinf.models.flow.conditioning import GOOD, classifier_free, training_labels
from rlinf.models.flow.field import Field
from rlinf.models.flow.noise import noise_net
from rlinf.models.heads import ValueHead
from rlinf.models.lora import apply_lora
from rlinf.models.normalization import Normalizer, Scheme
from rlinf.models.observations.cameras import CAMERAS
from rlinf.models.observations.images import fit_images, standardize
from rlinf.models.observations.prompts import expect_room
from rlinf.models.observations.reading import read_states
from rlinf.models.pi0 import _checkpoint as checkpoint
from rlinf.models.pi0._network import PiNetwork, Prefix
from rlinf.models.pi0.architecture import PiArchitecture, check_sizes
from rlinf.models.pi0.policy import PiConfig
from rlinf.models.pi0.prompt import encode, padded, state_prompt, task_prompt, texts, told_tasks
from rlinf.models.pi0.statistics import expect_size, read_statistics
from rlinf.models.precision import cast_weights
from rlinf.models.seeding import seeded_weights

Velocity = Callable[[Tensor, Tensor, Tensor, Prefix], tuple[Tensor, Tensor]]


class PiPolicy(BasePolicy):
    """π0 or π0.5. Use `PI0PolicyConfig.build` or `PI05PolicyConfig.build`.

    Observations: `main_images` `[B, H, W, 3]`, `wrist_images` and `extra_view_images` `[B, H, W, 3]` or `[B, V, H, W, 3]` where
    there are such cameras, `states` `[B, D]`, `task_descriptions` `[B]`; and `image_masks` `[B, V]` bool over all cameras, if some
    rows lack some of them.
    """

    def __init__(
        self,
        config: PiConfig,
        network: PiNetwork,
        tokenizer: Any,
        *,
        states: Normalizer,
        actions: Normalizer,
        value_head: ValueHead | None,
        noise_net: ExploreNoiseNet | None,
        prompt_states: int = 0,
    ) -> None:
        super().__init__()
        self._prompt_states = prompt_states
        self.config = config
        self.network = network
        self.tokenizer = tokenizer
        self.states, self.actions = states, actions
        self.value_head, self.noise_net = value_head, noise_net
        self.noise_shape: tuple[int, int] = (network.of.horizon, network.of.max_action_dim)
        self.prefix_width = network.of.language.width
        self.sampler = FlowSampler(
            sampling=config.sampling,
            noise_shape=self.noise_shape,
            executed=(config.num_action_chunks, len(actions.first)),
            granularity=config.logprob_type,
            spread=noise_net,
            level=config.sampling.level(0),
        )
        self._compiled: Velocity | None = None

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """See `BasePolicy`; the prefix is read once, whatever the number of denoising steps."""
        context = self.context(env_obs)
        prefix, state = self.read(context)
        chain = self.sampler.sample(self._field(state, prefix, context), state, train=mode == "train", generator=generator)
        return self._decision(context, chain, prefix)

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """See `BasePolicy`; one pass of the vision-language model, and of the expert one, or K if all steps are scored."""
        context = flat_context(batch, self._device)
        prefix, state = self.read(context)
        score = self.sampler.score(self._field(state, prefix, context), context)
        return self.sampler.rescored(score, self._value(score, prefix), batch.trajectory.reward.shape)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        self.actions.fit(action)
        self.states.fit(states)

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """Flow matching at times near the noise: see `rlinf.models.flow.matching`, where the equations are.

        Padded dimensions count, as in openpi; steps beyond those given don't.

        Args:
            env_obs: observations.
            action: `[B, K, A]` with any K; what lies beyond the horizon is ignored.
            mask: `[B, K]` bool, False for steps after the end of the episode.
            generator: the source of time and noise.
        """
        given = torch.as_tensor(action, device=self._device)[:, : self.noise_shape[0]]
        counts = torch.ones(given.shape[:2], dtype=torch.bool, device=self._device)
        if mask is not None:
            counts = torch.as_tensor(mask, device=self._device)[:, : given.shape[1]]
        condition = self.config.condition
        labels = None if condition is None else training_labels(condition, env_obs, given, generator)
        context = self.context(env_obs, labels)
        prefix, state = self.read(context)
        target = self._padded(given)
        counts = nn.functional.pad(counts, (0, target.shape[1] - counts.shape[1]))
        noise = draw_noise(target.shape, target, generator)
        time = draw_time(len(target), target, generator)
        x, wanted = interpolate(target, noise, time)
        velocity, _ = self._field(state, prefix, context)(x, time)
        return matching_loss(velocity, wanted, counts)

    def flow_regression(self, context: Tree[Any]) -> FlowRegression:
        tree = {key: leaf.to(self._device) for key, leaf in cast("Mapping[str, Tensor]", context).items()}
        prefix, state = self.read(tree)
        return self.sampler.regress(self._field(state, prefix, tree), tree)

    @torch.no_grad()
    def steer(self, env_obs: Tree[Any], noise: Any) -> Tensor:
        context = self.context(env_obs)
        prefix, state = self.read(context)
        start = torch.as_tensor(noise, device=self._device, dtype=torch.float32)
        if start.shape[1:] != self.noise_shape:
            raise ShapeError(
                "steer(noise)", f"expected [B, {self.noise_shape[0]}, {self.noise_shape[1]}], found {tuple(start.shape)}"
            )
        return self._executed(self.sampler.follow(self._field(state, prefix, context), start).action)

    @torch.no_grad()
    def propose(self, env_obs: Tree[Any]) -> Proposal:
        """From the middle of the initial noise; see `rlinf.core.off_policy.HasPrefixFeatures`."""
        context = self.context(env_obs)
        prefix, state = self.read(context)
        start = state.new_zeros(len(state), *self.noise_shape)
        action = self._executed(self.sampler.follow(self._field(state, prefix, context), start).action)
        return Proposal(action=action, features=prefix.hidden, valid=prefix.valid)

    @torch.no_grad()
    def continue_chunk(
        self, env_obs: Tree[Any], previous: Any, *, delay: int, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """A chunk that agrees with the previous one: guided by it, deterministic but for the initial noise, that of mode "eval".

        Args:
            env_obs: observations.
            previous: `[B, n, A]`, what the chunk in execution still holds, its first step the next to be executed; n ≤ H.
            delay: steps of it that will have been executed when the new chunk is there.
            generator: the source of the initial noise, where `eval_noise` draws any.
        """
        context = self.context(env_obs)
        prefix, state = self.read(context)
        rest = torch.as_tensor(previous, device=self._device)[:, : self.noise_shape[0]]
        field = self._field(state, prefix, context)
        chain = self.sampler.go_on(field, self._padded(rest), known=rest.shape[1], delay=delay, generator=generator)
        return self._decision(context, chain, prefix)

    def set_global_step(self, step: int) -> None:
        """Sets η by the schedule of `sampling.noise_anneal`."""
        self.sampler.level = self.config.sampling.level(step)

    def enable_torch_compile(self, mode: str = "default") -> None:
        """Compiles the expert's denoising step; see `rlinf.core.protocols.CompiledPolicy`."""
        self._compiled = cast("Velocity", torch.compile(self.network.velocity, mode=mode, dynamic=False))

    @property
    def _device(self) -> torch.device:
        return self.actions.first.device

    def context(self, env_obs: Tree[Any], labels: Tensor | None = None) -> dict[str, Tensor]:
        """What decides, in the smallest form: images in the model's size, states as they came, tokens.

        Args:
            env_obs: observations.
            labels: `[B]`, what a policy with a `condition` is told of each row (`rlinf.models.flow.conditioning`). None: that what
                it does is good; with guidance there are also `untold_tokens`, of the prompt that does not say so.
        """
        needed = {CAMERAS[0], "states", "task_descriptions"}
        tree = cast("Mapping[str, Any]", env_obs if isinstance(env_obs, Mapping) else {})
        if not needed <= set(tree):
            found = sorted(tree) if isinstance(env_obs, Mapping) else type(env_obs).__name__
            raise ShapeError(f"{self.config.kind}(env_obs)", f"expected {sorted(needed)}, found {found}")
        size = self.network.of.vision.image
        views = [fit_images(tree[key], size, fit="pad") for key in CAMERAS if key in tree]
        images = torch.cat([view[:, None] if view.dim() == 4 else view for view in views], 1).to(self._device)
        states = read_states(tree, len(self.states.first), self.config.kind, self.states.first)
        seen = torch.ones(images.shape[:2], dtype=torch.bool, device=self._device)
        if "image_masks" in tree:
            seen &= torch.as_tensor(tree["image_masks"], device=self._device)
        tasks, condition = texts(tree["task_descriptions"]), self.config.condition
        said: list[int] = [GOOD] * len(tasks) if labels is None else cast("Any", labels).tolist()
        tokens, valid = self._tokens(tasks if condition is None else told_tasks(tasks, said), states)
        found = {"images": images, "image_masks": seen, "states": states, "tokens": tokens, "token_masks": valid}
        if condition is not None and condition.guided and labels is None:
            found["untold_tokens"], found["untold_token_masks"] = self._tokens(tasks, states)
        return found

    def _tokens(self, tasks: Sequence[str], states: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask of the prompts, `[B, L]`."""
        if self.config.kind == "pi0":
            prompts = [task_prompt(task) for task in tasks]
        else:
            normed = as_numpy(self.states.normalize(states))
            # After normalisation, so that what is padded is in the middle of its range.
            missing = max(0, self._prompt_states - normed.shape[1])
            told = np.pad(normed, ((0, 0), (0, missing)))
            prompts = [state_prompt(task, row) for task, row in zip(tasks, told, strict=True)]
        # Many rows share a task: each text is tokenized once.
        unique, index = np.unique(np.array(prompts), return_inverse=True)
        rows, limit = encode(unique.tolist(), self.tokenizer), self.network.of.max_token_length
        # Without line breaks, for a message that is one line.
        lengths = {" ".join(prompt.split()): len(row) for prompt, row in zip(unique.tolist(), rows, strict=True)}
        expect_room(lengths, limit, "max_token_length")
        ids, valid = padded(rows, limit)
        return torch.as_tensor(ids[index], device=self._device), torch.as_tensor(valid[index], device=self._device)

    def read(self, context: Mapping[str, Tensor]) -> tuple[Prefix, Tensor]:
        """The prefix, once for all denoising steps, and the padded state."""
        prefix = self._prefix(context, "token")
        states = self.states.normalize(context["states"])
        missing = max(0, self.network.of.max_state_dim - states.shape[1])
        return prefix, nn.functional.pad(states, (0, missing))

    def _prefix(self, context: Mapping[str, Tensor], prompt: str) -> Prefix:
        pixels = standardize(context["images"])
        return self.network.prefix(pixels, context["image_masks"], context[f"{prompt}s"], context[f"{prompt}_masks"])

    def _decision(self, context: dict[str, Tensor], chain: Chain, prefix: Prefix) -> Decision[Tensor]:
        return Decision(
            action=self._executed(chain.action),
            logprob=self.sampler.of_decision(chain.score.logprob),
            value=self._value(chain.score, prefix),
            context=context | chain.recorded,
            version=self.version,
        )

    def _field(self, state: Tensor, prefix: Prefix, context: Mapping[str, Tensor]) -> Field:
        velocity = self._compiled or self.network.velocity

        def given(prefix: Prefix) -> Field:
            return lambda x, time: velocity(x, time, state, prefix)

        condition = self.config.condition
        if condition is None or "untold_tokens" not in context:
            return given(prefix)
        return classifier_free(given(prefix), given(self._prefix(context, "untold_token")), condition.guidance_scale)

    def _padded(self, action: Tensor) -> Tensor:
        """Actions of the environment in the units and the shape of the model, `[B, H, D]`; the last step is repeated."""
        normed = self.actions.normalize(action.float())
        horizon, size = self.noise_shape
        steps = torch.arange(horizon, device=normed.device).clamp(max=normed.shape[1] - 1)
        return nn.functional.pad(normed[:, steps], (0, size - normed.shape[2]))

    def _executed(self, x: Tensor) -> Tensor:
        """`[B, K, A]` in the units of the environment, of `[B, H, D]`."""
        return self.actions.unnormalize(x[:, : self.config.num_action_chunks, : len(self.actions.first)])

    def _value(self, score: ChainScore, prefix: Prefix) -> Tensor | None:
        if self.value_head is None:
            return None
        seen = prefix.mean() if self.config.value_after_vlm else score.hidden.mean(1)
        return self.value_head(seen.detach() if self.config.detach_critic_input else seen)


_SCHEMES: Mapping[str, Scheme] = {"pi0": "mean_std", "pi05": "quantile"}


def build_policy(config: PiConfig, spec: EnvSpec, *, seed: int) -> PiPolicy:
    folder = folder_of(config.model_path)
    of = config.architecture()
    states, actions = check_sizes(spec, of, config.kind, config.num_action_chunks)
    tokenizer = checkpoint.tokenizer_of(folder, of)
    statistics = {} if folder is None else read_statistics(folder, config.asset_id)
    for name, size, largest in (("states", states, of.max_state_dim), ("actions", actions, of.max_action_dim)):
        if name in statistics:
            expect_size(name, statistics[name], size, largest, "model_path", str(folder))
    with seeded_weights(seed):
        # load_network refuses a folder that lacks a tensor, so drawing billions of weights first would be for nothing.
        with nullcontext() if folder is None else no_init_weights():
            network = PiNetwork(config.kind, of)
        policy = PiPolicy(
            config,
            network,
            tokenizer,
            states=_normalizer(config, states, statistics.get("states"), spec.observation["states"]),
            actions=_normalizer(config, actions, statistics.get("actions"), spec.action),
            value_head=_value_head(config, of),
            noise_net=noise_net(config.sampling, of.expert.width, of.max_action_dim),
            prompt_states=config.prompt_states(of),
        )
    if folder is not None:
        checkpoint.load_network(network, folder)
    if config.precision == "bf16":
        for part in network.transformers():
            cast_weights(part, torch.bfloat16)
    if config.lora is not None:
        apply_lora(network.core.model.vlm, config.lora, seed=seed)
    # After apply_lora, so that adapters of layers that no gradient reaches are frozen, too.
    critic_gradient = config.add_value_head and config.value_after_vlm and not config.detach_critic_input
    network.freeze(expert_only=config.train_expert_only, critic_gradient=critic_gradient)
    return policy


def _normalizer(config: PiConfig, size: int, statistics: Mapping[str, Any] | None, bounds: ArraySpec) -> Normalizer:
    normalizer = Normalizer(size, _SCHEMES[config.kind])
    if statistics is not None:
        # Published statistics may be padded to the model's size.
        normalizer.set_statistics({key: np.asarray(values)[:size] for key, values in statistics.items()})
    elif (found := finite_bounds(bounds)) is not None:
        low, high = found
        # The bounds become ±1 under either scheme.
        normalizer.set_statistics({"q01": low, "q99": high, "mean": 0.5 * (low + high), "std": 0.5 * (high - low)})
    return normalizer


def _value_head(config: PiConfig, of: PiArchitecture) -> ValueHead | None:
    width = of.language.width if config.value_after_vlm else of.expert.width
    return ValueHead(width, of.value_hidden_sizes, "relu") if config.add_value_head else None
