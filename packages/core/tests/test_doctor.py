"""What `rlinf doctor` finds, by distributions and examinations that are made up."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core import doctor
from rlinf.core.doctor import Finding
from rlinf.core.errors import UnknownName
from rlinf.core.registry import Registry

VERSIONS = {"rlinf-core": "0.1.0", "numpy": "2.4.6", "torch": "2.15.0+cpu", "mujoco": "3.12.0"}


@pytest.fixture
def examinations(monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    made: Registry[Any] = Registry("examination", "rlinf.doctor.of_a_test")
    monkeypatch.setattr(doctor, "EXAMINATIONS", made)
    return made


def installed(monkeypatch: pytest.MonkeyPatch, *requires: str) -> dict[str, Finding]:
    part = SimpleNamespace(name="rlinf-envs", requires=list(requires))
    monkeypatch.setattr(doctor, "distributions", lambda: [part, SimpleNamespace(name="numpy", requires=["torch"])])
    monkeypatch.setattr(doctor, "_installed", VERSIONS.get)
    return {finding.subject: finding for finding in doctor.extras()}


def test_extras_are_there_with_their_versions_or_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    found = installed(
        monkeypatch,
        "rlinf-core<0.2,>=0.1",
        "rlinf-envs[genesis]; extra == 'all'",
        "numpy>=1.26",
        "torch>=2.6 ; extra == 'world-model'",
        "torch>=2.6; extra == 'genesis'",
        "genesis-world[gpu]<1.5,>=1.4.5; extra == 'genesis'",
    )
    assert list(found) == ["rlinf-envs", "rlinf-envs[world-model]", "rlinf-envs[genesis]"]
    assert (found["rlinf-envs"].state, found["rlinf-envs"].told) == ("ok", "rlinf-core 0.1.0, numpy 2.4.6")
    assert (found["rlinf-envs[world-model]"].state, found["rlinf-envs[world-model]"].told) == ("ok", "torch 2.15.0+cpu")
    assert found["rlinf-envs[genesis]"].state == "no"
    assert found["rlinf-envs[genesis]"].told.startswith("without genesis-world: ")
    assert "install" in found["rlinf-envs[genesis]"].told or "uv" in found["rlinf-envs[genesis]"].told


def test_another_version_than_wanted_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody upgraded it behind the back of whoever resolved the environment."""
    found = installed(monkeypatch, "mujoco<3.11,>=3.3; extra == 'mujoco'")["rlinf-envs[mujoco]"]
    assert (found.state, found.told) == ("FAULT", "mujoco 3.12.0, wanted <3.11,>=3.3")
    assert "rlinf-envs[mujoco]" in found.remedy
    found = installed(monkeypatch, "rlinf-core<0.3,>=0.2")["rlinf-envs"]
    assert (found.state, found.told) == ("FAULT", "rlinf-core 0.1.0, wanted <0.3,>=0.2"), "a part of ours that was left behind"


def test_what_every_run_needs_is_a_fault_if_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed(monkeypatch, "gymnasium>=1.1")["rlinf-envs"].state == "FAULT"


@pytest.mark.parametrize(
    ("number", "bounds", "kept"),
    [
        ("2.6", ">=2.6", True),
        ("2.6.0", ">=2.6", True),
        ("2.10.0", ">=2.9", True),
        ("2.5.9", ">=2.6", False),
        ("3.11", ">=3.3,<3.11", False),
        ("3.10.9", ">=3.3,<3.11", True),
        ("0.1.4", "==0.1.4", True),
        ("0.1.40", "==0.1.4", False),
        ("2.15.0+cpu", ">2.14,<=2.15", True),
        ("2.14.0", ">2.14", False),
        ("1.0rc1", "~=1.0", True),
    ],
)
def test_bounds_of_versions(number: str, bounds: str, kept: bool) -> None:
    assert doctor._within(number, bounds) is kept


def test_few_open_files_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, state in ((1024, "FAULT"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")):
        monkeypatch.setattr(doctor.resource, "getrlimit", lambda _, limit=limit: (limit, 1 << 20))
        (found,) = (finding for finding in doctor.machine() if finding.subject == "open files")
        assert found.state == state, limit
        assert bool(found.remedy) == (state != "ok")


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    (found,) = (finding for finding in doctor.machine() if finding.subject == "here")
    assert (found.state, found.told.split(" free")[0]) == ("no", "1.0 GiB")
    assert found.remedy


def test_findings_are_shown_and_faults_counted(examinations: Registry[Any], capsys: pytest.CaptureFixture[str]) -> None:
    @examinations.register("fine")
    def fine() -> Iterator[Finding]:
        yield Finding(subject="one", state="ok", told="works")
        yield Finding(subject="two", state="no", told="is not here", remedy="Get it.")

    assert doctor.doctor([]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "fine"
    assert said.splitlines()[3].strip() == "Get it."
    assert said.endswith("no fault\n")

    @examinations.register("broken")
    def broken() -> Iterator[Finding]:
        yield Finding(subject="three", state="ok", told="works")
        raise OSError("no such device")

    assert doctor.doctor([]) == 1
    said = capsys.readouterr().out
    assert "OSError: no such device" in said
    assert "three" in said
    assert said.endswith("1 fault\n")
    assert doctor.doctor(["fine"]) == 0


def test_an_unknown_examination_is_refused_before_any_begins(
    examinations: Registry[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    examinations.register("fine", lambda: [])
    with pytest.raises(UnknownName, match=r"rlinf doctor: no examination named 'fin'\. Did you mean 'fine'"):
        doctor.doctor(["fine", "fin"])
    assert capsys.readouterr().out == ""


def test_this_machine_and_what_is_installed_here_can_be_looked_at() -> None:
    assert next(finding.subject for finding in doctor.machine()) == "Python"
    assert "rlinf-core" in {finding.subject for finding in doctor.extras()}


def test_no_limit_of_open_files_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert [finding.told for finding in doctor.machine()][-1] == "no limit"
