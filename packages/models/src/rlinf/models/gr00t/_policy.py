"""The policy GR00T-N1.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor, nn

from rlinf.core.capabilities import FlowRegression
from rlinf.core.data import ArraySpec, Batch, Decision, EnvSpec, LossOutput, Rescored
from rlinf.core.data.tree import Tree
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import finite_bounds, folder_of
from rlinf.models.base import BasePolicy, copy_tensors, flat_context
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.tensors import weight_files
from rlinf.models.flow import FlowSampler
from rlinf.models.flow.chain import Chain
from rlinf.models.flow.draws import draw, draw_noise
from rlinf.models.flow.field import Field
from rlinf.models.flow.matching import interpolate, matching_loss
from rlinf.models.flow.noise import noise_net
from rlinf.models.gr00t._backbone import EagleBackbone, initialise
from rlinf.models.gr00t.head import ActionHead, Conditioning
from rlinf.models.gr00t.metadata import ranges, read_metadata
from rlinf.models.gr00t.observation import STATES, Reader
from rlinf.models.gr00t.policy import EMBODIMENTS, GR00TPolicyConfig
from rlinf.models.gr00t.prompt import EAGLE, PADDING, Prompter, tokenizer_of
from rlinf.models.gr00t.shapes import BASE, TINY, GR00TShape, shape_of
from rlinf.models.gr00t.weight_map import from_public
from rlinf.models.heads import ValueHead
from rlinf.models.lora import apply_lora
from rlinf.models.normalization import Normalizer
from rlinf.models.observations.images import standardize
from rlinf.models.precision import cast_weights
from rlinf.models.seeding import seeded_weights

# `noise_s` of the public code.
_TIME_SCALE = 0.999
Velocity = Callable[[Tensor, Tensor, Conditioning, int], tuple[Tensor, Tensor]]


class GR00TPolicy(BasePolicy):
    """Images, a task and a state become a chunk of actions.

        images, prompt ─▶ backbone ─▶ head.condition ─┬▶ K times head.velocity ─▶ chunk
                             state ───────────────────┘└▶ value_head

    GR00T's flow runs from noise at t = 0 to actions at t = 1; here τ = 1 − t and v = −dx/dt, so that all sampling and scoring is
    that of `rlinf.models.flow`. A decision costs one pass of the backbone, for sampling and for scoring alike.

    NVIDIA, "GR00T N1: An Open Foundation Model for Generalist Humanoid Robots" (2025), arXiv:2503.14734.

    Args:
        config: the hyper-parameters.
        shape: the sizes.
        reader: reads observations.
        prompter: writes prompts.
        action_size: A.
    """

    def __init__(
        self, config: GR00TPolicyConfig, shape: GR00TShape, reader: Reader, prompter: Prompter, *, action_size: int
    ) -> None:
        super().__init__()
        self.config, self.shape, self.reader, self.prompter = config, shape, reader, prompter
        self.action_size = action_size
        # The tiny shape has fewer robots than there are tags.
        self.embodiment = EMBODIMENTS[config.embodiment_tag] % shape.head.embodiments
        self.noise_shape = (shape.head.horizon, shape.head.action_size)
        self._compiled: Velocity | None = None
        self.backbone = EagleBackbone(shape)
        self.head = ActionHead(shape.head, shape.language.width)
        self.state_norm = Normalizer(reader.state_size, "min_max", constant=0.0)
        self.action_norm = Normalizer(action_size, "min_max", constant=0.0)
        width, hidden = shape.language.width + shape.head.width, config.value_hidden
        hidden = shape.value_hidden if hidden is None else hidden
        self.value_head = ValueHead(width, hidden, "relu") if config.add_value_head else None
        self.noise_net = noise_net(config.sampling, shape.head.hidden, shape.head.action_size)
        self.sampler = FlowSampler(
            sampling=config.sampling,
            noise_shape=self.noise_shape,
            executed=(config.num_action_chunks, action_size),
            granularity=config.logprob_type,
            spread=self.noise_net,
            level=config.sampling.level(0),
        )

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for observations; see `BasePolicy`. Mode "eval" follows the flow from the centre of the noise."""
        context = self._context(env_obs)
        given = self._condition(context)
        chain = self.sampler.sample(self._field(given), context["states"], train=mode == "train", generator=generator)
        return self._decision(context, given, chain)

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """Log-probability, entropy and value of each decision, `[B, T, …]`.

        The head is asked for one step of each chain, or for all K with `joint_logprob`.
        """
        context = flat_context(batch, self.head.position.device)
        given = self._condition(context)
        score = self.sampler.score(self._field(given), context)
        return self.sampler.rescored(score, self._value(given), batch.trajectory.mask.shape)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        self.action_norm.fit(action)
        if self.reader.state_size:
            self.state_norm.fit(states)

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """Flow matching on demonstrated actions `[B, K, A]`, K at most H; see `rlinf.core.capabilities.HasSFTLoss`.

        The mean square error of the velocity over the robot's own dimensions; steps beyond K, and masked ones, count nowhere.
        """
        context = self._context(env_obs)
        target = self._to_model(action)
        prediction, wanted = self._regress(self._condition(context), target, generator)
        steps = torch.as_tensor(action).shape[1]
        known = torch.ones(len(target), steps, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
        size = self.action_size
        return matching_loss(prediction[:, :steps, :size], wanted[:, :steps, :size], known.to(target.device))

    def flow_regression(self, context: Tree[Any]) -> FlowRegression:
        leaves = cast("dict[str, Any]", context)
        return self.sampler.regress(self._field(self._condition(leaves)), leaves)

    @torch.no_grad()
    def steer(self, env_obs: Tree[Any], noise: Any) -> Tensor:
        given = self._condition(self._context(env_obs))
        start = torch.as_tensor(noise, device=given.state.device)
        return self._to_env(self.sampler.follow(self._field(given), start).action)

    def continue_chunk(
        self, env_obs: Tree[Any], previous: Any, *, delay: int, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        context = self._context(env_obs)
        with torch.no_grad():
            given = self._condition(context)
        known = min(previous.shape[1], self.noise_shape[0])
        chain = self.sampler.go_on(self._field(given), self._to_model(previous), known=known, delay=delay, generator=generator)
        return self._decision(context, given, chain)

    def set_global_step(self, step: int) -> None:
        self.sampler.level = self.config.sampling.level(step)

    def enable_torch_compile(self, mode: str = "default") -> None:
        """Compiles the head's denoising step; see `rlinf.core.protocols.CompiledPolicy`."""
        self._compiled = cast("Velocity", torch.compile(self.head.velocity, mode=mode, dynamic=False))

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        """What the networks see of observations, as small as it can be kept."""
        device = self.head.position.device
        images = self.reader.images(env_obs)
        tasks = self.reader.tasks(env_obs, self.config.default_task)
        found = {"states": self.reader.state(env_obs), "prompt": self.prompter(tasks)}
        found |= {} if images is None else {"images": images}
        return {key: leaf.to(device) for key, leaf in found.items()}

    def _condition(self, context: dict[str, Tensor]) -> Conditioning:
        """The backbone, and what of the head depends on no time: once for a decision."""
        ids, images = context["prompt"].long(), context.get("images")
        pixels = None if images is None else standardize(images)
        tokens = self.backbone(ids, self.prompter.placeholder, pixels)
        state = self.state_norm.normalize(context["states"])
        padded = nn.functional.pad(state, (0, self.shape.head.state_size - state.shape[1]))
        return self.head.condition(tokens, ids != PADDING, padded, self.embodiment)

    @torch.no_grad()
    def _decision(self, context: dict[str, Tensor], given: Conditioning, chain: Chain) -> Decision[Tensor]:
        return Decision(
            action=self._to_env(chain.action),
            logprob=self.sampler.of_decision(chain.score.logprob),
            value=self._value(given),
            context=cast("Tree[Tensor]", context | chain.recorded),
            version=self.version,
        )

    def _field(self, given: Conditioning) -> Field:
        """GR00T's flow in the time of `rlinf.models.flow`: v(x, τ) = −dx/dt at t = 1 − τ."""

        def field(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
            # In float64, so that 1 − τ is not rounded once more before its bucket is taken.
            velocity, hidden = (self._compiled or self.head.velocity)(x, 1.0 - time.double(), given, self.embodiment)
            return -velocity.float(), hidden.float()

        return field

    def _value(self, given: Conditioning) -> Tensor | None:
        """`[B]`, of the mean token of images and text, and the state's token."""
        if self.value_head is None:
            return None
        weight = given.mask[..., None].to(given.context.dtype)
        mean = (given.context * weight).sum(1) / weight.sum(1)
        features = torch.cat([mean, given.state[:, 0]], -1)
        return self.value_head(features.detach() if self.config.detach_critic_input else features)

    def _regress(self, given: Conditioning, action: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Velocities, predicted and wanted `[B, H, D]`, at t = (0.999 − β) / 0.999, β ~ Beta(1.5, 1): τ = β / 0.999, at most 1."""
        uniform = draw((len(action),), torch.rand, action, generator)
        time = (uniform.pow(2.0 / 3.0) / _TIME_SCALE).clamp(max=1.0)
        state, target = interpolate(action, draw_noise(action.shape, action, generator), time)
        return self._field(given)(state, time)[0], target

    def _to_model(self, action: Any) -> Tensor:
        """Actions `[B, K, A]` of the environment as `[B, H, D]`, zeros where there are none."""
        found = torch.as_tensor(action, dtype=torch.float32, device=self.head.position.device)
        scaled = self.action_norm.normalize(found)[:, : self.noise_shape[0]]
        missing = (self.noise_shape[0] - scaled.shape[1], self.noise_shape[1] - scaled.shape[2])
        return nn.functional.pad(scaled, (0, missing[1], 0, missing[0]))

    def _to_env(self, action: Tensor) -> Tensor:
        """`[B, K, A]` of `[B, H, D]`."""
        return self.action_norm.unnormalize(action[:, : self.config.num_action_chunks, : self.action_size])


_FRESH = ("value_head.", "noise_net.", "state_norm.", "action_norm.")


def build(config: GR00TPolicyConfig, spec: EnvSpec, *, seed: int) -> GR00TPolicy:
    folder = folder_of(config.model_path)
    shape = _shape(config.preset, folder)
    reader = Reader.of(spec, image_size=shape.vision.image_size, crop=shape.crop)
    _check(config, spec, shape, reader)
    tokenizer = tokenizer_of(config.preset, config.model_path, config.tokenizer_path)
    prompter = Prompter(tokenizer, shape, views=reader.views, room=config.max_prompt_tokens)
    with seeded_weights(seed):
        policy = GR00TPolicy(config, shape, reader, prompter, action_size=spec.action.shape[0])
        # Before `_load`, which overwrites all of it where there is a folder.
        initialise(policy.backbone)
    if folder is not None:
        _load(policy, folder)
    _statistics(policy, spec, folder)
    return _prepared(policy, seed=seed)


def _prepared(policy: GR00TPolicy, *, seed: int) -> GR00TPolicy:
    """The policy in its precision, with only those weights trained that should be."""
    config = policy.config
    if config.precision == "bf16":
        cast_weights(policy.backbone, torch.bfloat16)
        cast_weights(policy.head, torch.bfloat16)
    if config.train_expert_only:
        policy.backbone.requires_grad_(False)
    if config.lora is not None:
        # After freezing, so that the adapters of a frozen backbone are trained.
        apply_lora(policy.backbone, config.lora, seed=seed)
    if not policy.reader.cameras:
        # Never called without images: no gradient would reach them, nor their adapters.
        policy.backbone.vision.requires_grad_(False)
        policy.backbone.connector.requires_grad_(False)
    return policy.eval()


def _shape(preset: str | None, folder: Path | None) -> GR00TShape:
    if folder is None:
        return TINY if preset == "tiny" else BASE
    eagle = folder / EAGLE / "config.json"
    return shape_of(_read(folder / "config.json"), _read(eagle) if eagle.is_file() else None)


def _check(config: GR00TPolicyConfig, spec: EnvSpec, shape: GR00TShape, reader: Reader) -> None:
    if len(spec.action.shape) != 1:
        raise ConfigError("gr00t", f"expected an action [A], found {spec.action.shape}")
    sizes = (
        ("num_action_chunks", config.num_action_chunks, shape.head.horizon),
        ("gr00t.action", spec.action.shape[0], shape.head.action_size),
        ("gr00t.states", reader.state_size, shape.head.state_size),
    )
    for place, found, most in sizes:
        if found > most:
            raise ConfigError(place, f"expected at most {most}, found {found}", "The model has no room for more.")


def _load(policy: GR00TPolicy, folder: Path) -> None:
    """Copies the public weights; those that the public checkpoint can't have keep their fresh values.

    Raises:
        CheckpointError: one is missing, or has another shape; nothing was changed.
    """
    files = weight_files(folder)
    if not files:
        raise CheckpointError(str(folder), "expected *.safetensors, found none")
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    tensors = from_public(found, layers=policy.shape.language.layers)
    own = {name: tensor for name, tensor in policy.state_dict().items() if not name.startswith(_FRESH)}
    copy_tensors(own, tensors, lambda name, problem: CheckpointError(f"{folder.name}({name})", problem, "Is it GR00T-N1.5?"))


def _statistics(policy: GR00TPolicy, spec: EnvSpec, folder: Path | None) -> None:
    """From the checkpoint's metadata if it has the robot, else from the environment's bounds."""
    config = policy.config
    metadata: dict[str, Any] = {} if folder is None else read_metadata(folder)
    parts = (
        (policy.state_norm, "state", config.state_keys, spec.observation.get(STATES)),
        (policy.action_norm, "action", config.action_keys, spec.action),
    )
    for normalizer, kind, keys, array in parts:
        if config.embodiment_tag in metadata:
            normalizer.set_statistics(_from_metadata(metadata, config.embodiment_tag, kind, keys))
        elif array is not None and (bounds := _from_bounds(array)) is not None:
            normalizer.set_statistics(bounds)


def _from_metadata(metadata: Mapping[str, Any], embodiment_tag: str, kind: str, keys: Sequence[str] = ()) -> dict[str, Tensor]:
    """The least and the greatest of all parts of a robot, one after the other; see `ranges`."""
    low, high = (torch.tensor(bound, dtype=torch.float32) for bound in ranges(metadata, embodiment_tag, kind, keys))
    return _widened(low, high)


def _from_bounds(spec: ArraySpec) -> dict[str, Tensor] | None:
    """The bounds of an environment as statistics; None if they are not finite."""
    bounds = finite_bounds(spec)
    return None if bounds is None else _widened(*map(torch.as_tensor, bounds))


def _widened(low: Tensor, high: Tensor) -> dict[str, Tensor]:
    """Bounds; a number that never varied gets some, so that it is normalised to 0."""
    constant = (low == high).float()
    return {"min": low - constant, "max": high + constant}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(str(path), "expected a file, found none", "Set model_path to the folder of a checkpoint.")
    return read_json(path)
