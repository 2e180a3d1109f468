"""Reading a mapping into a dataclass: what is accepted, and every way of being wrong."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.config import expect_at_least, expect_range, expect_seconds, read
from rlinf.core.errors import ConfigError, ConfigErrors, refuse


@dataclass(frozen=True)
class Optimizer:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Actor:
    optimizer: Optimizer
    steps: int = 1
    name: str = "actor"
    offload: bool = False
    strategy: Literal["fsdp", "ddp"] = "fsdp"
    hidden: list[int] = field(default_factory=lambda: [64])
    sizes: tuple[int, ...] = ()
    seed: int | None = None
    clip: float | Literal["off"] = "off"
    tasks: int | tuple[int, ...] | dict[str, int] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    layers: Sequence[Optimizer] = ()
    weights: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError("steps", f"expected at least 1, found {self.steps}", "Use 1 or more.")
        if self.name == "bad":
            raise ValueError("no such actor")


GOOD: dict[str, Any] = {"optimizer": {"lr": 1e-3}}


def fault(changes: Mapping[str, Any]) -> str:
    """The message that a change of the good configuration causes."""
    with pytest.raises(ConfigError) as caught:
        read(Actor, {**GOOD, **changes}, place="actor")
    return str(caught.value)


def test_defaults_and_nesting() -> None:
    assert read(Actor, GOOD) == Actor(optimizer=Optimizer(lr=1e-3))


def test_everything_given() -> None:
    data = {
        "optimizer": {"lr": 1, "betas": [0.5, 1]},
        "steps": 3,
        "name": "a",
        "offload": True,
        "strategy": "ddp",
        "hidden": [1, 2],
        "sizes": [3, 4, 5],
        "seed": None,
        "clip": 2,
        "extra": {"anything": [1, {"x": None}]},
        "layers": [{"lr": 2}],
        "weights": {"a": 1, 2: 1},  # as YAML reads `2: 1`
    }
    actor = read(Actor, data)
    assert actor.optimizer == Optimizer(lr=1.0, betas=(0.5, 1.0))
    assert isinstance(actor.optimizer.lr, float)
    assert (actor.hidden, actor.sizes, actor.clip) == ([1, 2], (3, 4, 5), 2.0)
    assert actor.extra == {"anything": [1, {"x": None}]}
    assert list(actor.layers) == [Optimizer(lr=2.0)]
    assert actor.weights == {"a": 1.0, "2": 1.0}


def test_the_data_is_not_changed() -> None:
    data = {"optimizer": {"lr": 1}, "hidden": [1]}
    read(Actor, data).hidden.append(2)
    assert data == {"optimizer": {"lr": 1}, "hidden": [1]}


def test_unknown_key_has_the_nearest_name() -> None:
    assert fault({"optimiser": 1}).startswith("actor.optimiser: unknown key. Did you mean 'optimizer'? Known: ")


def test_unknown_nested_key_has_its_path() -> None:
    assert fault({"optimizer": {"lr": 1, "beta": 1}}).startswith("actor.optimizer.beta: unknown key. Did you mean 'betas'?")


def test_missing_key() -> None:
    assert fault({"optimizer": {}}) == "actor.optimizer.lr: missing. Expected a number."


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", "3", "actor.steps: expected a whole number, found '3' (str)"),
        ("steps", 3.0, "actor.steps: expected a whole number, found 3.0 (float)"),
        ("steps", True, "actor.steps: expected a whole number, found True (bool)"),
        ("name", 3, "actor.name: expected text, found 3 (int)"),
        ("name", None, "actor.name: expected text, found None (NoneType)"),
        ("offload", "yes", "actor.offload: expected true or false, found 'yes' (str)"),
        ("offload", 1, "actor.offload: expected true or false, found 1 (int)"),
        ("seed", "x", "actor.seed: expected a whole number, found 'x' (str)"),
        ("hidden", 3, "actor.hidden: expected a list, found 3. Write it as [a, b]."),
        ("hidden", "64", "actor.hidden: expected a list, found '64'. Write it as [a, b]."),
        ("hidden", [1, "x"], "actor.hidden[1]: expected a whole number, found 'x' (str)"),
        ("sizes", [1, None], "actor.sizes[1]: expected a whole number, found None (NoneType)"),
        ("extra", [1], "actor.extra: expected a section, found [1]"),
        ("weights", {"a": "x"}, "actor.weights.a: expected a number, found 'x' (str)"),
        ("weights", {0.5: 1}, "actor.weights: expected text as keys, found 0.5 (float). Write it in quotes: '0.5'."),
        ("extra", {True: 0.5}, "actor.extra: expected text as keys, found True (bool). Write it in quotes: 'True'."),
        ("layers", [{"lr": 1}, {}], "actor.layers[1].lr: missing. Expected a number."),
        ("optimizer", 3, "actor.optimizer: expected a section, found 3. Its keys are lr, betas."),
        ("optimizer", {"lr": True}, "actor.optimizer.lr: expected a number, found True (bool)"),
        ("optimizer", {"lr": 1, "betas": [1]}, "actor.optimizer.betas: expected 2 values, found 1"),
        ("strategy", "fdsp", "actor.strategy: no choice 'fdsp'. Did you mean 'fsdp'? Choices: ddp, fsdp."),
        ("steps", 0, "actor.steps: expected at least 1, found 0. Use 1 or more."),
        ("name", "bad", "actor: no such actor"),
    ],
)
def test_one_fault(key: str, value: object, message: str) -> None:
    assert fault({key: value}) == message


def test_a_union_names_all_members() -> None:
    assert fault({"clip": "on"}) == "actor.clip: expected a number or 'off', found 'on'"
    assert fault({"tasks": "abc"}) == "actor.tasks: expected a whole number or a list or a section or null, found 'abc'"


def test_all_faults_are_reported_together() -> None:
    text = fault({"steps": "x", "nam": "a", "optimizer": {}})
    assert text.startswith("actor: 3 faults\n")
    for path in ("actor.steps: ", "actor.nam: ", "actor.optimizer.lr: "):
        assert f"\n  {path}" in text


def test_faults_exit_with_two() -> None:
    with pytest.raises(ConfigError) as caught:
        read(Actor, {})
    assert caught.value.exit_code == 2
    assert str(caught.value) == "optimizer: missing. Expected a section."


def test_what_the_caller_has_refused_is_told_with_the_rest_and_once() -> None:
    @dataclass(frozen=True)
    class Pair:
        left: int
        right: int = 0

        def __post_init__(self) -> None:
            raise AssertionError("it was not read as a whole")

    unknown = ConfigError("p.lft", "unknown key")
    told = {"left": [ConfigError("p.left.of", "is wrong"), unknown], "right": [unknown]}
    with pytest.raises(ConfigErrors) as caught:
        read(Pair, {"lft": 1, "rigth": 2}, place="p", refused=told)
    assert [fault.place for fault in caught.value.faults] == ["p.left.of", "p.lft", "p.rigth"]
    with pytest.raises(ConfigError, match=r"p\.left\.of: is wrong"):
        read(Pair, {"right": 1}, place="p", refused={"left": told["left"][:1]})


def test_allowed_keys_are_skipped_and_hinted() -> None:
    assert read(Optimizer, {"lr": 1, "name": "adam"}, allowed=["name"]) == Optimizer(lr=1.0)
    with pytest.raises(ConfigError, match="Did you mean 'name'"):
        read(Optimizer, {"lr": 1, "nam": "adam"}, allowed=["name"])


WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.floats(allow_nan=False, allow_infinity=False), WHOLE, st.text(), st.booleans(), st.lists(WHOLE))
def test_well_typed_values_pass_unchanged(lr: float, seed: int, name: str, offload: bool, hidden: list[int]) -> None:
    name = name if name != "bad" else "good"
    actor = read(Actor, {"optimizer": {"lr": lr}, "seed": seed, "name": name, "offload": offload, "hidden": hidden})
    assert (actor.optimizer.lr, actor.seed, actor.name, actor.offload, actor.hidden) == (lr, seed, name, offload, hidden)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Actor.__dataclass_fields__, "other"]), JSON))
def test_whatever_is_written_is_read_or_refused(data: dict[str, Any]) -> None:
    try:
        read(Actor, data, place="actor")
    except ConfigError as error:
        assert str(error).startswith("actor")  # noqa: PT017 - the property is about refusals only


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(value: float) -> None:
    assert fault({"optimizer": {"lr": value}}) == f"actor.optimizer.lr: expected a finite number, found {value}"
    assert fault({"weights": {"a": value}}).startswith("actor.weights.a: expected a finite number")
    assert fault({"clip": value}).startswith("actor.clip: expected a finite number")
    assert (
        fault({"extra": {"sizes": [1, {"deep": value}]}}) == f"actor.extra.sizes[1].deep: expected a finite number, found {value}"
    )


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**40])
def test_a_whole_number_beyond_64_bits_is_refused(value: int) -> None:
    assert fault({"steps": value}) == f"actor.steps: expected a whole number of 64 bits, found {value}"
    assert fault({"optimizer": {"lr": 10**400}}).startswith("actor.optimizer.lr: expected a whole number of 64 bits")


def test_faults_of_sections_within_sections_are_one_list() -> None:
    first, second, third = (ConfigError(name, "wrong") for name in "abc")
    with pytest.raises(ConfigErrors) as caught:
        refuse([ConfigErrors("x", [first, second]), third])
    assert str(caught.value) == "configuration: 3 faults\n  a: wrong\n  b: wrong\n  c: wrong"
    assert [str(f) for f in pickle.loads(pickle.dumps(caught.value)).faults] == ["a: wrong", "b: wrong", "c: wrong"]
    with pytest.raises(ConfigError) as alone:
        refuse([third])
    assert alone.value is third
    refuse([])


@dataclass(frozen=True)
class Checked:
    a: int = 0
    b: int = 0

    def __post_init__(self) -> None:
        refuse([ConfigError(name, "must be 0", "Leave it out.") for name in ("a", "b") if getattr(self, name)], place="checked")


def test_several_faults_of_a_dataclass_itself_keep_their_paths() -> None:
    with pytest.raises(ConfigErrors) as caught:
        read(Checked, {"a": 1, "b": 1}, place="actor.checked")
    assert [str(fault) for fault in caught.value.faults] == [
        "actor.checked.a: must be 0. Leave it out.",
        "actor.checked.b: must be 0. Leave it out.",
    ]


@dataclass(frozen=True)
class Chosen:
    number: Literal[1, "one"] | None = None
    flag: Literal[True] | None = None


@pytest.mark.parametrize(("key", "value"), [("number", True), ("number", 1.0), ("flag", 1)])
def test_a_choice_is_of_its_own_type(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: no choice '{value}'"):
        read(Chosen, {key: value})
    assert read(Chosen, {"number": 1, "flag": True}) == Chosen(1, True)


def test_a_range_is_closed_unless_it_is_open() -> None:
    expect_range("gamma", None, 0.0, 1.0)
    for value in (0.0, 1.0):
        expect_range("gamma", value, 0.0, 1.0)
    for value, options in ((0.0, {"open_low": True}), (1.0, {"open_high": True}), (math.nan, {}), (-0.1, {}), (1.1, {})):
        with pytest.raises(ConfigError, match=r"gamma: expected a value in [\[(]0, 1[\])], found"):
            expect_range("gamma", value, 0.0, 1.0, **options)
    with pytest.raises(ConfigError, match=r"n: expected at least 1, found 0"):
        expect_range("n", 0, 1)
    with pytest.raises(ConfigError, match=r"gamma: expected a number, found '0\.9'"):
        expect_range("gamma", cast("Any", "0.9"), 0.0, 1.0)
    with pytest.raises(ConfigError, match=r"timeout_s: expected a value in \(0, 1e\+09\], found 1e\+30"):
        expect_seconds("timeout_s", 1e30)


def test_a_bound_is_kept_and_what_to_do_is_told() -> None:
    for value in (None, 2, 2.5):
        expect_at_least("n", value, 2)
    for value in (1, math.nan):
        with pytest.raises(ConfigError, match=rf"n: expected at least 2, found {value}\. Raise it"):
            expect_at_least("n", value, 2, "Raise it.")
