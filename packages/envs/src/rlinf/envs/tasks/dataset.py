"""Problems of a file: JSON lines or parquet, with fields like those of GSM8K."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from rlinf.core.checkpoints.disk import file_sha256
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.language.answered import read_messages, split_reply
from rlinf.core.language.problems import Message, Problem, Split
from rlinf.envs.tasks.rows import Row, check_rows_file, field_of, read_rows, text_field
from rlinf.envs.tasks.splits import split_of

SPLITS: Final[tuple[Split, Split]] = ("train", "validation")
_ANSWER_KEY: Final = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Problems of a file, by name: `task_type: dataset`.

    GSM8K, as it comes: `prompt_key: question`, `answer_key: answer`, `answer_after: "####"`. Rows of verl: `prompt_key: prompt`,
    `answer_key: reward_model.ground_truth`.
    """

    path: str
    """The problems to train on: `.jsonl` (a JSON object a line, UTF-8) or `.parquet`."""
    validation_path: str | None = None
    """The problems held out, another such file; None holds out a share of `path`."""
    validation_share: float = 0.05
    """The share of `path` that is held out where there is no `validation_path`."""
    prompt_key: str = "prompt"
    """The field of the question: a text, or a list of messages with `role` and `content`. If the last message is the assistant's,
    the question is what stands before it, and it is the worked solution. A field within another one is named by its path, here and
    in the keys of answer and solution: `reward_model.ground_truth`."""
    answer_key: str = _ANSWER_KEY
    """The field of the right answer: a text, a number, or messages of which the last is it. Where `prompt_key` names messages that
    end with the assistant's, a row without the field `answer` has that one as its answer."""
    answer_after: str | None = None
    """The answer is what follows the last of these marks, stripped, such as `####`; None for the whole field. With a mark, the
    whole field is also the worked solution."""
    solution_key: str | None = None
    """The field of a worked solution for supervised fine-tuning, a text or messages of which the last is it; None for none but
    that of `answer_after` or of `prompt_key`."""
    system: str | None = None
    """A system message that goes before each question."""
    chat: bool = True
    """Whether a question that is a text becomes a message of the user, for the tokenizer's chat template; otherwise it stands as
    it is."""
    limit: int | None = None
    """How many rows of each file are read; None for all."""
    seed: int = 0
    """Decides what is held out where there is no `validation_path`."""

    def __post_init__(self) -> None:
        expect_range("validation_share", self.validation_share, 0.0, 1.0, open_low=True, open_high=True)
        if self.system is not None and not self.chat:
            raise ConfigError("system", "a system message needs a chat template", "Set chat, or put the text into the prompts.")
        expect_at_least("limit", self.limit, 1)

    def check(self, place: str) -> None:
        """Refuses files that are not there, or that nothing here reads, and what `problems` would refuse.

        Raises:
            ConfigError: no such file, or another ending; or a row that is none.
            MissingExtra: a parquet file, and pyarrow is not installed.
        """
        for name, path in (("path", self.path), ("validation_path", self.validation_path)):
            if path is not None:
                check_rows_file(Path(path).expanduser(), f"{place}.{name}")
        for split in SPLITS:
            self.problems(split)
        for path in (self.path, self.validation_path):
            if path is not None:
                self._tell_repeated(path)

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file.

        Raises:
            ConfigError: a row lacks a field or holds something else there, a split is empty, or a question is in both files; the
                message names file and line (of parquet: the row, from 1).
        """
        # Of rows that ask the same question the last one counts; `check` says that there are such.
        rows = {key: row for key, row in self._keyed(self.path) if self._part(key) == split}
        if self.validation_path is not None:
            held_out = dict(self._keyed(self.validation_path))
            both = next((key for key in rows if key in held_out), None)
            if both is not None:
                found = f"the question of {rows[both][0]} is also that of {held_out[both][0]}"
                raise ConfigError("data.validation_path", f"expected files without a common question, but {found}", "Drop one.")
            rows = rows if split == "train" else held_out
        if not rows:
            held_out = split == "validation" and self.validation_path is not None
            key, path = ("data.validation_path", self.validation_path) if held_out else ("data.path", self.path)
            remedy = "Name another file." if held_out else "Change data.validation_share, or name another file."
            raise ConfigError(key, f"no problem for '{split}' is in '{path}'", remedy)
        return [self._problem(number, place, row) for number, (place, row) in enumerate(rows.values())]

    def fingerprint(self, split: Split) -> Mapping[str, str]:
        """The file that the problems of a split come from, by content; see `rlinf.core.capabilities.HasFingerprint`."""
        if self.validation_path is None:
            return {"path": _fingerprint(self.path)}
        own, other = ("path", "validation_path") if split == "train" else ("validation_path", "path")
        return {"validation_share": "", "seed": "", other: "", own: _fingerprint(getattr(self, own))}

    def _tell_repeated(self, path: str) -> None:
        """Warns of questions that several rows ask, and shows one that has several answers if there is such."""
        first: dict[str, Problem] = {}
        same: list[str] = []
        other: list[str] = []
        for key, (place, row) in self._keyed(path):
            problem = self._problem(0, place, row)
            before = first.setdefault(key, problem)
            if before is not problem:
                (same if before.answer == problem.answer else other).append(f"{place} repeats {before.place}")
        if same or other:
            rows = len(first) + len(same) + len(other)
            found = f"{len(same) + len(other)} of {rows} rows repeat a question, {len(other)} of them with another answer"
            warnings.warn(f"{path}: {found}; the last one counts. Such as {[*other, *same][0]}.", stacklevel=3)

    def _part(self, key: str) -> Split:
        if self.validation_path is not None:
            return "train"
        return split_of(key, seed=self.seed, validation_share=self.validation_share)

    def _keyed(self, path: str) -> Iterator[tuple[str, tuple[str, Row]]]:
        """The rows with the question that each asks, and where each stands."""
        for place, row in read_rows(Path(path).expanduser(), self.limit, place="data.path"):
            # As JSON a list of messages can be a key, too.
            yield json.dumps(self._asked(row, place)[0], ensure_ascii=False), (place, row)

    def _problem(self, number: int, place: str, row: Row) -> Problem:
        prompt, reply = self._asked(row, place)
        if reply is not None and self.answer_key in (_ANSWER_KEY, self.prompt_key) and _ANSWER_KEY not in row:
            whole = reply
        else:
            whole = self._reply(row, "answer_key", place)
        answer, solution = whole, reply
        if self.answer_after is not None:
            _, mark, answer = whole.rpartition(self.answer_after)
            if not mark:
                found = f"expected an answer after '{self.answer_after}', found {whole[-40:]!r}"
                remedy = "Set data.answer_after to what stands before answers, or to null where they stand alone."
                raise ConfigError(f"{place} {self.answer_key}", found, remedy)
            solution = whole
        if not answer.strip():
            raise ConfigError(f"{place} {self.answer_key}", "expected an answer, found an empty text", "Remove the row.")
        if self.solution_key is not None:
            solution = self._reply(row, "solution_key", place)
        # Of prompt and completion the messages of the prompt are only read.
        recorded = reply is not None and solution is reply
        return Problem(
            prompt=prompt, answer=answer.strip(), id=number, solution=solution, worked_replies=recorded, place=place, row=row
        )

    def _asked(self, row: Row, place: str) -> tuple[str | tuple[Message, ...], str | None]:
        """The prompt, and the reply that messages end with."""
        asked = field_of(row, self.prompt_key, place, setting="data.prompt_key")
        where = f"{place} {self.prompt_key}"
        first: tuple[Message, ...] = () if self.system is None else ({"role": "system", "content": self.system},)
        if isinstance(asked, str):
            if not asked.strip():
                raise ConfigError(where, "expected a text, found an empty one", "Remove the row.")
            return ((*first, {"role": "user", "content": asked}) if self.chat else asked), None
        if not self.chat:
            raise ConfigError(where, f"expected a text, found {asked!r:.80}", "Set data.chat: true, or name a field of texts.")
        messages, reply = split_reply(read_messages(asked, where))
        if not messages:
            raise ConfigError(where, "expected a message before the assistant's, found none", "Name the field of the questions.")
        return (*first, *messages), reply

    def _reply(self, row: Row, setting: Literal["answer_key", "solution_key"], place: str) -> str:
        """A text, a number, or the last of some messages."""
        key: str = getattr(self, setting)
        found = field_of(row, key, place, setting=f"data.{setting}")
        if not isinstance(found, list) or not any(isinstance(item, Mapping) for item in cast("list[object]", found)):
            return text_field(row, key, place)
        _, reply = split_reply(read_messages(cast("object", found), f"{place} {key}"))
        if reply is None:
            found = f"expected messages of which the last is the assistant's, found {found!r:.80}"
            raise ConfigError(f"{place} {key}", found, "Remove the row, or name another field.")
        return reply


def _fingerprint(path: str) -> str:
    file = Path(path).expanduser()
    if not file.is_file():
        return path  # `check` says so
    stat = file.stat()
    return f"{stat.st_size} bytes, sha256 {_sha256(str(file.absolute()), stat.st_mtime_ns, stat.st_size)}"


@functools.lru_cache(maxsize=8)
def _sha256(path: str, _changed: int, _size: int) -> str:
    """Of a file; read again only if it has changed."""
    return file_sha256(Path(path))
