from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.data import Rescored
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem, ShownPrompt
from rlinf.runners.sft.examples import CrossEntropy, Example, drawn, example, laid_out, packed, read_examples

ONE, TWO = Example((5, 6), (7, 2)), Example((8,), (9, 3, 2))


class Letters:
    """A token for each letter, from 10 on."""

    pad_token_id, eos_token_id = 0, 2

    def encode(self, text, *, add_special_tokens=True):
        return [ord(letter) - ord("a") + 10 for letter in text]


def test_a_row_of_two_sequences_by_hand():
    t = laid_out([[ONE, TWO], [TWO]], pad_id=0).trajectory
    assert t.context["input_ids"].tolist() == [[5, 6, 7, 8, 9, 3], [8, 9, 3, 0, 0, 0]]
    assert t.action[..., 0, 0].tolist() == [[6, 7, 2, 9, 3, 2], [9, 3, 2, 0, 0, 0]]
    assert t.context["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2], [1, 1, 1, 0, 0, 0]]
    assert t.mask.int().tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]


def test_the_loss_counts_responses_and_nothing_else():
    batch = laid_out([[ONE]], pad_id=0)
    logprob = torch.tensor([[-100.0, -1.0, -0.5]])
    output = CrossEntropy()(batch, Rescored(logprob=logprob))
    assert (float(output.total), float(output.weight)) == (1.5, 2.0)
    assert output.metrics["nll"].mean == 0.75


@given(st.lists(st.integers(2, 20), min_size=1, max_size=30), st.integers(20, 64))
def test_packing_loses_nothing_and_fits(sizes, length):
    examples = [Example((number,), (1,) * (size - 1)) for number, size in enumerate(sizes)]
    rows = packed(examples, length)
    assert sorted((each for row in rows for each in row), key=lambda e: e.prompt) == examples
    assert all(sum(len(each) for each in row) <= length for row in rows)
    assert sum(sum(len(each) for each in row) <= length / 2 for row in rows) <= 1, "two half empty rows would be one"


@given(st.integers(1, 40), st.integers(1, 50))
def test_every_pass_has_each_example_once_wherever_steps_begin(count, size):
    steps = -(-3 * count // size)
    found = [at for step in range(steps) for at in drawn(count, step, size, seed=7)]
    assert all(sorted(found[epoch * count : (epoch + 1) * count]) == list(range(count)) for epoch in range(3))
    assert list(drawn(count, steps - 1, size, seed=7)) == found[-size:]


def test_orders_differ_between_passes_and_seeds():
    first, second, other = (list(drawn(50, step, 50, seed)) for step, seed in ((0, 1), (1, 1), (0, 2)))
    assert first != second
    assert first != other


def test_a_problem_becomes_prompt_and_response_with_its_end():
    assert example(Problem(prompt="ab", answer="c", id=0, solution="c"), Letters()) == Example((10, 11), (12, 2))


def test_what_has_no_solution_or_is_too_long_is_left_out():
    problems = [
        Problem(prompt="a", answer="b", id=0, solution="b"),
        Problem(prompt="a", answer="b", id=1),
        Problem(prompt="a", answer="b", id=2, solution="b" * 9),
    ]
    task = SimpleNamespace(problems=lambda split: problems)
    assert read_examples(task, "train", Letters(), max_length=5) == [Example((10,), (11, 2))]
    with pytest.raises(
        ConfigError,
        match=r"^data\.max_length: expected solutions of at most 2 tokens .* the shortest of 2 has 3\. Raise",
    ):
        read_examples(task, "train", Letters(), max_length=2)


class Doubling:
    """A model whose every picture takes two tokens 99, before the prompt."""

    def image_processor(self):
        return self

    def read(self, prompt, images):
        shown = {"pixels": np.array([[i, i + 0.5] for image in images for i in (image, -image)], np.float32).reshape(-1, 2)}
        at = np.arange(2 * len(images))
        return ShownPrompt(tokens=(*[99] * len(at), *prompt), at=at, shown=shown)


def test_pictures_take_tokens_and_stand_at_their_columns_wherever_the_example_lies():
    problems = [
        Problem(prompt="a", answer="b", id=0, solution="b", images=(1,)),
        Problem(prompt="aa", answer="b", id=1, solution="b"),
    ]
    task = SimpleNamespace(problems=lambda split: problems)
    one, two = read_examples(task, "train", Letters(), max_length=5, model=Doubling())
    assert (one.prompt, two.prompt) == ((99, 99, 10), (10, 10))
    assert read_examples(task, "train", Letters(), max_length=4, model=Doubling()) == [two]
    t = laid_out([[two, one], [one]], pad_id=0).trajectory
    assert t.context["input_ids"].tolist() == [[10, 10, 11, 99, 99, 10, 11], [99, 99, 10, 11, 0, 0, 0]]
    shown = [[1, 1.5], [-1, -0.5]]
    assert t.context["pixels"].tolist() == [[[0, 0]] * 3 + shown + [[0, 0]] * 2, shown + [[0, 0]] * 5]
    assert t.mask.int().tolist() == [[0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0, 0]]


def test_models_that_read_no_pictures_are_refused():
    task = SimpleNamespace(problems=lambda split: [Problem(prompt="a", answer="b", id=0, solution="b", images=(1,))])
    with pytest.raises(ConfigError, match=r"actor\.model\.model_type: Letters can't read pictures, .* Choose vlm"):
        read_examples(task, "train", Letters(), max_length=5, model=Letters())
