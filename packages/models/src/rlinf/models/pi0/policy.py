"""The configurations of π0 and π0.5; light to import, the networks are in `_network`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, acting, check_vla, expect_sizes, expect_source, folder_of
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.flow.advantage_condition import AdvantageCondition
from rlinf.models.flow.sampling import FlowSampling
from rlinf.models.importing import import_transformers
from rlinf.models.lora import LoRAConfig
from rlinf.models.pi0.architecture import Kind, PiArchitecture, base, expect_kind, tiny
from rlinf.models.pi0.statistics import checked_asset, checked_statistics, expect_size

if TYPE_CHECKING:
    from rlinf.models.pi0._policy import PiPolicy


@dataclass(frozen=True, kw_only=True)
class PiConfig:
    """What both models share."""

    kind: ClassVar[Kind]
    prefix_features: ClassVar[bool] = True

    preset: Literal["tiny", "base"] | None = None
    """`tiny`: random weights, four image patches, two layers. `base`: the published sizes, random weights."""
    model_path: str | None = None
    """A local folder: `config.json` and `*.safetensors` of LeRobot, openpi, transformers or ourselves, and a tokenizer."""
    asset_id: str | None = None
    """Whose statistics of a folder of openpi normalise states and actions, `assets/<asset_id>`; may be None if there is one."""
    num_action_chunks: int = 4
    """K, the steps of a chunk that are executed."""
    horizon: int | None = None
    """H, the steps of a chunk that are predicted, at least K; None: the model's own (tiny: 4, base: 50)."""
    image_size: int | None = None
    """Pixels that the model sees, each way; None: its own (tiny: 32, base: 224)."""
    max_state_dim: int | None = None
    """States are padded with zeros to this size; None: the model's own (tiny: 8, base: 32)."""
    max_action_dim: int | None = None
    """D, to which actions are padded; None: the model's own (tiny: 8, base: 32)."""
    max_token_length: int | None = None
    """Tokens of a prompt, padding included; None: the model's own."""
    sampling: FlowSampling = field(default_factory=FlowSampling)
    """Denoising steps, and where exploration comes from."""
    logprob_type: Granularity = "chunk_level"
    """What has one log-probability, and so one ratio: "chunk_level", the whole decision; "action_level", each control step;
    "token_level", each dimension of it."""
    condition: AdvantageCondition | None = None
    """Lets it learn from labels which actions were good, and act as those; None: it learns all that it is shown. Words behind the
    task tell it, so that it has no other weights."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the two transformers and the vision tower; projections of actions, heads and the flow stay in float32."""
    add_value_head: bool = True
    """Whether there is a critic V(s): GAE needs one, GRPO and its kin do not."""
    value_after_vlm: bool = False
    """The critic sees the mean over the prompt's and images' tokens; else the mean over the expert's, at the scored step."""
    value_hidden_sizes: tuple[int, ...] | None = None
    """Units of the critic's hidden layers; None: the model's own."""
    detach_critic_input: bool = True
    """Whether the critic's gradient ends at the critic."""
    train_expert_only: bool = False
    """Freezes the vision-language model."""
    lora: LoRAConfig | None = None
    """Adapters in the vision-language model, whose own weights are then frozen."""

    def __post_init__(self) -> None:
        expect_source(self.preset, self.model_path)
        horizon = self.horizon or (None if self._preset is None else self._preset.horizon)
        if self.num_action_chunks < 1 or (horizon is not None and horizon < self.num_action_chunks):
            found = f"expected 1 ≤ num_action_chunks ≤ horizon, found {self.num_action_chunks} and {horizon}"
            raise ConfigError("num_action_chunks", found, "Lower it, or raise horizon.")
        for name in ("image_size", "max_state_dim", "max_action_dim", "max_token_length"):
            expect_at_least(name, getattr(self, name), 1)
        expect_sizes("value_hidden_sizes", self.value_hidden_sizes or ())
        if self.lora is not None and self.train_expert_only:
            raise ConfigError("lora", "adapts the vision-language model, which train_expert_only freezes", "Drop one of the two.")

    @property
    def traits(self) -> PolicyTraits:
        return acting(
            critic=self.add_value_head,
            observations=("main_images", "states", "task_descriptions"),
            optional_observations=("wrist_images", "extra_view_images"),
            chunk=self.num_action_chunks,
            largest_action=self.max_action_dim or (None if self._preset is None else self._preset.max_action_dim),
            largest_action_key="max_action_dim",
            sampling=self.sampling,
            compiled=True,
        )

    @property
    def conditioned(self) -> bool:
        return self.condition is not None

    @property
    def _preset(self) -> PiArchitecture | None:
        """The sizes of the preset; None where a folder has them."""
        return None if self.preset is None else {"tiny": tiny, "base": base}[self.preset](self.kind)

    def architecture(self) -> PiArchitecture:
        """The sizes of the preset, or of the folder, with what is changed here."""
        of = self._preset
        if of is None:
            from rlinf.models.pi0._checkpoint import read_architecture

            of = read_architecture(Path(str(self.model_path)).expanduser(), self.kind)
        names = ("horizon", "max_state_dim", "max_action_dim", "max_token_length", "value_hidden_sizes")
        changed: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        image = of.vision.image if self.image_size is None else self.image_size
        if image % of.vision.patch:
            raise ConfigError("image_size", f"expected a multiple of the patch, {of.vision.patch}, found {image}")
        return replace(of, vision=replace(of.vision, image=image), **changed)

    def prompt_states(self, of: PiArchitecture) -> int:
        """To how many numbers the state in the prompt is padded; 0 if it has those of the environment, or none is there."""
        return 0

    def check(self, place: str) -> None:
        """As `check_vla`; and refuses a folder of another model, and statistics that are not in it."""
        check_vla(self.model_path, place, asset_id=self.asset_id)
        folder = folder_of(self.model_path)
        if folder is not None:
            path = folder / "config.json"
            expect_kind(read_json(path), self.kind, str(path))
            checked_asset(folder, self.asset_id, place)

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        """Refuses prompts that are longer than `max_token_length`; see `rlinf.core.declarations.ChecksTasks`.

        The state in the prompt of π0.5 counts as the one that takes the most tokens; what it takes is not counted before `spec`.
        """
        if not texts:
            return
        # After the refusals that need no tokenizer.
        from rlinf.models.flow.conditioning import BAD, GOOD, UNCONDITIONAL
        from rlinf.models.observations.prompts import expect_room
        from rlinf.models.pi0 import _checkpoint as checkpoint
        from rlinf.models.pi0.prompt import longest_prompts, told_tasks

        folder = folder_of(self.model_path)
        of = self.architecture()
        known = self.prompt_states(of)
        if spec is not None and STATES in spec.observation:
            # The state in a prompt is padded to `prompt_states` numbers, and never cut.
            known = max((known, *spec.observation[STATES].shape))
        beside = "" if known or self.kind == "pi0" else "the state"
        states = None if self.kind == "pi0" else known
        labels = (UNCONDITIONAL,) if self.condition is None else (GOOD, BAD)
        prompts = [task for label in labels for task in told_tasks(texts, [label] * len(texts))]
        lengths = longest_prompts(prompts, checkpoint.tokenizer_of(folder, of), states)
        expect_room(lengths, of.max_token_length, f"{place}.max_token_length", beside=beside)

    def check_statistics(self, place: str, actions: int | None = None) -> None:
        if self.model_path is not None:
            found = checked_statistics(self.kind, self.model_path, self.asset_id, place)
            if actions is not None:
                expect_size("actions", found, actions, self.architecture().max_action_dim, f"{place}.model_path", self.model_path)

    def build(self, spec: EnvSpec, *, seed: int) -> PiPolicy:
        """The policy; torch's global generator is neither read nor moved.

        Args:
            spec: needs `main_images` `[H, W, 3]`, `states` `[D]` and an action `[A]`; `wrist_images` and `extra_view_images` are
                further cameras. Bounds that are finite are the statistics of normalisation, unless `model_path` has some.
            seed: decides the weights that no checkpoint gives.

        Raises:
            ConfigError: the environment lacks something, or is larger than the model.
            CheckpointError: `model_path` is incomplete, or of another model.
            MissingExtra: transformers is not installed.
        """
        import_transformers("tokenizers", place=self.kind, extra="rlinf-models[vla]")
        from rlinf.models.pi0._policy import build_policy

        return build_policy(self, spec, seed=seed)


@dataclass(frozen=True, kw_only=True)
class PI0PolicyConfig(PiConfig):
    """π0, by name: `model_type: pi0`.

    Black et al., "π0: A Vision-Language-Action Flow Model for General Robot Control" (2024), arXiv:2410.24164.
    """

    kind: ClassVar[Kind] = "pi0"


@dataclass(frozen=True, kw_only=True)
class PI05PolicyConfig(PiConfig):
    """π0.5, by name: `model_type: pi05`.

    Physical Intelligence, "π0.5: a Vision-Language-Action Model with Open-World Generalization" (2025), arXiv:2504.16054.
    """

    kind: ClassVar[Kind] = "pi05"

    value_after_vlm: bool = True
    pad_prompt_state: bool | None = None
    """Whether the state in the prompt is padded with zeros to `max_state_dim`, as by LeRobot, or has the environment's size, as by
    openpi. None: as `model_path` was trained, if it is a folder of LeRobot padded; a preset is not."""

    def prompt_states(self, of: PiArchitecture) -> int:
        if self.pad_prompt_state is not None:
            return of.max_state_dim if self.pad_prompt_state else 0
        folder = folder_of(self.model_path)
        if folder is None:
            return 0
        from rlinf.models.pi0._checkpoint import of_lerobot

        return of.max_state_dim if of_lerobot(folder) else 0
