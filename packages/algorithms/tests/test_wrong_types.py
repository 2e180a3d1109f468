"""What is no tensor, no number or no aggregation is refused with the name of the argument."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import rlinf.algorithms as algorithms
import rlinf.algorithms.objectives as objectives
from rlinf.core.errors import ConfigError, ShapeError

TENSORS = ("Tensor", "Tensor | None")
FUNCTIONS = {
    name: found
    for part in (algorithms, objectives)
    for name in dir(part)
    if inspect.isfunction(found := getattr(part, name))
    and any(each.annotation in TENSORS for each in inspect.signature(found).parameters.values())
}


def test_most_of_what_is_public_takes_tensors() -> None:
    assert len(FUNCTIONS) > 100
    assert {"gae", "ppo_clip", "grpo", "opsm", "logprob_from_logits"} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_list_in_place_of_a_tensor_is_refused_with_the_name_of_its_argument(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    given: dict[str, Any] = {
        key: torch.zeros(1) if each.annotation in TENSORS else None
        for key, each in parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }
    for key, each in parameters.items():
        if each.annotation not in TENSORS:
            continue
        wrong: list[tuple[Any, str]] = [([1.0], "list"), (np.ones(1), "ndarray")]
        wrong += [(None, "NoneType")] if each.annotation == "Tensor" else []
        for value, found in wrong:
            with pytest.raises(ShapeError, match=rf"{name}\({key}\): expected a tensor, found {found}"):
                FUNCTIONS[name](**{**given, key: value})


def test_the_remedy_is_said() -> None:
    grpo: Any = algorithms.grpo
    with pytest.raises(ShapeError, match=r"grpo\(group\): expected a tensor, found list\. Make one of numbers: torch\.as_tensor"):
        grpo(torch.ones(2), ["a", "b"])


def test_a_text_in_place_of_a_number_or_an_aggregation_is_refused() -> None:
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    loss: Any = algorithms.ppo_clip
    with pytest.raises(ConfigError, match=r"clip_ratio_low: expected a number, found '0.2'"):
        loss(x, x, x, mask, clip_ratio_low="0.2", clip_ratio_high=0.2)
    with pytest.raises(ConfigError, match=r"aggregation: expected an Aggregation, found 'token-mean'\. Write Aggregation"):
        loss(x, x, x, mask, clip_ratio_low=0.2, clip_ratio_high=0.2, aggregation="token-mean")
