"""Tables that are compared item by item."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rlinf.algorithms.rewards.reward import PairReward
from rlinf.algorithms.rewards.text import after_last
from rlinf.core.errors import ConfigError

_RULE: Final = re.compile(r"[-:\s]*")
"""What the cells of the line below a head of a Markdown table hold."""

Item = tuple[str, int, str]


def item_f1(prediction: str, answer: str, *, separator: str = ",") -> float:
    """The F1 of the items of a table.

    F1 = 2 |P ∩ A| / (|P| + |A|)

    An item is a cell with the name of its row and the number of its column. The first cell of a line is the row's name, which is no
    item of its own; rows may come in any order. A line that comes twice has its items twice, so that saying everything that could
    be right earns nothing. Item-F1 of Wong et al., "WideSearch: Benchmarking Agentic Broad Info-Seeking" (2025), arXiv:2508.07999,
    where a language model judges whether two cells say the same; here they are compared in lower case without outer spaces.

    Args:
        prediction: one row in each line.
        answer: the right table, laid out likewise.
        separator: between the cells of a line; "|" reads Markdown, too.

    Returns:
        A number in [0, 1]; 0 where one of the two tables has no item, 1 where neither has.
    """
    found, right = (Counter(_items(text, separator)) for text in (prediction, answer))
    if not found or not right:
        return float(found == right)
    return 2 * (found & right).total() / (found.total() + right.total())


def _items(text: str, separator: str) -> Iterator[Item]:
    for line in text.splitlines():
        row = line.strip()
        if separator == "|":
            row = row.removeprefix("|").removesuffix("|")
        name, *cells = (cell.strip().casefold() for cell in row.split(separator))
        if separator == "|" and all(_RULE.fullmatch(cell) for cell in (name, *cells)):
            continue
        yield from ((name, column, cell) for column, cell in enumerate(cells))


@dataclass(frozen=True, slots=True)
class ItemF1(PairReward):
    """The F1 of the items of a table, by name: `item_f1`. See the function `item_f1`."""

    separator: str = ","
    """Between the cells of a line; "|" reads Markdown, too."""
    after: str = ""
    """Only what follows the last of these counts, such as `</think>`; "" for no such mark."""

    def __post_init__(self) -> None:
        if not self.separator.strip():
            raise ConfigError("separator", f"expected a text between cells, found {self.separator!r}", "Use ',' or '|'.")

    def verify(self, completion: str, answer: str) -> float:
        """A number in [0, 1]."""
        return item_f1(after_last(completion, self.after), answer, separator=self.separator)
