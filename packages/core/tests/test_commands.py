"""The `rlinf` command."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from rlinf.core.commands import main
from rlinf.core.installing import is_there

Install = Callable[[str, str, str], None]

CODE = """
from rlinf.core.errors import ConfigError
def hello(args):
    \"\"\"Says hello: `rlinf hello`.

    And no more.
    \"\"\"
    print("hello", *args)
    return 7
def broken(args):
    raise ConfigError("actor.lr", "expected a number, found 'x'", "Write 1e-3.")
"""
POINTS = "[rlinf.commands]\nhello = strange:hello\nbroken = strange:broken\n"


def test_a_part_brings_its_commands(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("strange", POINTS, CODE)
    assert main(["hello", "a", "--b"]) == 7
    assert capsys.readouterr().out == "hello a --b\n"


def test_a_command_may_name_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("def make(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["plugins", "rlinf.commands"]) == 0
    assert is_there("beside")


def test_help_lists_the_installed_commands(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("strange", POINTS, CODE)
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: rlinf <command>")
    assert "  hello         Says hello\n" in out
    assert "  broken        strange:broken\n" in out
    assert "  plugins       Lists everything that installed packages register, by group\n" in out


def test_a_group_of_plugins_that_is_mistyped_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "rlinf.comands"]) == 2
    assert "UnknownName: rlinf plugins: no group 'rlinf.comands'. Did you mean 'rlinf.commands'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plugins", "doctor"])
def test_each_command_says_how_it_is_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: rlinf {command} [-h]")


def test_it_says_which_parts_are_installed(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("strange", POINTS, CODE)
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"rlinf-core {version('rlinf-core')}" in lines
    assert not [line for line in lines if not line.startswith("rlinf")]


def test_no_command_is_an_error_that_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_an_unknown_command_has_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin"]) == 2
    assert "UnknownName: rlinf: no command 'plugin'. Did you mean 'plugins'?" in capsys.readouterr().err


def test_an_error_of_ours_is_shown_without_traceback(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("strange", POINTS, CODE)
    assert main(["broken"]) == 2
    assert capsys.readouterr().err == "ConfigError: actor.lr: expected a number, found 'x'. Write 1e-3.\n"


def test_plugins_lists_what_packages_register(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("strange", f"{POINTS}[rlinf.losses]\nmine = strange:Mine\nother = strange.unverified:Other\n", CODE)
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "rlinf.losses\n" in out
    assert "strange:Mine  (strange 1.0)\n" in out
    assert "strange.unverified:Other  (strange 1.0)  unverified\n" in out
    assert main(["plugins", "rlinf.losses"]) == 0
    out = capsys.readouterr().out
    assert "rlinf.commands" not in out
    # Only what is of a named group is imported, to see whether it can be.
    assert "strange:Mine  (strange 1.0)  can't be imported: AttributeError: module 'strange' has no attribute 'Mine'\n" in out


@pytest.mark.parametrize("args", [["plugins"], ["plugins", "rlinf.commands"], ["--help"]])
def test_a_reader_who_has_enough_is_no_error(args: list[str]) -> None:
    """A long listing, which is written on the way, and one that is written at the end."""
    listing = f"{sys.executable} -c 'from rlinf.core.commands import main; raise SystemExit(main({json.dumps(args)}))'"
    listing = f"env -u PYTHONUNBUFFERED {listing}"
    ended = subprocess.run(f"{listing} | true", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
