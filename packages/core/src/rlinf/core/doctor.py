"""`rlinf doctor`: what this machine can do for a run, and what it lacks, before a run finds out.

Each part brings its own examinations in the entry-point group `rlinf.doctor`. A package of yours can bring one, too: a function
without arguments that returns findings.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, Literal

from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.errors import error_text
from rlinf.core.installing import install_command
from rlinf.core.process import own_cores
from rlinf.core.registry import Registry

State = Literal["ok", "no", "FAULT"]
"""`ok`: it works; `no`: it is not there, and some runs need it; `FAULT`: it is there and does not work, or every run needs it."""
GIB = 1 << 30
_REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_BOUND = re.compile(r"(>=|<=|==|>|<)\s*([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """What was looked at, in a few words."""
    state: State
    told: str
    """What was found."""
    remedy: str = ""
    """What to do about it; "" if nothing is to be done."""


Examination = Callable[[], Iterable[Finding]]
EXAMINATIONS: Registry[Any] = Registry("examination", "rlinf.doctor")
"""Name → a function that looks at one side of the machine."""


def doctor(args: Sequence[str]) -> int:
    """Looks at the machine and at what is installed: `rlinf doctor [examination …]`; 1 if something is a fault.

    Raises:
        UnknownName: no examination has that name.
    """
    about = "Looks at the machine and at what is installed, and ends with 1 if something is a fault."
    parser = ArgumentParser(prog="rlinf doctor", description=about)
    names = f"{', '.join(EXAMINATIONS.names())}, or module:function; without one all of them"
    parser.add_argument("examinations", nargs="*", metavar="examination", help=names)
    given = parser.parse_args(list(args)).examinations
    chosen = {name: EXAMINATIONS.get(name, place="rlinf doctor") for name in given or EXAMINATIONS.names()}
    faults = 0
    for name, examine in chosen.items():
        sys.stdout.write(f"{name}\n")
        for finding in _findings(name, examine):
            faults += finding.state == "FAULT"
            sys.stdout.write(f"  {finding.state:6}{finding.subject:28} {finding.told}\n")
            if finding.remedy:
                sys.stdout.write(f"{'':37}{finding.remedy}\n")
        # Some take seconds: what is known is shown meanwhile.
        sys.stdout.flush()
    sys.stdout.write(f"{_several(faults, 'fault') if faults else 'no fault'}\n")
    return 1 if faults else 0


def machine() -> Iterator[Finding]:
    """The interpreter, processors, memory, disks and limits of this machine."""
    yield Finding(subject="Python", state="ok", told=f"{sys.version.split()[0]}, {sys.executable}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding(subject="processor, memory", state="ok", told=f"{_several(own_cores(), 'core')}, {memory / GIB:.1f} GiB")
    yield _room("here", Path.cwd(), 5 * GIB, "Free some of it, or set runner.logger.log_path.")
    shared = Path("/dev/shm")  # noqa: S108
    if shared.is_dir():
        yield _room("shared memory", shared, GIB, "Start the container with --shm-size=8g: Ray keeps its objects there.")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Without a limit it is −1.
    few, told = 0 <= files < 4096, f"at most {files:,}" if files >= 0 else "no limit"
    remedy = "ulimit -n 65536: each connection and each large item is an open file." if few else ""
    yield Finding(subject="open files", state="FAULT" if few else "ok", told=told, remedy=remedy)


def extras() -> Iterator[Finding]:
    """Which extras of which part are installed, with the versions that they ask for."""
    parts = {part.name: part for part in distributions() if part.name.startswith("rlinf-")}
    for name in sorted(parts):
        wanted: dict[str, list[tuple[str, str]]] = {}
        for requirement, bounds, extra in _requirements(parts[name]):
            wanted.setdefault(extra, []).append((requirement, bounds))
        for extra, requirements in wanted.items():
            yield _extra(f"{name}[{extra}]" if extra else name, requirements)


def _extra(subject: str, requirements: Sequence[tuple[str, str]]) -> Finding:
    found = {name: _installed(name) for name, _ in requirements}
    lacking = [name for name, number in found.items() if number is None]
    wrong = [f"{name} {found[name]}, wanted {bounds}" for name, bounds in requirements if not _within(found[name], bounds)]
    told = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    if wrong:
        return Finding(subject=subject, state="FAULT", told="; ".join(wrong), remedy=install_command(subject))
    if lacking:
        told = f"without {', '.join(lacking)}: {install_command(subject)}"
        return Finding(subject=subject, state="no" if "[" in subject else "FAULT", told=told)
    return Finding(subject=subject, state="ok", told=told)


def _requirements(part: Distribution) -> Iterator[tuple[str, str, str]]:
    """Name, bounds of the version and extra ("" if it is always needed) of each requirement that is no other extra of the part."""
    for line in part.requires or ():
        parsed = _REQUIREMENT.match(line)
        if parsed is not None and parsed[1] != part.name:
            extra = _EXTRA.search(parsed[3] or "")
            yield parsed[1], parsed[2].strip(), extra[1] if extra else ""


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _within(found: str | None, bounds: str) -> bool:
    """Whether a version keeps its bounds; one that is not there does, and bounds of another form are not looked at."""
    if found is None:
        return True
    have = _release(found)
    for sign, bound in _BOUND.findall(bounds):
        limit = _release(bound)
        # 2.1 is 2.1.0.
        size = max(len(have), len(limit))
        left, right = (number + (0,) * (size - len(number)) for number in (have, limit))
        kept = {">=": left >= right, "<=": left <= right, "==": left == right, ">": left > right, "<": left < right}
        if not kept[sign]:
            return False
    return True


def _release(number: str) -> tuple[int, ...]:
    """The numbers that a version begins with: of 2.15.0+cpu they are 2, 15, 0."""
    begun = re.match(r"\d+(?:\.\d+)*", number)
    return tuple(int(part) for part in begun[0].split(".")) if begun else ()


def _findings(name: str, examine: Examination) -> Iterator[Finding]:
    try:
        yield from examine()
    # What an examination runs into is what it was to find.
    except Exception as error:  # noqa: BLE001
        yield Finding(subject=name, state="FAULT", told=error_text(error))


def _room(subject: str, path: Path, least: int, remedy: str) -> Finding:
    free = shutil.disk_usage(path).free
    little = free < least
    told = f"{free / GIB:.1f} GiB free in {path}"
    return Finding(subject=subject, state="no" if little else "ok", told=told, remedy=remedy if little else "")


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
