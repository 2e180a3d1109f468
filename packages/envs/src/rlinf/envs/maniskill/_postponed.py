"""Work that ManiSkill does and that a run does not need: imports, looking for garbage, seeding devices that are not there."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch


@contextmanager
def postponed(*packages: str) -> Generator[None]:
    """Inside, what imports these packages gets placeholders, which import the real ones when something of them is used.

    A package that was imported before, or that is not installed, is as ever. Afterwards the real ones are imported as usual.

    Args:
        packages: names without a dot. Nothing that is imported inside may use them while it is imported, as by a subclass.
    """
    chosen = [name for name in packages if name not in sys.modules and PathFinder.find_spec(name) is not None]
    finder = _Finder(chosen)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _Placeholder):
                del sys.modules[name]
                vars(module)["_importing"] = False


@contextmanager
def little_garbage() -> Generator[None]:
    """Inside, the garbage collector does not look at what is there already.

    ManiSkill collects garbage whenever it builds or closes a simulation, and so looks at all objects of torch and of itself: 0.1 to
    0.2 CPU-s for each environment, most of what building one takes.
    """
    # Somebody else's would be given back with ours.
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def only_the_cpu_seeded() -> Generator[None]:
    """Inside, `torch.manual_seed` and `torch.random.fork_rng` are about the CPU's generator alone, where there is no other device.

    For devices that may still come torch keeps each seed with the stack as text: a third of what a reset takes, and memory that
    grows with every episode. To fork their generators it looks for a driver each time: another tenth.
    """
    if torch.accelerator.is_available():
        yield
        return
    ordinary: Callable[[int], torch.Generator] = torch.manual_seed  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    fork: Callable[..., Any] = torch.random.fork_rng  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    torch.manual_seed, torch.random.fork_rng = _seed_cpu, partial(fork, devices=())
    try:
        yield
    finally:
        torch.manual_seed, torch.random.fork_rng = ordinary, fork


def _seed_cpu(seed: int) -> torch.Generator:
    return torch.default_generator.manual_seed(int(seed))


class _Finder(MetaPathFinder, Loader):
    """Finds placeholders for packages and what is in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Placeholder(ModuleType):
    """Stands for a module; an attribute of it is a `_Later` at first, and that of the real module afterwards."""

    _importing = True

    def __getattr__(self, name: str) -> Any:
        if not self._importing:
            return getattr(importlib.import_module(self.__name__), name)
        # Import machinery asks for such, and would take any answer.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(self.__name__, name)


class _Later:
    """Stands for something of a module that is imported when this is called, or asked for an attribute."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def _real(self) -> Any:
        module = importlib.import_module(self._module)
        # A submodule, as of `from package import module`, is an attribute once it is imported.
        return getattr(module, self._name, None) or importlib.import_module(f"{self._module}.{self._name}")
