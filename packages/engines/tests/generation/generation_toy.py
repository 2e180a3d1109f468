"""A tiny language model that is `LanguageModelPolicy`, built by transformers alone."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from rlinf.core import Weights

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


class ToyWriter(nn.Module):
    """Scores tokens by plain forward passes, one sequence at a time: the oracle of the tests."""

    temperature = 1.0
    version = 0

    def __init__(self, architecture: str = "qwen3", seed: int = 0, **sizes: object) -> None:
        super().__init__()
        self.architecture, self.sizes = architecture, sizes
        own = transformers.CONFIG_MAPPING[architecture](**{**SIZES, **sizes})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = transformers.AutoModelForCausalLM.from_config(own, attn_implementation="sdpa").eval()

    def again(self) -> ToyWriter:
        """One as it was when it was built."""
        return type(self)(self.architecture, **self.sizes)

    def updated(self, version: int, scale: float = 0.3):
        """Other weights, and how one that has them scores."""
        oracle, weights = self.again(), noisy(self.weights(), version, scale)
        oracle.load(weights)
        return weights, oracle.score

    def weights(self) -> Weights:
        return Weights(tensors={name: t.detach().clone() for name, t in self.state_dict().items()}, version=self.version)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        self.load_state_dict(dict(weights.tensors))
        self.version = weights.version

    def network_weights(self, weights: Weights) -> dict[str, torch.Tensor]:
        self.load(weights)
        return self.network.state_dict()

    def save_network(self, folder) -> None:
        self.network.save_pretrained(str(folder))

    @torch.no_grad()
    def score(self, prompt, tokens):
        """Log-probability of each token, and the likeliest token in its place."""
        ids = torch.tensor([[*prompt, *tokens]], device=self.network.device)
        logits = self.network(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.as_tensor(list(tokens), device=ids.device)[:, None]
        logprob = torch.log_softmax(logits / self.temperature, -1).gather(-1, chosen).squeeze(-1)
        return logprob.cpu().numpy(), logits.argmax(-1).cpu().numpy()


def noisy(weights: Weights, version: int, scale: float = 0.3) -> Weights:
    """Other weights for the same network."""
    generator = torch.Generator().manual_seed(version)
    tensors = {n: t + scale * torch.randn(t.shape, generator=generator).to(t) for n, t in weights.tensors.items()}
    return Weights(tensors=tensors, version=version)
