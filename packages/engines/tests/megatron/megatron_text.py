"""A language model of transformers as a policy, scored in the plainest way, rows of text and a loss."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from rlinf.core import Batch, LossOutput, Metric, Rescored, Trajectory, Weights

VOCABULARY = 37
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MIXTURE = {**SIZES, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
CONFIGS: dict[str, Any] = {
    "qwen2": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**{**SIZES, "head_dim": 12}, tie_word_embeddings=False),
    "qwen3_moe": lambda: Qwen3MoeConfig(**{**MIXTURE, "head_dim": 12}, norm_topk_prob=True, tie_word_embeddings=False),
    "qwen3_moe_tied": lambda: Qwen3MoeConfig(**MIXTURE, norm_topk_prob=False, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(
        **SIZES,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
}


class Writer(torch.nn.Module):
    """Logits of everything, one row and one sequence at a time: slow, and plain to see."""

    def __init__(self, family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, config: Any = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.network = AutoModelForCausalLM.from_config(config or CONFIGS[family](), attn_implementation="eager").to(dtype)
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                if parameter.dim() == 1:
                    parameter.copy_(("norm" in name) + 0.3 * torch.randn(parameter.shape))
        self.temperature, self.version = 0.7, 0

    def default_forward(self, batch: Batch) -> Rescored:
        t = batch.trajectory
        segments, action = t.context["segment_ids"], t.action.flatten(1)
        logprob, entropy, squares = torch.zeros((3, *t.mask.shape), device=t.mask.device)
        for row in range(len(segments)):
            for segment in set(segments[row].tolist()) - {0}:
                columns = torch.nonzero(segments[row] == segment).flatten()
                logits = self.network(input_ids=t.context["input_ids"][row, columns][None], use_cache=False).logits[0]
                log = (logits.float() / self.temperature).log_softmax(-1)
                scored = t.mask[row, columns]
                place = (torch.full_like(columns, row)[scored], columns[scored])
                logprob = logprob.index_put(place, log.gather(-1, action[row, columns][:, None]).squeeze(-1)[scored])
                entropy = entropy.index_put(place, -(log.exp() * log).sum(-1)[scored])
                squares = squares.index_put(place, (2 * log.detach()).exp().sum(-1)[scored])
        return Rescored(logprob=logprob, entropy=entropy, sum_pi_squared=squares)

    def weights(self) -> Weights:
        return Weights(tensors=dict(sorted(self.state_dict().items())), version=self.version)

    def load(self, weights: Weights) -> None:
        self.load_state_dict(dict(weights.tensors))

    def network_weights(self, weights: Weights) -> dict:
        raise NotImplementedError

    def save_network(self, folder: Any) -> None:
        raise NotImplementedError


ROWS = ((3, 4), (1, 7), (5, 1), (2, 2), (4, 5), (1, 3))
"""Tokens of prompts and of responses."""


def text_batch(rows: Any = ROWS, seed: int = 3, left: bool = False, packed: bool = False) -> Batch:
    """Rows of text, padded to the right or the left; or two to a row."""
    g = torch.Generator().manual_seed(seed)
    pieces = [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)] if packed else [(row,) for row in rows]
    size, horizon = len(pieces), max(sum(p + r for p, r in piece) for piece in pieces)
    segments, mask = torch.zeros(size, horizon, dtype=torch.long), torch.zeros(size, horizon, dtype=torch.bool)
    for row, piece in enumerate(pieces):
        start = horizon - sum(p + r for p, r in piece) if left else 0
        for number, (prompt, response) in enumerate(piece, 1):
            segments[row, start : start + prompt + response] = number
            mask[row, start + prompt - 1 : start + prompt + response - 1] = True
            start += prompt + response

    def noise() -> torch.Tensor:
        return torch.randn(size, horizon, generator=g)

    trajectory = Trajectory.of(
        context={"input_ids": torch.randint(VOCABULARY, (size, horizon), generator=g), "segment_ids": segments},
        action=torch.randint(VOCABULARY, (size, horizon, 1, 1), generator=g),
        logprob=-3.6 + 0.1 * noise(),
        reward=noise(),
        terminated=mask,
        truncated=~mask,
        mask=mask,
    )
    return Batch.of(trajectory, noise())


def text_loss(batch: Batch, evaluation: Rescored) -> LossOutput:
    """A sum that neither signs nor scales hide: of log-probabilities, of their squares and of entropies."""
    mask, gain = batch.trajectory.mask, batch.credit.advantage
    gap = evaluation.logprob - batch.trajectory.logprob
    each = -gain * evaluation.logprob + 0.05 * gap.square() - 0.1 * evaluation.entropy
    total, weight = torch.where(mask, each, 0.0).sum(), mask.sum().float()
    return LossOutput(total=total, weight=weight, metrics={"gap": Metric(float((gap.detach() * mask).sum()), float(weight))})
