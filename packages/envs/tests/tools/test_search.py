import asyncio
import json
import math
import random
from importlib.util import find_spec

import pytest

from rlinf.core.agents import ToolBox, ToolCall
from rlinf.core.errors import CheckpointError, ConfigError, MissingExtra
from rlinf.envs.knowledge import Knowledge, MultiHop, generated
from rlinf.envs.tools import Embedding, Search

if find_spec("bm25s") is None:
    pytest.skip("needs rlinf-envs[search]", allow_module_level=True)

LIBRARY = [
    {"id": "a", "title": "Goethe", "text": "He wrote a Faust."},
    {"id": "b", "title": "Weimar", "text": "A town with a park."},
    {"id": "c", "title": "Marlowe", "text": "He wrote a Doctor Faustus, long before Goethe."},
]
BRIEF = Knowledge(people=300, companies=40, cities=30, countries=10, syllables=2, style="brief", values=False)


def library(tmp_path, rows, name="library.jsonl"):
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def called(search, query):
    return asyncio.run(ToolBox([search.build()]).call(ToolCall(name="search", arguments={"query": query})))


def bm25(texts, query, k1=1.2, b=0.75):
    """The scores by the formula of Lucene: Σ idf · f / (f + k1 (1 − b + b · length / mean length))."""
    words = [text.lower().replace(".", "").replace(",", "").split() for text in texts]
    mean = sum(map(len, words)) / len(words)
    scores = []
    for own in words:
        score = 0.0
        for word in query.lower().split():
            having = sum(word in other for other in words)
            frequency = own.count(word)
            if frequency:
                idf = math.log(1 + (len(words) - having + 0.5) / (having + 0.5))
                score += idf * frequency / (frequency + k1 * (1 - b + b * len(own) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_the_formula(seed, tmp_path):
    generator = random.Random(seed)
    words = ["ada", "bela", "cora", "dina", "emma", "fria", "gina"]
    rows = [{"text": " ".join(generator.choices(words, k=generator.randint(2, 12)))} for _ in range(40)]
    query = " ".join(generator.sample(words, 3))
    search = Search(corpus=library(tmp_path, rows), results=40)
    scores = bm25([row["text"] for row in rows], query)
    found = [int(passage.id) for passage in search.find(query)]
    assert sorted(found) == [number for number, score in enumerate(scores) if score > 0]
    assert [scores[number] for number in found] == pytest.approx(sorted((s for s in scores if s > 0), reverse=True), abs=1e-6)
    assert [int(passage.id) for passage in Search(corpus=library(tmp_path, rows), results=3).find(query)] == found[:3]


def test_equals_come_in_the_order_of_the_corpus(tmp_path):
    path = library(tmp_path, [{"text": f"same words {'x' if n == 7 else 'y'}y"} for n in range(20)])
    assert [passage.id for passage in Search(corpus=path, results=4).find("same words")] == ["0", "1", "2", "3"]


def test_what_the_model_reads(tmp_path):
    path = library(tmp_path, LIBRARY)
    assert called(Search(corpus=path, results=2), "goethe").text == (
        "Doc 1(Title: Goethe) He wrote a Faust.\nDoc 2(Title: Marlowe) He wrote a Doctor Faustus, long before Goethe."
    )
    assert called(Search(corpus=path, results=1, titles=False), "park").text == "A town with a park."
    nothing = called(Search(corpus=path), "Shakespeare")
    assert (nothing.text, nothing.outcome) == ("nothing found", "ok")
    assert called(Search(corpus=path), "?!").text == "nothing found"
    assert asyncio.run(ToolBox([Search(corpus=path).build()]).call(ToolCall(name="search"))).text.startswith(
        "error: missing argument"
    )


def test_rows_as_search_r1_has_them(tmp_path):
    rows = [{"id": 4, "contents": '"Weimar"\nA town with a park.'}, {"id": 5, "contents": "One line."}]
    (found,) = Search(corpus=library(tmp_path, rows)).find("town")
    assert (found.id, found.title, found.text) == ("4", "Weimar", "A town with a park.")
    (found,) = Search(corpus=library(tmp_path, rows)).find("line")
    assert (found.title, found.text) == ("", "One line.")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], r"^corpus: expected at least one passage"),
        ([{"title": "x"}], r"library\.jsonl:1: no field 'text'"),
        ([{"text": "x"}, {"text": ["y"]}], r"library\.jsonl:2 text: expected a text or a number"),
        ([{"id": 1, "text": "x"}, {"id": 1, "text": "y"}], r"^corpus: two passages have the id '1'"),
    ],
)
def test_a_corpus_that_is_refused(rows, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        Search(corpus=library(tmp_path, rows)).find("x")


def test_what_is_not_there_is_refused_early(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"^agent\.tools\[0\]\.corpus: no file '/nowhere\.jsonl'"):
        Search(corpus="/nowhere.jsonl").check("agent.tools[0]")
    with pytest.raises(ConfigError, match=r"^t\.embedding\.model_path: no model in"):
        Search(embedding=Embedding(model_path=str(tmp_path))).check("t")
    with pytest.raises(ConfigError, match=r"^t\.corpus: expected a file ending in"):
        Search(corpus=library(tmp_path, LIBRARY, "library.txt")).check("t")
    Search(corpus=library(tmp_path, LIBRARY)).check("t")
    monkeypatch.setattr("rlinf.core.registry.is_there", lambda module: module != "bm25s")
    with pytest.raises(MissingExtra, match=r"the module 'bm25s' is not installed"):
        Search().check("t")


def test_worked_examples_say_what_the_tool_says():
    search = Search(knowledge=BRIEF, results=1, titles=False)
    for titles in (False, True):
        task = MultiHop(knowledge=BRIEF, titles=titles, worked_share=1.0, train=200, validation=20)
        search = Search(knowledge=BRIEF, results=1, titles=titles)
        turns = [turn for problem in task.problems("train") for turn in problem.turns if turn.calls]
        assert len(turns) > 300
        for turn in turns:
            assert called(search, turn.calls[0].arguments["query"]).text == turn.results[0].text


def test_every_entity_is_found_by_its_name():
    search, base = Search(knowledge=BRIEF, results=1), generated(BRIEF)
    assert [search.find(entity.name)[0].title for entity in base.entities] == [entity.name for entity in base.entities]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A folder with a random BERT of transformers that knows whole words."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="needs rlinf-envs[embedding]")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = sorted(
        {word for row in LIBRARY for word in f"{row['title']} {row['text']} query passage : ?".replace(".", " .").split()}
    )
    entries = {word: number for number, word in enumerate(["[PAD]", "[UNK]", ",", *words])}
    own = Tokenizer(WordLevel(entries, unk_token="[UNK]"))
    own.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("embedder")
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(entries), **sizes)).save_pretrained(folder)
    return str(folder)


def test_a_model_of_embeddings_finds_what_reads_the_same(embedder, tmp_path):
    plain = Embedding(model_path=embedder, query_prefix="", passage_prefix="", batch_size=2)
    search = Search(corpus=library(tmp_path, LIBRARY), results=3, embedding=plain)
    search.check("t")
    for row in LIBRARY:
        found = search.find(f"{row['title']}\n{row['text']}")
        assert found[0].id == row["id"]
        assert len(found) == 3
    assert called(search, "Weimar A town with a park.").text.startswith("Doc 1(Title: Weimar) A town with a park.\nDoc 2")


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_do_not_depend_on_what_is_beside_them(embedder, pooling):
    import torch

    from rlinf.envs.tools._embeddings import VectorIndex

    config = Embedding(model_path=embedder, pooling=pooling)
    index = VectorIndex(["Faust", "A town with a park ."], config)
    short, long = index.vectors(["passage : Faust", "passage : A town with a park ."])
    torch.testing.assert_close(index._vectors, torch.stack([index.vectors(["passage: Faust"])[0], long]))
    torch.testing.assert_close(index.vectors(["passage : Faust"])[0], short)
    given = index._tokenizer(["passage : Faust"], return_tensors="pt")
    with torch.inference_mode():
        hidden = index._model(**given).last_hidden_state[0]
    expected = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    torch.testing.assert_close(short, expected / expected.norm())


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}")
    search = Search(corpus=library(tmp_path, LIBRARY), embedding=Embedding(model_path=str(tmp_path)))
    with pytest.raises(CheckpointError, match=r"^embedding\.model_path: no model in"):
        search.find("x")


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"^results: "):
        Search(results=0)
    with pytest.raises(ConfigError, match=r"^pooling: expected mean, cls or last, found 'max'"):
        Embedding(model_path="x", pooling="max")
