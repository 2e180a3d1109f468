"""The options of a command line, mistyped."""

import pytest

from rlinf.core.config.arguments import ArgumentParser, real, reals, whole


def _refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    parser = ArgumentParser(prog="collect.py")
    parser.add_argument("--episodes", type=int, default=24)
    parser.add_argument("--episode-seed", type=int)
    parser.add_argument("overrides", nargs="*")
    with pytest.raises(SystemExit) as ended:
        parser.parse_intermixed_args(list(argv))
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_an_option_that_is_mistyped_has_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    told = "collect.py: error: unrecognized arguments: --episods=3. Did you mean '--episodes'?"
    assert _refused(capsys, "--episods=3") == f"{told} Options: --episode-seed, --episodes, --help."


def test_an_option_is_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    """`--max` of today would mean another option, or two, as soon as there is a second one."""
    assert "unrecognized arguments: --episode. Did you mean" in _refused(capsys, "--episode", "3")


def test_overrides_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser(prog="train.py")
    parser.add_argument("overrides", nargs="*")
    assert parser.parse_intermixed_args(["a=1", "~b"]).overrides == ["a=1", "~b"]
    assert "invalid int value: 'three'" in _refused(capsys, "--episodes=three")


def test_subcommands_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser(prog="rlinf replay")
    own = parser.add_subparsers(required=True).add_parser("filter")
    own.add_argument("--min-return", type=float)
    with pytest.raises(SystemExit):
        parser.parse_args(["filter", "--mni-return", "3"])
    assert "Did you mean '--min-return'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--fps=0", "--fps: expected at least 1, found 0"),
        ("--fps=1.5", "--fps: expected a whole number, found '1.5'"),
        ("--speed=0", "--speed: expected a value in (0, 1], found 0"),
        ("--speed=nan", "--speed: expected a finite number, found 'nan'"),
        ("--least=inf", "--least: expected a finite number, found 'inf'"),
        ("--least=x", "--least: expected a finite number, found 'x'"),
        ("--noise=0.1,-2", "--noise: expected at least 0, found -2"),
        ("--noise=0.1,", "--noise: expected a finite number, found ''"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_its_option(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser(prog="x")
    parser.add_argument("--fps", type=whole(1), default=20)
    parser.add_argument("--speed", type=real(0, 1, open_low=True))
    parser.add_argument("--least", type=real())
    parser.add_argument("--noise", type=reals(0))
    found = parser.parse_args(["--fps=3", "--speed=1", "--least=-2.5", "--noise=0.1,2"])
    assert (found.fps, found.speed, found.least, found.noise) == (3, 1.0, -2.5, [0.1, 2.0])
    assert parser.parse_args(["--noise=2"]).noise == 2.0
    with pytest.raises(SystemExit):
        parser.parse_args([typed])
    assert f"x: error: argument {said}\n" in capsys.readouterr().err
