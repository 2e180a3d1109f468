import contextlib
import json
import warnings
from pathlib import Path

import pytest

from rlinf.core.capabilities import HasFingerprint
from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.envs.tasks import Dataset

ROWS = [
    {"question": f"What is {n} + {n}?", "answer": f"{n} and {n} make {2 * n}.\n#### {2 * n:,}", "level": n} for n in range(600, 640)
]
GSM8K = {"prompt_key": "question", "answer_key": "answer", "answer_after": "####"}


def lines(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def jsonl(tmp_path):
    return lines(tmp_path / "train.jsonl", ROWS)


def parquet(path, rows):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def test_gsm8k_as_it_comes(jsonl):
    task = Dataset(path=jsonl, **GSM8K, system="Think.", validation_share=0.2)
    problem = task.problems("train")[0]
    row = next(row for row in ROWS if row["question"] == problem.prompt[1]["content"])
    assert problem.prompt == ({"role": "system", "content": "Think."}, {"role": "user", "content": row["question"]})
    assert problem.answer == f"{2 * row['level']:,}"
    assert problem.solution == row["answer"]


def test_every_row_is_in_one_split_in_the_order_of_the_file(jsonl):
    task = Dataset(path=jsonl, **GSM8K, chat=False, validation_share=0.3)
    train, held_out = ([problem.prompt for problem in task.problems(split)] for split in ("train", "validation"))
    asked = [row["question"] for row in ROWS]
    assert sorted(train + held_out) == asked
    assert train == sorted(train)
    assert 4 <= len(held_out) <= 20


def test_a_row_that_is_there_twice_is_one_problem(tmp_path):
    path = lines(tmp_path / "twice.jsonl", [*ROWS, *ROWS])
    task = Dataset(path=path, **GSM8K, chat=False, validation_share=0.3)
    assert len(task.problems("train")) + len(task.problems("validation")) == len(ROWS)


def test_rows_that_repeat_a_question_are_told(tmp_path):
    other = {**ROWS[0], "answer": "#### 999"}
    path = lines(tmp_path / "twice.jsonl", [*ROWS, ROWS[1], other])
    with pytest.warns(UserWarning, match=r"twice\.jsonl: 2 of \d+ rows repeat a question, 1 of them with another answer") as caught:
        Dataset(path=path, **GSM8K).check("data")
    assert f"{path}:{len(ROWS) + 2} repeats {path}:1" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset(path=lines(tmp_path / "once.jsonl", ROWS), **GSM8K).check("data")


def test_no_line_behind_the_limit_is_read(jsonl, monkeypatch):
    opened, read = Path.open, []

    @contextlib.contextmanager
    def counted(self, *args, **kwargs):
        with opened(self, *args, **kwargs) as file:
            yield (read.append(line) or line for line in file)

    monkeypatch.setattr(Path, "open", counted)
    assert len(Dataset(path=jsonl, **GSM8K, limit=10, validation_share=0.4).problems("train")) < 10
    assert len(read) == 10


def test_no_row_group_behind_the_limit_is_read(tmp_path, monkeypatch):
    files = pytest.importorskip("pyarrow.parquet")
    path = parquet(tmp_path / "long.parquet", ROWS)
    monkeypatch.setattr(files, "read_table", lambda *a, **k: pytest.fail("read as a whole"))
    whole = Dataset(path=path, **GSM8K, limit=10, validation_share=0.4)
    assert len(whole.problems("train")) + len(whole.problems("validation")) == 10
    every = Dataset(path=path, **GSM8K, validation_share=0.4)
    assert len(every.problems("train")) + len(every.problems("validation")) == len(ROWS)


def test_parquet_is_read_like_lines(tmp_path, jsonl):
    path = parquet(tmp_path / "train.parquet", ROWS)
    for split in ("train", "validation"):
        assert Dataset(path=path, **GSM8K).problems(split) == Dataset(path=jsonl, **GSM8K).problems(split)


def test_a_file_of_its_own_for_validation(tmp_path, jsonl):
    held_out = [{"question": "1?", "answer": "#### 1"}, {"question": "2?", "answer": "#### 2"}]
    task = Dataset(path=jsonl, validation_path=lines(tmp_path / "test.jsonl", held_out), **GSM8K)
    assert [problem.answer for problem in task.problems("validation")] == ["1", "2"]
    assert len(task.problems("train")) == len(ROWS)


def test_a_question_in_both_files_is_refused(tmp_path, jsonl):
    task = Dataset(path=jsonl, validation_path=lines(tmp_path / "test.jsonl", ROWS[4:5]), **GSM8K)
    with pytest.raises(ConfigError, match=r"train.jsonl:5 is also that of .*test.jsonl:1"):
        task.problems("train")


def test_messages_are_taken_as_they_are(tmp_path):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "2+2"}]
    path = lines(
        tmp_path / "chat.jsonl", [{"prompt": chat, "answer": 4, "how": "2+2=4"}] + [{"prompt": "x", "answer": "y", "how": "z"}] * 1
    )
    found = [
        p for split in ("train", "validation") for p in _all(Dataset(path=path, solution_key="how", validation_share=0.5), split)
    ]
    problem = next(p for p in found if p.answer == "4")
    assert problem.prompt == tuple(chat)
    assert problem.solution == "2+2=4"
    assert not problem.worked_replies, "its messages show how to answer"


@pytest.mark.parametrize("write", [lines, parquet])
def test_messages_that_end_with_the_assistants_are_question_and_worked_solution(tmp_path, write):
    def said(n, last):
        asked = [{"role": "system", "content": "Count."}, {"role": "user", "content": f"{n} + 1"}]
        return [*asked, {"role": "assistant", "content": last}]

    rows = [{"messages": said(n, f"One more.\n#### {n + 1}")} for n in range(9)]
    path = write(tmp_path / ("rows.jsonl" if write is lines else "rows.parquet"), rows)
    task = Dataset(path=path, prompt_key="messages", answer_after="####", validation_share=0.4)
    problem = next(problem for problem in task.problems("train") if problem.answer == "4")
    assert problem.prompt == tuple(said(3, "")[:-1])
    assert problem.solution == "One more.\n#### 4"
    assert problem.worked_replies
    plain = Dataset(path=path, prompt_key="messages", answer_key="messages", validation_share=0.4).problems("train")
    assert all(problem.answer == problem.solution == problem.row["messages"][-1]["content"] for problem in plain)
    other = write(tmp_path / f"more{Path(path).suffix}", [{**row, "answer": "7"} for row in rows])
    assert {p.answer for p in Dataset(path=other, prompt_key="messages", validation_share=0.4).problems("train")} == {"7"}
    with pytest.raises(ConfigError, match="no field 'anser'"):
        Dataset(path=path, prompt_key="messages", answer_key="anser").problems("train")


def test_rows_that_ask_the_same_are_one_problem_whatever_the_reply(tmp_path):
    def said(n, last):
        return [{"role": "user", "content": str(n)}, {"role": "assistant", "content": last}]

    path = lines(tmp_path / "twice.jsonl", [{"messages": said(n, reply)} for n in range(20) for reply in "ab"])
    task = Dataset(path=path, prompt_key="messages", validation_share=0.4)
    splits = [[problem.prompt[0]["content"] for problem in task.problems(split)] for split in ("train", "validation")]
    assert sorted(int(asked) for split in splits for asked in split) == list(range(20))
    with pytest.warns(UserWarning, match="20 of 40 rows repeat a question, 20 of them with another answer"):
        task.check("data")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": [{"role": "assistant", "content": "Hi"}]}, r"1 prompt: expected a message before the assistant's, found none"),
        (
            {"prompt": "q", "answer": [{"role": "user", "content": "a"}]},
            r"1 answer: expected messages of which the last is the assis",
        ),
        ({"prompt": "q", "answer": " "}, r"1 answer: expected an answer, found an empty text"),
        ({"prompt": [{"from": "human", "value": "q"}]}, r"1 prompt: expected a message .* ShareGPT.* rename them"),
        ({"prompt": "q", "answer": [{"role": "assistant"}]}, r"1 answer: expected a message with the texts 'role' and 'content'"),
        ({"prompt": [{"role": "user", "content": "a"}]}, r"1: no field 'answer'\. Known: prompt\. Name one in data\.answer_key"),
    ],
)
def test_messages_without_a_question_or_a_reply_are_refused(tmp_path, row, message):
    with pytest.raises(ConfigError, match=message):
        Dataset(path=lines(tmp_path / "bad.jsonl", [row])).check("data")


@pytest.mark.parametrize("write", [lines, parquet])
def test_a_field_within_another_one_is_named_by_its_path(tmp_path, write):
    rows = [
        {"prompt": [{"role": "user", "content": f"{n} + 1"}], "reward_model": {"ground_truth": str(n + 1), "style": "rule"}}
        for n in range(9)
    ]
    path = write(tmp_path / ("rows.jsonl" if write is lines else "rows.parquet"), rows)
    task = Dataset(path=path, answer_key="reward_model.ground_truth", validation_share=0.4)
    assert {problem.answer for split in ("train", "validation") for problem in task.problems(split)} == set("123456789")
    with pytest.raises(ConfigError, match=r"no field 'answer'\. Known: prompt, reward_model, reward_model\.ground_truth"):
        Dataset(path=path).check("data")


def _all(task, split):
    try:
        return task.problems(split)
    except ConfigError:
        return []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", r"bad.jsonl:2: no JSON"),
        ("[1]", r"bad.jsonl:2: expected a JSON object"),
        ({"answer": "#### 1"}, r"bad.jsonl:2: no field 'question'"),
        ({"question": "q"}, r"bad.jsonl:2: no field 'answer'. Known: question"),
        ({"question": "q", "answer": None}, r"bad.jsonl:2: nothing is in the field 'answer'. Remove the row"),
        ({"question": "q", "answer": "so ####  "}, r"bad.jsonl:2 answer: expected an answer, found an empty text. Remove the row"),
        ('{"question": "q", "answer": NaN}', r"bad.jsonl:2 answer: expected a text or a number, found nan"),
        ({"question": "q", "answer": "7"}, r"bad.jsonl:2 answer: expected an answer after '####', found '7'. Set"),
        ({"question": "q", "answer": [7]}, r"bad.jsonl:2 answer: expected a text or a number"),
        ({"question": 5, "answer": "#### 1"}, r"bad.jsonl:2 question: expected a text or messages, found 5"),
        ({"question": [{"role": "user"}], "answer": "#### 1"}, r"bad.jsonl:2 question: expected a message"),
        ({"question": [], "answer": "#### 1"}, r"bad.jsonl:2 question: expected at least one message"),
        ({"question": " ", "answer": "#### 1"}, r"bad.jsonl:2 question: expected a text, found an empty one. Remove the row"),
        ("[" * 100_000, r"bad.jsonl:2: no JSON"),
    ],
)
def test_faults_name_file_and_line(tmp_path, row, message):
    path = lines(tmp_path / "bad.jsonl", [ROWS[0], row, *ROWS[1:9]])
    task = Dataset(path=path, **GSM8K, validation_share=0.5)
    with pytest.raises(ConfigError, match=message):
        [task.problems(split) for split in ("train", "validation")]
    with pytest.raises(ConfigError, match=message):
        task.check("data")


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    latin = json.dumps({"prompt": "caf\u00e9", "answer": "1"}, ensure_ascii=False)
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "1"}\n' + latin.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError, match=r"bad.jsonl:2: expected UTF-8"):
        Dataset(path=str(path)).problems("train")
    path.write_text('\ufeff{"prompt": "a", "answer": "1"}\n' + latin, encoding="utf-8")
    assert len(_all(Dataset(path=str(path)), "train") or _all(Dataset(path=str(path)), "validation")) > 0


def test_a_problem_knows_where_it_stands(jsonl):
    task = Dataset(path=jsonl, **GSM8K, validation_share=0.2)
    for problem in task.problems("validation"):
        row = next(number for number, row in enumerate(ROWS, start=1) if row["question"] == problem.prompt[0]["content"])
        assert problem.place == f"{jsonl}:{row}"


def test_the_fingerprint_is_that_of_the_content(tmp_path, jsonl):
    """Equal for a file that was moved, another for one that was changed; without what is only trained on."""
    task, moved = Dataset(path=jsonl), Dataset(path=lines(tmp_path / "moved.jsonl", ROWS))
    assert isinstance(task, HasFingerprint)
    assert task.fingerprint("validation") == moved.fingerprint("validation") == task.fingerprint("train")
    lines(tmp_path / "moved.jsonl", [*ROWS[:-1], {**ROWS[-1], "answer": "#### 0"}])
    changed = moved.fingerprint("validation")
    assert task.fingerprint("validation") != changed
    held_out = lines(tmp_path / "held_out.jsonl", ROWS[:2])
    both = [Dataset(path=path, validation_path=held_out) for path in (jsonl, str(tmp_path / "moved.jsonl"))]
    assert both[0].fingerprint("validation") == both[1].fingerprint("validation") != changed
    assert both[0].fingerprint("train") != both[1].fingerprint("train")
    assert Dataset(path="nowhere.jsonl").fingerprint("train") == {"path": "nowhere.jsonl"}


def test_files_that_are_not_there_or_not_read(tmp_path, jsonl):
    with pytest.raises(ConfigError, match=r"data.path: no file '.*nowhere.jsonl'"):
        Dataset(path=str(tmp_path / "nowhere.jsonl")).check("data")
    with pytest.raises(ConfigError, match=r"ending in .jsonl or .parquet, found 'a.csv'"):
        Dataset(path="a.csv").check("data")
    with pytest.raises(ConfigError, match=r"data.validation_path"):
        Dataset(path=jsonl, validation_path="b.jsonl").check("data")
    (tmp_path / "no.parquet").write_text("text")
    pytest.importorskip("pyarrow")
    with pytest.raises(ConfigError, match="no parquet file"):
        Dataset(path=str(tmp_path / "no.parquet")).problems("train")


def test_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rlinf-envs\[datasets\]"):
        Dataset(path=str(tmp_path / "a.parquet")).check("data")


def test_limit_and_wrong_settings(jsonl):
    task = Dataset(path=jsonl, **GSM8K, limit=10, validation_share=0.4)
    assert len(task.problems("train")) + len(task.problems("validation")) == 10
    with pytest.raises(ConfigError, match="needs a chat template"):
        Dataset(path=jsonl, system="s", chat=False)
    with pytest.raises(ConfigError, match="limit"):
        Dataset(path=jsonl, limit=0)
