import itertools
from collections import Counter

import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.knowledge import KINDS, RELATIONS, Entity, Knowledge, KnowledgeBase, MultiHop, generated

SMALL = Knowledge(people=60, companies=12, cities=12, countries=10, seed=3)
BRIEF = Knowledge(people=60, companies=12, cities=12, countries=10, style="brief", values=False, seed=3)
SIZES = {"train": 200, "validation": 40}


def followed(base, question):
    """The answer, by the texts of the gold passages alone."""
    texts = {passage.id: passage.text for passage in base.passages}
    name = question.subject
    for relation, passage in zip(question.relations, question.passages, strict=True):
        told = dict(fact.split(" ") for fact in texts[passage].removeprefix(f"{name}: ").split(", "))
        name = told[relation]
    return name


def test_every_entity_has_all_facts_of_its_kind_and_they_lead_to_entities_of_the_right_kind():
    base = generated(SMALL)
    assert Counter(entity.kind for entity in base.entities) == {"person": 60, "company": 12, "city": 12, "country": 10}
    for entity in base.entities:
        known = {relation.name: relation for relation in RELATIONS if relation.kind == entity.kind}
        assert set(entity.facts) == set(known)
        for name, value in entity.facts.items():
            assert value != entity.name
            if known[name].to is None:
                assert value in known[name].values
            else:
                assert base[value].kind == known[name].to


def test_facts_never_lead_from_one_part_to_the_other():
    base = generated(SMALL)
    assert {(kind, split): len(base.of_kind(kind, split)) for kind in ("person", "city") for split in ("train", "validation")} == {
        ("person", "train"): 48,
        ("person", "validation"): 12,
        ("city", "train"): 10,
        ("city", "validation"): 2,
    }
    names = {entity.name: entity.split for entity in base.entities}
    linked = [(names[entity.name], names[value]) for entity in base.entities for value in entity.facts.values() if value in names]
    assert linked
    assert all(one == other for one, other in linked)


def test_who_leads_is_one_of_those_who_belong_there():
    base = generated(SMALL)
    for relation, back, kind in (("boss", "employer", "company"), ("mayor", "home", "city"), ("capital", "country", "country")):
        for entity in base.of_kind(kind):
            members = [other for other in base.entities if other.facts.get(back) == entity.name]
            assert not members or base[entity.facts[relation]] in members


def test_the_seed_decides_everything():
    assert generated(SMALL).entities == generated(Knowledge(people=60, companies=12, cities=12, countries=10, seed=3)).entities
    other = generated(Knowledge(people=60, companies=12, cities=12, countries=10, seed=4))
    assert {entity.name for entity in other.entities}.isdisjoint(entity.name for entity in generated(SMALL).entities)


def test_passages_tell_the_facts_of_their_entity():
    facts = {"country": "Velmi", "mayor": "Kila", "river": "Esk"}
    toko = Entity(name="Toko", kind="city", split="train", facts=facts)
    (passage,) = KnowledgeBase([toko]).passages
    assert (passage.id, passage.title) == ("city/Toko", "Toko")
    assert passage.text == "Toko is a city. Toko is in the country Velmi. The mayor of Toko is Kila. The river of Toko is the Esk."
    assert KnowledgeBase([toko], style="brief").passages[0].text == "Toko: country Velmi, mayor Kila, river Esk"
    assert KnowledgeBase([toko], style="brief", values=False).passages[0].text == "Toko: country Velmi, mayor Kila"
    with pytest.raises(ConfigError, match="2 entities have 1 names"):
        KnowledgeBase([toko, toko])


def test_gold_passages_lead_to_the_answer():
    task = MultiHop(knowledge=BRIEF, **SIZES)
    questions = [*task.asked("train"), *task.asked("validation")]
    assert Counter(len(question.relations) for question in questions).keys() == {1, 2, 3}
    for question in questions:
        assert followed(generated(BRIEF), question) == question.answer
        assert question.answer not in str(question)


def test_no_entity_is_needed_in_both_splits():
    task = MultiHop(knowledge=SMALL, **SIZES)
    train, held_out = ({name for q in task.asked(split) for name in q.stations} for split in ("train", "validation"))
    assert train
    assert held_out
    assert train.isdisjoint(held_out)
    assert len(set(task.asked("train"))) == SIZES["train"]


def test_questions_are_the_same_however_many_are_asked_for():
    assert (
        MultiHop(knowledge=SMALL, train=50, validation=40).problems("train")
        == MultiHop(knowledge=SMALL, **SIZES).problems("train")[:50]
    )


def test_a_question_in_both_styles():
    brief = MultiHop(knowledge=BRIEF, hops=(2,), **SIZES)
    question, problem = brief.asked("train")[0], brief.problems("train")[0]
    first, second = question.relations
    assert problem.prompt == f"{second} of {first} of {question.subject}?"
    assert problem.place == ", ".join(question.passages)
    (message,) = MultiHop(knowledge=SMALL, hops=(2,), **SIZES).problems("train")[0].prompt
    assert message["content"].count(" of the ") == 1


def test_worked_examples_look_up_one_entity_after_the_other():
    problems = MultiHop(knowledge=BRIEF, hops=(3,), titles=False, worked_share=0.5, **SIZES).problems("train")
    questions = MultiHop(knowledge=BRIEF, hops=(3,), **SIZES).asked("train")
    worked = [(p, q) for p, q in zip(problems, questions, strict=True) if len(p.turns) > 1]
    assert 0.35 < len(worked) / len(problems) < 0.65
    for problem, question in worked:
        assert [turn.calls[0].arguments["query"] for turn in problem.turns[:-1]] == list(question.stations)
        for turn, following in itertools.pairwise((*question.stations, question.answer)):
            text = problem.turns[question.stations.index(turn)].results[0].text
            assert text.startswith(f"{turn}: ")
            assert following in text
    assert all(p.turns[-1].text == f"<answer>{p.answer}</answer>" for p in problems)


def test_who_does_not_search_may_say_that_the_answer_is_unknown():
    problems = MultiHop(knowledge=BRIEF, hops=(3,), worked_share=0.5, unsearched="unknown", **SIZES).problems("train")
    for problem in problems:
        said = problem.answer if len(problem.turns) > 1 else "unknown"
        assert problem.turns[-1].text == f"<answer>{said}</answer>"
    assert {len(problem.turns) for problem in problems} == {1, 4}


def test_shuffled_facts_stand_at_every_place_and_say_the_same():
    """In a fixed order a relation is known by its distance from the end of a passage, and what it is called need not be read."""
    fixed = generated(Knowledge(people=600, style="brief", values=False))
    base = generated(Knowledge(people=600, style="brief", values=False, shuffled=True))
    orders = Counter[tuple[str, ...]]()
    for entity in base.of_kind("person"):
        assert entity.facts == fixed[entity.name].facts
        told = base.passage(entity).text.removeprefix(f"{entity.name}: ").split(", ")
        assert sorted(told) == sorted(fixed.passage(fixed[entity.name]).text.removeprefix(f"{entity.name}: ").split(", "))
        orders[tuple(fact.split(" ")[0] for fact in told)] += 1
    # 600 / 6 = 100 of each order, with a standard deviation of 9.
    assert len(orders) == 6
    assert min(orders.values()) > 60
    assert len({tuple(entity.facts) for entity in fixed.of_kind("person")}) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"countries": 4}, r"^countries: expected at least 2 in each part, found 3 to train on, 1 held out"),
        ({"syllables": 1}, r"^syllables: expected twice as many names as entities, found 1320 entities and 100 names"),
        ({"held_out": 0.0}, r"^held_out: "),
    ],
)
def test_what_is_refused_of_a_knowledge_base(changed, said):
    with pytest.raises(ConfigError, match=said):
        Knowledge(**changed)


def test_what_is_refused_of_questions():
    with pytest.raises(ConfigError, match=r"^hops: expected different numbers from 1 to 6, found \[0\]"):
        MultiHop(hops=(0,))
    with pytest.raises(ConfigError, match=r"^multi_hop\.validation: expected 5000 different problems, found \d+"):
        MultiHop(knowledge=BRIEF, hops=(1,), validation=5000).asked("validation")


def test_the_kinds_are_those_that_relations_speak_of():
    assert {relation.kind for relation in RELATIONS} == set(KINDS)
    assert len({relation.name for relation in RELATIONS}) == len(RELATIONS)


def test_names_without_capitals_are_the_same_names():
    large, small = (generated(Knowledge(lower_case=lower)) for lower in (False, True))
    assert [entity.name.lower() for entity in large.entities] == [entity.name for entity in small.entities]
    assert large.entities[0].name != small.entities[0].name
