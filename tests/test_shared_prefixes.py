"""Branches of an agent's episodes, scored as a tree by a real language model: the numbers are those of each branch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlinf.core.agents import Branch, Episode, Turn
from rlinf.core.data import Batch, Completion
from rlinf.core.errors import ConfigError
from rlinf.core.registry import LOSSES, MODELS
from rlinf.engines import FSDPTrainerConfig
from rlinf.runners.agent import episode_rows


def policy(**changes: Any) -> Any:
    model = {"preset": "tiny", "architecture": "qwen3", "add_value_head": True, **changes}
    return MODELS.build("causal_lm", model, place="actor.model").build(seed=3)


def turn(generator: np.random.Generator, read: int, wrote: int) -> Turn:
    tokens, prompt = generator.integers(3, 60, wrote), tuple(generator.integers(3, 60, read).tolist())
    said = Completion(tokens=tokens, logprob=np.zeros(wrote, np.float32), version=np.zeros(wrote, int), finish="stop")
    return Turn(prompt=prompt, completion=said, text="")


def episodes() -> Batch[Any]:
    """Two episodes on one prompt; the first has a lead with two branches behind its first turn, and one behind the second."""
    generator = np.random.default_rng(0)
    first, second, third = turn(generator, 9, 4), turn(generator, 3, 5), turn(generator, 2, 6)
    own = [turn(generator, read, wrote) for read, wrote in ((4, 3), (2, 7), (5, 2))]
    branches = (
        Branch(turns=(first, second, third)),
        Branch(turns=(first, own[0]), inherited=1),
        Branch(turns=(first, second, own[1]), inherited=2),
    )
    alone = Turn(prompt=first.prompt, completion=own[2].completion, text="")
    pair = [Episode(branches=branches, finish="stop"), Episode(branches=(Branch(turns=(alone,)),), finish="stop")]
    rows = episode_rows(pair, [1.0, 0.0], group=0, pad_id=0).map(torch.as_tensor)
    mask = rows.mask
    return Batch.of(rows, torch.where(mask, torch.randn(mask.shape, generator=torch.Generator().manual_seed(1)), 0.0))


def trainer(made: Any, **changes: Any) -> Any:
    return FSDPTrainerConfig(**changes).build(made, rank=0, world_size=1, rendezvous="")


@pytest.mark.parametrize("model", [{}, {"architecture": "llama", "attention": "eager"}])
def test_log_probabilities_values_and_gradients_are_those_of_the_branches_alone(model: dict[str, Any]) -> None:
    batch, loss = episodes(), LOSSES.build("ppo_clip", {}, place="algorithm")
    alone, tree = trainer(policy(**model)), trainer(policy(**model), max_tokens_per_mbs=99, share_prefixes=True)
    expected, found = alone.evaluate(batch), tree.evaluate(batch)
    assert int(batch.trajectory.mask.sum()) == 4 + 5 + 6 + 3 + 7 + 2
    real = batch.trajectory.context["segment_ids"] > 0
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.value[real], expected.value[real], atol=1e-5, rtol=0)
    first, second = alone.step([batch], loss), tree.step([batch], loss)
    assert second["grad_norm"].mean == pytest.approx(first["grad_norm"].mean, rel=1e-5)
    # Of N common tokens N - 1 decide the same token: 13 with the lead's first turn, 21 with its second, 9 of the prompt alone.
    assert second["shared_tokens"].mean == pytest.approx((12 + 20 + 8) / (28 + 19 + 29 + 10))


@pytest.mark.parametrize(
    "changes", [{"architecture": "gemma2", "attention": "eager"}, {"architecture": "mistral", "overrides": {"sliding_window": 4}}]
)
def test_attention_that_looks_back_only_so_far_is_refused(changes: dict[str, Any]) -> None:
    """A mask of ours would take the place of its window, and score other numbers without a word."""
    with pytest.raises(ConfigError, match=r"actor.share_prefixes: attention of this LanguageModel"):
        trainer(policy(**changes), max_tokens_per_mbs=99, share_prefixes=True)
