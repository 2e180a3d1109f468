from dataclasses import replace

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Shapes
from rlinf.envs.tasks.drawing import Shape, draw, stencil

RED, BLUE = (220, 40, 40), (50, 80, 220)
PLAIN = {"train": 200, "validation": 30}


def test_a_picture_by_hand():
    image = draw([Shape("red", "square", 0, 1), Shape("blue", "circle", 1, 0)], grid=2, cell=10)
    assert image.shape == (20, 20, 3)
    assert image.dtype == np.uint8
    assert (image[1:9, 11:19] == RED).all()
    assert (image[15, 5] == BLUE).all()
    assert (image[:10, :10] == 255).all()
    assert (image[10:, 10:] == 255).all()
    assert (image[0, 10:] == 255).all()


def test_shapes_cover_what_their_geometry_says():
    side = 200
    assert abs(stencil("circle", side).mean() - np.pi * 0.4**2) < 0.005
    assert abs(stencil("square", side).mean() - 0.8**2) < 0.005
    assert abs(stencil("triangle", side).mean() - 0.8**2 / 2) < 0.005
    assert stencil("triangle", side)[30].sum() < stencil("triangle", side)[170].sum()


@pytest.mark.parametrize(("question", "answers"), [("color", {"red", "green", "blue", "yellow"}), ("present", {"yes", "no"})])
def test_answers_can_be_read_off_the_picture(question, answers):
    problems = Shapes(**PLAIN, questions=(question,)).problems("train")
    assert {problem.answer for problem in problems} == answers
    for problem in problems:
        (image,) = problem.images
        if question == "color":
            rgb = {"red": RED, "green": (40, 170, 60), "blue": BLUE, "yellow": (230, 200, 40)}[problem.answer]
            assert (image == rgb).all(-1).any()
        else:
            color = problem.prompt.split()[3]
            rgb = {"red": RED, "green": (40, 170, 60), "blue": BLUE, "yellow": (230, 200, 40)}[color]
            assert problem.answer == "no" or (image == rgb).all(-1).any()


def test_counts_are_those_of_the_picture():
    for problem in Shapes(**PLAIN, questions=("count",), most=4).problems("validation"):
        kind = problem.prompt.removeprefix("<image>How many ").removesuffix("s?")
        (image,) = problem.images
        cells = [image[r : r + 16, c : c + 16] for r in (0, 16) for c in (0, 16)]
        drawn = [(cell != 255).any(-1) for cell in cells]
        assert problem.answer == str(sum((found == stencil(kind, 16)).all() for found in drawn))


def test_no_picture_is_in_both_splits():
    train, held_out = (Shapes(train=20, validation=5, most=1).problems(split) for split in ("train", "validation"))
    pictures = [{problem.images[0].tobytes() for problem in problems} for problems in (train, held_out)]
    assert (len(train), len(held_out)) == (20, 5)
    assert not pictures[0] & pictures[1]


def test_the_same_each_time():
    first, second = (Shapes(**PLAIN).problems("validation") for _ in range(2))
    assert [(p.prompt, p.answer) for p in first] == [(p.prompt, p.answer) for p in second]
    assert all((a.images[0] == b.images[0]).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"most": 5}, "most: expected from 1 to 4"), ({"cell": 4}, "cell"), ({"questions": ()}, "questions"), ({"grid": 0}, "grid")],
)
def test_faults_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Shapes(**settings)


def test_more_pictures_than_there_are():
    with pytest.raises(ConfigError, match=r"shapes.train: expected 2000"):
        Shapes(most=1).problems("train")


def test_choices_hold_the_answer_at_its_letter_in_an_order_of_their_own():
    problems = Shapes(**PLAIN, choices=True).problems("train")
    orders = set()
    for problem in problems:
        question, listed = problem.prompt.split("? ")
        words = listed.split(" ")
        options = dict(zip(words[::2], words[1::2], strict=True))
        assert list(options) == list("ABCD"[: len(options)])
        assert problem.solution == f"{options[problem.answer]} ({problem.answer})"
        if question.startswith("<image>What color"):
            assert sorted(options.values()) == ["blue", "green", "red", "yellow"]
            orders.add(listed)
    assert len(orders) > 4


def test_choices_do_not_change_pictures_questions_or_answers():
    plain = Shapes(train=1, validation=1, questions=("present",))
    for split in ("train", "validation"):
        (one,), (other,) = plain.problems(split), replace(plain, choices=True).problems(split)
        assert other.prompt.startswith(one.prompt)
        assert other.solution.startswith(one.solution)
        assert (other.images[0] == one.images[0]).all()


def test_more_counts_than_letters_are_refused():
    with pytest.raises(ConfigError, match="most: expected fewer than 10 shapes with choices, found 10"):
        Shapes(choices=True, grid=4, most=10)
    Shapes(choices=True, grid=4, most=10, questions=("color",))


def test_choices_in_one_order_have_one_letter_for_each_answer():
    problems = Shapes(**PLAIN, choices=True, shuffled=False, questions=("kind",)).problems("train")
    assert {problem.solution for problem in problems} == {"circle (A)", "square (B)", "triangle (C)"}
    assert len({problem.prompt.split("? ")[1] for problem in problems}) == 1
