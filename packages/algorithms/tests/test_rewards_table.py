"""Tables compared item by item, against numbers worked out by hand."""

import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from rlinf.algorithms.rewards.matching import ItemF1, item_f1
from rlinf.core.errors import ConfigError
from rlinf.core.registry import REWARDS

RIGHT = "ann,velm,toko\nbob,kimi,toko"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (RIGHT, 1.0),
        ("bob, KIMI ,toko\nann,velm,toko\n", 1.0),  # in any order, in any case
        ("ann,velm,toko", 2 * 2 / (2 + 4)),
        ("ann,velm,kimi\nbob,kimi,toko", 2 * 3 / (4 + 4)),
        ("ann,toko,velm\nbob,kimi,toko", 2 * 2 / (4 + 4)),  # right words in wrong columns
        ("bob,velm,toko", 2 * 1 / (2 + 4)),  # right words in a wrong row
        (f"{RIGHT}\n{RIGHT}", 2 * 4 / (8 + 4)),  # twice is no better than once
        ("ann,velm,toko\nann,kimi,toko\nbob,kimi,toko", 2 * 4 / (6 + 4)),
        ("ann,velm,toko,1\nbob,kimi,toko", 2 * 4 / (5 + 4)),
        ("ann", 0.0),
        ("", 0.0),
        ("I don't know", 0.0),
    ],
)
def test_items_by_hand(found: str, expected: float) -> None:
    assert item_f1(found, RIGHT) == pytest.approx(expected)


def test_markdown_and_marks() -> None:
    table = "| name | seat |\n|---|:-:|\n| ann | toko |"
    assert item_f1(table, "name|seat\nann|toko", separator="|") == 1.0
    reward = REWARDS.build("item_f1", {"separator": "|", "after": "</think>"}, place="reward")
    assert reward([f"ann|no</think>{table}"], ["name|seat\nann|toko"]) == [1.0]
    assert item_f1("", "") == 1.0
    with pytest.raises(ConfigError, match="separator"):
        ItemF1(separator=" ")


TABLES = st.lists(st.lists(st.sampled_from(("ann", "Bo", "1", " 2 ")), min_size=1, max_size=3).map(",".join), max_size=5).map(
    "\n".join
)


@given(TABLES, TABLES)
def test_it_is_what_the_specification_says(prediction: str, answer: str) -> None:
    assert item_f1(prediction, answer) == pytest.approx(reference.item_f1(prediction, answer, ","))
