"""`LanguageModel`: the view that reinforcement learning has of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import Batch, Decision, LossOutput, Rescored, Weights
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.protocols import Mode
from rlinf.models.base import BasePolicy
from rlinf.models.heads import ValueHead
from rlinf.models.language.network import as_network
from rlinf.models.language.scoring import Scored, score_tokens
from rlinf.models.language.tokens import INPUT_IDS, SEEN_UNTIL, SEGMENT_IDS, last_columns, restarting_positions, seen_by
from rlinf.models.lora import without_adapters
from rlinf.models.precision import at_least_float32

Context = dict[str, Tensor]


class Inputs(Protocol):
    """Makes what a network takes from the context of tokens."""

    def __call__(self, network: nn.Module, context: Context) -> dict[str, Tensor]:
        """Arguments by name, among them `input_ids` `[B, T]` and `position_ids` `[*, B, T]`."""
        ...


def text_inputs(network: nn.Module, context: Context) -> dict[str, Tensor]:
    """The inputs of a model that reads text only; of a tree of branches with the mask that says who sees whom."""
    if SEEN_UNTIL in context:
        seen = seen_by(context[SEEN_UNTIL])
        weight = next(parameter for parameter in network.parameters() if parameter.is_floating_point())
        # Added to the scores of attention, which every kernel of transformers understands but the flash ones.
        mask = torch.zeros(seen.shape, dtype=weight.dtype, device=seen.device).masked_fill_(~seen, torch.finfo(weight.dtype).min)
        return {"input_ids": context[INPUT_IDS], "position_ids": seen.sum(-1) - 1, "attention_mask": mask[:, None]}
    return {"input_ids": context[INPUT_IDS], "position_ids": restarting_positions(context[SEGMENT_IDS])}


class LanguageModel(BasePolicy):
    """Scores tokens that were written, and says what they were worth, in one pass.

    A token is a decision: `context` has `input_ids` `[B, T]` and, where rows are padded or packed, `segment_ids` `[B, T]`;
    `action` `[B, T, 1, 1]` is the token that comes after each; `mask` says whether that one belongs to a response. Logits are
    computed where `mask` is True and nowhere else.

    As every policy it can be asked for one decision, the token that follows a text, and scores such decisions, whose context has
    a text of its own for each: `[B, T, L]`. Whoever wants whole texts uses a generator (`rlinf.engines`), which keeps what it has
    read.

    Args:
        network: a causal language model of transformers, without dropout.
        inputs: makes its inputs of a context.
        scale: what the architecture does to the logits of its output embedding.
        value_head: the critic, if there is one.
        temperature: that of sampling.
        chunk: tokens whose logits exist at the same time.
        joined: whether rows are joined to one before attention, which kernels for packed sequences want.
        sees_trees: whether attention can be told of each column whom it sees; see `rlinf.core.capabilities.SeesTrees`.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        inputs: Inputs = text_inputs,
        scale: Callable[[Tensor], Tensor],
        value_head: ValueHead | None = None,
        temperature: float = 1.0,
        chunk: int = 256,
        joined: bool = False,
        sees_trees: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.value_head = value_head
        self._inputs, self._scale = inputs, scale
        self.temperature, self.chunk, self.joined, self.sees_trees = temperature, chunk, joined, sees_trees

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """The token that follows each text, `[B, 1, 1]`; see `BasePolicy`.

        Args:
            env_obs: `input_ids` `[B, L]`, and `segment_ids` `[B, L]` where texts are padded: 1, and 0 for padding.
            mode: "train" draws at the model's temperature; "eval" takes the most likely token.
            generator: the source of randomness; numbers are drawn on its device.
        """
        # as_tensor may share the memory of the observation, which must not be kept.
        context = {name: leaf.clone() for name, leaf in self._context(env_obs).items()}
        hidden = self._last(context)
        logits = at_least_float32(self.logits(hidden)) / self.temperature
        token = logits.argmax(-1, keepdim=True)
        if mode == "train":
            # torch draws with a generator on that generator's device only.
            source = logits.device if generator is None else generator.device
            token = torch.multinomial(logits.softmax(-1).to(source), 1, generator=generator).to(logits.device)
        logprob, _, _ = score_tokens(hidden, token.squeeze(-1), self.logits, temperature=self.temperature, chunk=self.chunk)
        value = None if self.value_head is None else cast("Tensor", self.value_head(hidden))
        return Decision(action=token[:, None], logprob=logprob, value=value, context=context, version=self.version)

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """Log-probability, entropy and value of each token, each `[B, T]`; 0 where `mask` is False, but for the value.

        Without a graph Σ π² of each token, too.

        Raises:
            ShapeError: the context has no `input_ids`, or the action is not one token.
        """
        t = batch.trajectory
        context = self._context(t.context)
        apart = context[INPUT_IDS].dim() == 3
        flat = {name: leaf.flatten(0, 1) for name, leaf in context.items()} if apart else context
        hidden = self._last(flat).view(*t.mask.shape, -1) if apart else self.hidden_states(context)
        logprob, entropy, squares = self._score(hidden, t.action.flatten(2), t.mask)
        value = None if self.value_head is None else cast("Tensor", self.value_head(hidden))
        return Rescored(logprob=logprob, entropy=entropy, value=value, sum_pi_squared=squares, version=self.version)

    def sft_loss(
        self, env_obs: Tree[Any], action: Tensor, *, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """Cross-entropy of demonstrated tokens, without temperature; see `rlinf.core.capabilities.HasSFTLoss`.

        Args:
            env_obs: the context: `input_ids` `[B, T]` and what else there is.
            action: `[B, T, 1]`, the token that comes after each; or `[B, 1, 1]`, the one that follows the whole text.
            mask: `[B, T]` or `[B, 1]` bool, False for the tokens of prompts and for padding; all count if None.
            generator: not used.
        """
        counted = torch.ones(action.shape[:2], dtype=torch.bool, device=action.device) if mask is None else mask
        context = self._context(env_obs)
        # A chained comparison: one action, of a text of several tokens.
        whole = action.shape[1] == 1 != context[INPUT_IDS].shape[1]
        hidden = self._last(context)[:, None] if whole else self.hidden_states(context)
        logprob, entropy, _ = self._score(hidden, action, counted, temperature=1.0)
        total, weight = -logprob.sum(), counted.sum().to(logprob.dtype)
        count = float(weight)
        metrics = {
            "sft_loss": Metric(float(total.detach()), count),
            "sft_entropy": Metric(float(entropy.detach().sum()), count),
        }
        return LossOutput(total=total, weight=weight, metrics=metrics)

    def hidden_states(self, context: Tree[Tensor]) -> Tensor:
        """`[B, T, W]`, what the network makes of each column; one pass, without a cache."""
        leaves = self._context(context)
        arguments = self._inputs(self.network, leaves)
        shape = tuple(leaves[INPUT_IDS].shape)
        if self.joined:
            # Kernels for packed sequences take one row, and see from restarting positions where a sequence begins.
            for name in ("input_ids", "position_ids"):
                arguments[name] = arguments[name].flatten(-2)[..., None, :]
        # No attention mask: the positions alone tell sequences apart, see restarting_positions.
        return as_network(self.network).base_model(**arguments, use_cache=False).last_hidden_state.view(*shape, -1)

    def _last(self, context: Context) -> Tensor:
        """`[B, W]`, what the network makes of the last token of each text."""
        hidden = self.hidden_states(context)
        return hidden[torch.arange(len(hidden), device=hidden.device), last_columns(context[SEGMENT_IDS], may_be_blank=True)]

    def network_inputs(self, context: Tree[Tensor]) -> dict[str, Tensor]:
        return self._inputs(self.network, self._context(context))

    def logits(self, hidden: Tensor) -> Tensor:
        """`[…, V]` of hidden states `[…, W]`, before temperature."""
        return self._scale(as_network(self.network).get_output_embeddings()(hidden))

    @property
    def vocabulary(self) -> int:
        """V, how many logits there are."""
        return as_network(self.network).get_output_embeddings().weight.shape[0]

    def network_weights(self, weights: Weights[Tensor]) -> dict[str, Tensor]:
        from rlinf.models.language._folder import folder_weights

        self.load(weights)
        return folder_weights(self.network)

    def load_network(self, folder: Path) -> None:
        """Takes the weights of a folder of Hugging Face; see `rlinf.core.capabilities.LoadsNetwork`.

        Raises:
            CheckpointError: weights are missing or of another shape.
        """
        from rlinf.models.language._folder import load_network

        load_network(self.network, folder)

    def without_adapters(self) -> AbstractContextManager[None]:
        return without_adapters(self.network)

    def save_network(self, folder: Path) -> None:
        from rlinf.models.language._folder import save_network

        save_network(self.network, folder)

    def _score(self, hidden: Tensor, action: Tensor, mask: Tensor, temperature: float | None = None) -> Scored:
        if tuple(action.shape) != (*hidden.shape[:2], 1):
            raise ShapeError(
                "default_forward(action)", f"expected one token, {(*hidden.shape[:2], 1)}, found {tuple(action.shape)}"
            )
        mask = mask.to(hidden.device)
        tokens = action.to(hidden.device).squeeze(-1)[mask]
        found = score_tokens(hidden[mask], tokens, self.logits, temperature=temperature or self.temperature, chunk=self.chunk)

        def placed(x: Tensor) -> Tensor:
            return torch.zeros(mask.shape, dtype=x.dtype, device=x.device).index_put((mask,), x)

        logprob, entropy, squares = found
        return placed(logprob), placed(entropy), None if squares is None else placed(squares)

    def _context(self, context: Tree[Tensor]) -> Context:
        leaves: Mapping[str, Tensor] = cast("Mapping[str, Tensor]", context) if isinstance(context, Mapping) else {}
        if INPUT_IDS not in leaves:
            raise ShapeError("default_forward(context)", f"expected the key '{INPUT_IDS}', found {sorted(leaves)}")
        device = next(self.network.parameters()).device
        moved = {name: torch.as_tensor(leaf, device=device) for name, leaf in leaves.items()}
        moved.setdefault(SEGMENT_IDS, torch.ones_like(moved[INPUT_IDS]))
        return moved
