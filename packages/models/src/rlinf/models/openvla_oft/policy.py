"""The hyper-parameters of OpenVLA-OFT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.models.actor_config import acting, check_log_std, check_sampling, expect_source
from rlinf.models.importing import import_transformers
from rlinf.models.lora import LoRAConfig
from rlinf.models.openvla.folder import ReadsFolder

if TYPE_CHECKING:
    from rlinf.models.openvla_oft._policy import OpenVLAOFTPolicy

ActionHead = Literal["discrete", "l1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVLAOFTPolicyConfig(ReadsFolder):
    """OpenVLA that decodes a chunk of actions in one forward pass.

    Kim, Finn, Liang, "Fine-Tuning Vision-Language-Action Models: Optimizing Speed and Success" (2025), arXiv:2502.19645.
    """

    registered_as: ClassVar[str] = "openvla_oft"

    preset: Literal["tiny", "base"] | None = None
    """`tiny`: random weights, built in a second; `base`: random weights in the published sizes (7 billion)."""
    model_path: str | None = None
    """A local folder with a checkpoint; see `checkpoint`. Either this or `preset`."""
    action_head: ActionHead = "discrete"
    """`discrete`: each slot is one of the bins. `l1`: a regression on the hidden states, around which RL draws a Gaussian."""
    num_action_chunks: int = 8
    """K, steps of a chunk, all of which are executed."""
    num_images_in_input: int = 1
    """V, pictures a sample: main camera, then wrist, then further views."""
    use_proprio: bool = False
    """Whether `states` stand in the sequence as one token."""
    use_film: bool = False
    """Whether the instruction modulates the vision transformers; see `film`."""
    center_crop: bool = False
    """Whether only the central 90 % of a picture's area is seen, as models need that were trained on random crops."""
    temperature: float = 1.0
    """T of the discrete head, in sampling and in scoring."""
    top_k: int = 0
    """Only the k most likely bins are drawn; 0 for all. A token that has left them since has a ratio of 0."""
    n_action_bins: int | None = None
    """n; what `config.json` says, or 256, if None."""
    logstd_init: float = -1.5
    """The log of the standard deviation of the l1 head, in units of normalised actions, before it is learned."""
    unnorm_key: str | None = None
    """Whose statistics of a checkpoint are used; may be None if there is one data set only."""
    normalization: Literal["quantile", "min_max"] = "quantile"
    """Which of the statistics map to ±1: q01 and q99 (LIBERO), or the least and the greatest (ALOHA)."""
    max_prompt_length: int = 64
    """Tokens of a prompt at most. Prompts are padded to this length in storage; no computation is spent on it."""
    logprob_type: Granularity = "action_level"
    """What has one log-probability, and so one ratio: "action_level", each control step; "token_level", each dimension of it;
    "chunk_level", the whole decision."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the vision-language model; heads and probabilities are float32."""
    add_value_head: bool = True
    """V(s) from the hidden state that answers slot 0: one value for the chunk."""
    lora: LoRAConfig | None = None
    """Adapters in the vision-language model, frozen beneath them; heads, proprioception and FiLM are trained as a whole."""

    def __post_init__(self) -> None:
        expect_source(self.preset, self.model_path)
        for name in ("num_action_chunks", "num_images_in_input"):
            expect_at_least(name, getattr(self, name), 1)
        check_sampling(self.temperature, 0.0, self.top_k)
        expect_at_least("n_action_bins", self.n_action_bins, 2)
        expect_at_least("max_prompt_length", self.max_prompt_length, 1)
        check_log_std(self.logstd_init)

    @property
    def traits(self) -> PolicyTraits:
        seen = ("main_images", "task_descriptions", *(("states",) if self.use_proprio else ()))
        return acting(critic=self.add_value_head, observations=seen, chunk=self.num_action_chunks)

    def build(self, spec: EnvSpec, *, seed: int) -> OpenVLAOFTPolicy:
        """The policy for an environment.

        Args:
            spec: the environment; its action bounds are the statistics where a checkpoint has none.
            seed: decides all weights that no checkpoint gives.
        """
        import_transformers("tokenizers", place="openvla_oft", extra="rlinf-models[vla]")
        from rlinf.models.openvla_oft._policy import build

        return build(self, spec, seed=seed)
