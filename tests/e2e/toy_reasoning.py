"""A task, a tokenizer and a model that are ready at once; named in configurations as `toy_reasoning:Sums` and so on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.models.language import CausalLMConfig

ALPHABET = "0123456789+="
FIRST = 3


@dataclass(frozen=True)
class Sums:
    """The last digit of the sum of two digits; every fourth problem is for validation."""

    def check(self, place: str) -> None: ...

    def problems(self, split: str) -> Sequence[Problem]:
        pairs = [(a, b) for a in range(10) for b in range(10)]
        chosen = [pair for i, pair in enumerate(pairs) if (i % 4 == 0) == (split == "validation")]
        return [Problem(prompt=f"{a}+{b}=", answer=str((a + b) % 10), id=i) for i, (a, b) in enumerate(chosen)]


class Characters:
    """A token for each character."""

    pad_token_id, eos_token_id = 0, 2

    def __len__(self) -> int:
        return FIRST + len(ALPHABET)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ALPHABET.index(c) + FIRST for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(ALPHABET[t - FIRST] if t >= FIRST else "" if skip_special_tokens else "_" for t in token_ids)


@dataclass(frozen=True)
class TinyLM:
    """The tiny preset with a vocabulary of characters; a rollout worker may tell its process id, and write slowly."""

    add_value_head: bool = False
    pids: str | None = None
    pass_s: float = 0.0

    def build(self, *, seed: int) -> Any:
        overrides = {"vocab_size": FIRST + len(ALPHABET), "initializer_range": 0.02}
        model = CausalLMConfig(preset="tiny", overrides=overrides, add_value_head=self.add_value_head).build(seed=seed)
        if os.environ.get("GROUP_NAME") == "rollout":
            if self.pids is not None:
                (Path(self.pids) / os.environ["RANK"]).write_text(str(os.getpid()))
            if self.pass_s:
                model.network.register_forward_pre_hook(lambda *_: time.sleep(self.pass_s))
        return model

    def tokenizer(self, corpus: Sequence[str]) -> Characters:
        return Characters()


@dataclass(frozen=True)
class Doubled:
    """Two ranks hold a copy of the model each and train on the same samples, as ranks do that share one."""

    optim: OptimConfig = field(default_factory=OptimConfig)

    def data_rank(self, rank: int, world_size: int) -> tuple[int, int]:
        if world_size % 2:
            raise ConfigError("actor", f"{world_size} ranks are no pairs", "Place an even number.")
        return rank // 2, world_size // 2

    def build(self, policy: Any, *, rank: int, world_size: int, rendezvous: str, training_steps: int | None = None) -> Any:
        share, shares = self.data_rank(rank, world_size)
        return FSDPTrainerConfig(self.optim).build(
            policy, rank=share, world_size=shares, rendezvous="", training_steps=training_steps
        )
