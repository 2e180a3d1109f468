"""Reward models that learn from pairs of responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.runners.sft.pairs import Pair, batches_of, check_pairs, read_pairs
from rlinf.runners.sft.reward_model_worker import Preferences, RewardModelActor
from rlinf.runners.sft.schema import PairsDataConfig


class Letters:
    """A token for each character; messages are their contents, each behind a bar."""

    eos_token_id, pad_token_id = 1, 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        return "".join(f"|{message['content']}" for message in conversation)


class Task:
    def __init__(self, *rows: dict[str, Any], prompt: Any = "a") -> None:
        self.rows, self.prompt = rows, prompt

    def check(self, place: str) -> None: ...

    def problems(self, split: str) -> list[Problem]:
        return [Problem(prompt=self.prompt, answer="", id=n, place=f"f:{n}", row=row) for n, row in enumerate(self.rows)]


def data(*rows: dict[str, Any], prompt: Any = "a", **more: Any) -> PairsDataConfig:
    return PairsDataConfig(task=Task(*rows, prompt=prompt), **more)


def codes(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_a_pair_is_two_whole_texts() -> None:
    rows = {"chosen": "bc", "rejected": "d"}, {"chosen": "e" * 9, "rejected": "f"}
    letters: Any = Letters()
    assert read_pairs(data(*rows, max_length=8), "train", letters) == [Pair((*codes("abc"), 1), (*codes("ad"), 1))]
    said = ({"role": "user", "content": "a"},)
    (pair,) = read_pairs(data(rows[0], prompt=said), "train", letters)
    assert pair == Pair(codes("|a|bc"), codes("|a|d"))
    with pytest.raises(ConfigError, match=r"data\.max_length: expected texts of at most 2 tokens in 'train'.* has 4"):
        read_pairs(data(*rows, max_length=2), "train", letters)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_response_may_be_messages_alone_or_after_those_of_the_prompt(before: int) -> None:
    asked = ({"role": "system", "content": "s"}, {"role": "user", "content": "a"})
    row = {
        key: [*asked[2 - before :], {"role": "assistant", "content": text}] for key, text in (("chosen", "bc"), ("rejected", "d"))
    }
    (pair,) = read_pairs(data(row, prompt=asked), "train", cast("Any", Letters()))
    assert pair == Pair(codes("|s|a|bc"), codes("|s|a|d"))


def test_messages_after_another_prompt_or_without_a_reply_are_refused() -> None:
    reply, asked = {"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}
    for row, message in (
        (
            {"chosen": [asked, reply], "rejected": [{"role": "user", "content": "c"}, reply]},
            "f:0 rejected: expected the prompt before",
        ),
        ({"chosen": [asked], "rejected": [reply]}, "f:0 chosen: expected messages of which the last is the assistant's.* 'user'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_pairs(data(row, prompt=(asked,)), "train", cast("Any", Letters()))
    (pair,) = read_pairs(data({"chosen": [asked, reply], "rejected": [reply]}), "train", cast("Any", Letters()))
    assert pair.chosen == (*codes("ab"), 1)


def test_rows_without_a_pair_are_refused_with_their_place() -> None:
    for row in ({"chosen": "b"}, {"chosen": "b", "rejected": None}, {"chosen": "b", "rejected": ["c"]}):
        cfg: Any = SimpleNamespace(data=data(row), actor=SimpleNamespace(model=SimpleNamespace(config=None)))
        with pytest.raises(ConfigError, match=r"f:0.* expected a (text or messages in 'rejected'|message with the texts)"):
            check_pairs(cfg)
    with pytest.raises(ConfigError, match="rejected_key"):
        data({}, rejected_key="chosen")


def test_batches_are_padded_to_one_width_and_nothing_else_counts() -> None:
    cfg: Any = SimpleNamespace(data=None)
    actor: Any = RewardModelActor(cfg)
    actor._state = SimpleNamespace(tokenizer=Letters())
    pairs = [Pair((5, 6, 7), (8,)), Pair((9,), (10, 11))]
    assert [len(part[0].rejected) for part in batches_of(pairs, 1)] == [2, 1]
    context: Any = actor._batch(pairs).trajectory.context
    assert context["chosen"]["input_ids"].tolist() == [[5, 6, 7], [9, 0, 0]]
    assert context["rejected"]["input_ids"].tolist() == [[8, 0, 0], [10, 11, 0]]
    assert context["rejected"]["segment_ids"].tolist() == [[1, 0, 0], [1, 1, 0]]


def test_a_rank_that_only_keeps_pace_adds_nothing() -> None:
    class Model:
        def preference_loss(self, chosen: Any, rejected: Any) -> LossOutput[Any]:
            return LossOutput(total=torch.tensor(3.0), weight=torch.tensor(2.0), metrics={})

    cfg: Any = SimpleNamespace(data=None)
    actor: Any = RewardModelActor(cfg)
    actor._state = SimpleNamespace(tokenizer=Letters())
    batch = actor._batch([Pair((5,), (6,))])
    assert float(Preferences().of_policy(Model(), batch).weight) == 2.0
    batch.trajectory.mask.zero_()
    output = Preferences().of_policy(Model(), batch)
    assert (float(output.total), float(output.weight)) == (0.0, 0.0)
