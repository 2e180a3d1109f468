"""What is read out of a completion, and how texts are made comparable; all in time linear in the text."""

from __future__ import annotations

import re
import string
from decimal import Decimal
from typing import Final

_BOXES: Final = ("\\boxed", "\\fbox")
_INNER: Final = re.compile(r"\\(?:boxed|fbox)(?:\s*(\{)|\s+([^\s{]\S*))")
_BRACES: Final = re.compile(r"\\.|[{}]", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?|[-+]?\.\d+")
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}` or `\fbox{…}`, or after the last `\boxed ` without braces.

    Braces may nest, and escaped ones (`\{`) don't count. A last box that is never closed holds nothing.
    """
    # The last box: a completion may try several answers, and boxes parts on its way.
    start = max(text.rfind(box) for box in _BOXES)
    if start < 0:
        return None
    inner = _INNER.match(text, start)
    if inner is None:
        return None
    if inner.group(1) is None:
        return inner.group(2).strip("$.,;") or None
    end = _closing_brace(text, inner.end())
    return None if end is None else text[inner.end() : end].strip()


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace closes that was opened before `start`."""
    depth = 1
    # A backslash matches together with what it escapes, so that an escaped brace is none.
    for found in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0:
            return found.start()
    return None


def last_tag(text: str, tag: str) -> str | None:
    """What stands in the last closed `<tag>…</tag>`, stripped; None if there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if end < 0 or start < 0 else text[start + len(tag) + 2 : end].strip()


def last_number(text: str) -> str | None:
    """The last number, without the commas between thousands and without a sign `+`; None if there is none."""
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "").lstrip("+") if found else None


def number_of(text: str) -> Decimal | None:
    """The value of a text that is one number, whose thousands may have commas between them; None of any other text."""
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else Decimal(found.group().replace(",", ""))


def after_last(text: str, mark: str) -> str:
    """What follows the last `mark`; all of the text if it isn't there, or if `mark` is empty."""
    return text.rpartition(mark)[2] if mark else text


def squad_normal(text: str) -> str:
    """Lower case, without ASCII punctuation, without the articles a, an, the, and with single spaces.

    The normal form of Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), arXiv:1606.05250.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
