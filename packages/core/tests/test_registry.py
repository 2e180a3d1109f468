"""The registry: decorators, entry points of a real distribution, the escape, and every way of being wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rlinf.core.errors import ConfigError, DuplicateName, MissingExtra, UnknownName
from rlinf.core.registry import Registry

Install = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Clip:
    low: float = 0.2
    high: float = 0.2


def plain() -> float:
    return 1.0


@pytest.fixture
def losses() -> Registry[object]:
    registry: Registry[object] = Registry("policy loss", "rlinf.test_losses")
    registry.register("ppo_clip")(Clip)
    registry.register("plain")(plain)
    return registry


def test_a_decorator_returns_what_it_registers(losses: Registry[object]) -> None:
    assert losses.register("again")(plain) is plain
    assert losses.get("ppo_clip") is Clip
    assert losses.names() == ["again", "plain", "ppo_clip"]
    assert losses.owner("ppo_clip") == f"{__name__}:Clip"


def test_an_unknown_name_has_the_place_the_nearest_and_all(losses: Registry[object]) -> None:
    with pytest.raises(UnknownName) as caught:
        losses.get("ppo_clipp", place="algorithm.loss_type")
    assert str(caught.value) == (
        "algorithm.loss_type: no policy loss named 'ppo_clipp'. Did you mean 'ppo_clip'? Installed: plain, ppo_clip."
    )


def test_what_never_met_what_it_adapts_is_listed_as_such(install: Install) -> None:
    install("bold", "[rlinf.test_bold]\nsim = bold.unverified.sim:Sim\nsimple = bold:unverified\n", "def unverified(): ...\n")
    registry: Registry[object] = Registry("environment", "rlinf.test_bold")
    assert registry.unverified() == ["sim"]
    with pytest.raises(UnknownName, match=r"Did you mean 'sim'\? Installed: sim \(unverified\), simple\.$"):
        registry.get("sin")


def test_a_name_claimed_twice_names_both_owners(losses: Registry[object]) -> None:
    with pytest.raises(DuplicateName) as caught:
        losses.register("plain")(Clip)
    assert str(caught.value) == f"policy loss 'plain': claimed by {__name__}:plain and by {__name__}:Clip. Rename one of the two."
    assert losses.get("plain") is plain


def test_upper_and_lower_case_are_one_name(losses: Registry[object]) -> None:
    assert losses.register("Mine", Clip) is Clip
    assert losses.get("MINE") is losses.get("mine") is losses.get("Mine") is Clip
    assert losses.owner("mInE") == f"{__name__}:Clip"
    with pytest.raises(DuplicateName, match="policy loss 'mine': claimed by"):
        losses.register("mine", plain)
    with pytest.raises(UnknownName, match=r"no policy loss named 'PPO_CLIPP'\. Did you mean 'ppo_clip'"):
        losses.get("PPO_CLIPP")


def test_the_same_thing_may_claim_its_name_again(losses: Registry[object]) -> None:
    losses.register("plain")(plain)
    assert losses.get("plain") is plain


def test_build_reads_the_parameters_of_a_dataclass(losses: Registry[object]) -> None:
    assert losses.build("ppo_clip", {"high": 0.28}, place="loss") == Clip(high=0.28)
    assert losses.build("ppo_clip", {"high": 1, "type": "ppo_clip"}, place="loss", allowed=["type"]) == Clip(high=1.0)
    with pytest.raises(ConfigError, match=r"^loss\.hihg: unknown key\. Did you mean 'high'\?"):
        losses.build("ppo_clip", {"hihg": 0.28}, place="loss")


def test_build_of_anything_else_takes_no_parameters(losses: Registry[object]) -> None:
    assert losses.build("plain", {}, place="loss") is plain
    assert losses.build("plain", {"type": "plain"}, place="loss", allowed=["type"]) is plain
    with pytest.raises(ConfigError, match=r"^loss\.high: the policy loss 'plain' takes no parameters"):
        losses.build("plain", {"high": 1}, place="loss")


def test_a_path_is_imported(losses: Registry[object]) -> None:
    assert losses.get("collections:OrderedDict").__name__ == "OrderedDict"  # type: ignore[attr-defined]
    assert "collections:OrderedDict" not in losses.names()
    with pytest.raises(UnknownName, match=r"^loss: no policy loss at 'collections:Nothing'"):
        losses.get("collections:Nothing", place="loss")
    remedy = r"needs the module 'no_such_module'\. Run from the folder that has it"
    with pytest.raises(MissingExtra, match=rf"^loss: .* {remedy}"):
        losses.get("no_such_module:Loss", place="loss")


def test_an_installed_package_registers_by_entry_point(install: Install) -> None:
    install("strange_a", "[rlinf.test_losses]\nmine = strange_a:Mine\n", "class Mine: ...")
    registry: Registry[type] = Registry("policy loss", "rlinf.test_losses")
    assert registry.names() == ["mine"]
    assert registry.owner("mine") == "strange_a:Mine"
    assert registry.get("mine").__name__ == "Mine"


def test_an_entry_point_is_loaded_only_when_asked_for(install: Install) -> None:
    install("strange_b", "[rlinf.test_losses]\nmine = strange_b:Mine\n", "import not_installed_anywhere")
    registry: Registry[type] = Registry("policy loss", "rlinf.test_losses")
    assert registry.names() == ["mine"]
    with pytest.raises(MissingExtra, match=r"needs the module 'not_installed_anywhere'\. It is provided by strange_b:Mine"):
        registry.get("mine")


def test_a_fault_inside_a_module_is_no_wrong_path(install: Install) -> None:
    install("strange_f", "[rlinf.test_losses]\nmine = strange_f:Mine\nother = strange_f:other\n", "import re\nre.no_such_thing")
    registry: Registry[type] = Registry("policy loss", "rlinf.test_losses")
    for name in ("mine", "strange_f:Mine"):
        found = rf"loss: .* '{name}' is in the module 'strange_f', which fails while it is imported: "
        with pytest.raises(ConfigError, match=found + r".*'re' has no attribute 'no_such_thing' \(.*strange_f\.py:2\)\. Mend it"):
            registry.get(name, place="loss")


def test_a_module_that_is_no_python(install: Install) -> None:
    install("strange_g", "", "x = 1\ndef mine() return 1\n")
    with pytest.raises(ConfigError, match=r"SyntaxError: expected ':' \(.*strange_g\.py:2\)\. Mend it"):
        Registry("policy loss", "rlinf.test_losses").get("strange_g:mine", place="loss")


def test_two_packages_that_claim_one_name(install: Install) -> None:
    install("strange_c", "[rlinf.test_losses]\nmine = strange_c:Mine\n", "class Mine: ...")
    install("strange_d", "[rlinf.test_losses]\nmine = strange_d:Mine\n", "class Mine: ...")
    registry: Registry[type] = Registry("policy loss", "rlinf.test_losses")
    with pytest.raises(DuplicateName, match=r"claimed by strange_[cd]:Mine and by strange_[cd]:Mine"):
        registry.names()
    with pytest.raises(DuplicateName):
        registry.get("mine")


def test_a_script_may_not_take_the_name_of_a_package(install: Install) -> None:
    install("strange_e", "[rlinf.test_losses]\nmine = strange_e:Mine\n", "class Mine: ...")
    registry: Registry[object] = Registry("policy loss", "rlinf.test_losses")
    with pytest.raises(DuplicateName, match=f"claimed by strange_e:Mine and by {__name__}:plain"):
        registry.register("mine")(plain)


@pytest.mark.parametrize("name", [5, 1.5, [], None, True, {"ppo_clip": 1}])
def test_what_is_no_name_is_refused_with_the_installed_ones(losses: Registry[object], name: object) -> None:
    message = r"loss_type: expected the name of a policy loss, found .*Installed: plain, ppo_clip"
    with pytest.raises(UnknownName, match=message):
        losses.get(name, place="loss_type")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=message):
        losses.build(name, {}, place="loss_type")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ":", "os:", ":path", "os.path:", "no such module:x", "..:x"])
def test_a_malformed_name_is_a_configuration_error(losses: Registry[object], name: str) -> None:
    with pytest.raises(ConfigError, match="loss_type"):
        losses.get(name, place="loss_type")


def test_a_package_says_what_to_use_for_a_word_that_is_no_name(install: Install) -> None:
    install(
        "wordy",
        "[rlinf.test_worded]\nppo_clip = wordy:plain\n"
        "[rlinf.hints]\nrlinf.test_worded = wordy:HINTS\nrlinf.test_losses = absent:X\n",
        "HINTS = {'grpo': \"'grpo' is an advantage; use 'ppo_clip'.\"}\ndef plain():\n    return 1.0\n",
    )
    registry: Registry[object] = Registry("policy loss", "rlinf.test_worded")
    with pytest.raises(UnknownName) as caught:
        registry.get("GRPO", place="algorithm.loss_type")
    assert str(caught.value) == (
        "algorithm.loss_type: no policy loss named 'GRPO'. 'grpo' is an advantage; use 'ppo_clip'. Installed: ppo_clip."
    )
    with pytest.raises(UnknownName, match="Did you mean 'ppo_clip'"):
        registry.get("ppo_clp")
    with pytest.raises(UnknownName, match="Installed: none"):
        Registry[object]("policy loss", "rlinf.test_losses").get("grpo")
