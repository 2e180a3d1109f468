"""One registry for everything that is chosen by name.

A name is claimed by a decorator (`@register_policy_loss("mine")`) or a call (`register_reward("mine", Mine)`), by an entry point of
an installed package (ours use them too), or escaped with `module:attr`. Upper and lower case are the same name. A decorator must
have run: `RLINF_EXT_MODULE` names a module that every process imports for that.

What is registered is as a rule a frozen dataclass of its hyper-parameters, so that choosing by name and validating the parameters
are one step; a plain function is fine where there are none.

What lies in a package named `unverified` was written to the documentation of something that it has never met, such as a simulator
that nobody has run it against; it is listed as such.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final, Generic, TypeVar, cast, overload

from rlinf.core.config import read
from rlinf.core.errors import ConfigError, DuplicateName, MissingExtra, RLinfError, UnknownName, did_you_mean, error_text
from rlinf.core.installing import FIND_MODULE, import_extension, install_command, is_there

T = TypeVar("T")
HINTS: Final = "rlinf.hints"
"""The entry-point group of hints: named as a registry's group, each is a mapping from words of the field, in lower case, that are
nobody's name to a sentence that says what to use instead."""
_PATH: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
"""`module:attr`."""


@dataclass(frozen=True, slots=True)
class _Claim:
    owner: str
    load: Callable[[], Any]


class Registry(Generic[T]):
    """Names of one kind of thing, and who provides them.

    Args:
        kind: what is registered, for messages ("policy loss").
        group: the entry-point group that packages use ("rlinf.losses").
        adapter: the name of what makes one of this kind of any other class or function, and the parameter in which it is told
            which. None: there is no such thing.
    """

    def __init__(self, kind: str, group: str, *, adapter: tuple[str, str] | None = None) -> None:
        self.kind: Final = kind
        self.group: Final = group
        self._adapter = adapter
        self._claims: dict[str, _Claim] = {}
        self._lock = threading.Lock()
        self._scanned = False

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...

    @overload
    def register(self, name: str, item: T) -> T: ...

    def register(self, name: str, item: T | None = None) -> T | Callable[[T], T]:
        """Claims `name` for `item`, or is the decorator that does.

        Args:
            name: in any case; `Mine` and `mine` are one name.
            item: what gets the name; None makes a decorator.

        Raises:
            DuplicateName: another object claimed the name; the message names both owners.
        """

        def claim(item: T) -> T:
            module, qualname = getattr(item, "__module__", "?"), getattr(item, "__qualname__", type(item).__qualname__)
            # Names of installed packages first, so that a clash with one of them is refused here, where it comes about.
            self._scan()
            with self._lock:
                self._claim(name.casefold(), _Claim(f"{module}:{qualname}", lambda: item))
            return item

        return claim if item is None else claim(item)

    def get(self, name: str, *, place: str = "") -> T:
        """The thing of that name; `module:attr` imports it from there.

        Args:
            name: a registered name, or `module:attr`.
            place: the dotted path of the configuration key that named it, for messages.

        Raises:
            UnknownName: nobody claims the name; the message has the nearest name and the installed ones.
            MissingExtra: importing it failed because a module is not installed.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (from YAML it may be anything)
            problem = f"expected the name of {_article(self.kind)}, found {name!r}"
            raise UnknownName(place, problem, f"Installed: {', '.join(self.names()) or 'none'}.")
        if ":" in name and not _PATH.fullmatch(name):
            raise UnknownName(place, f"expected 'module:attr', found '{name}'", "Write it as 'package.module:Class'.")
        if ":" in name:
            return self._load(_Claim(name, EntryPoint(name, name, self.group).load), name, place)
        self._scan()
        claim = self._claims.get(name.casefold())
        if claim is None:
            raise UnknownName(place, f"no {self.kind} named '{name}'", self._hint(name.casefold()))
        return self._load(claim, name, place)

    def build(self, name: str, params: Mapping[str, Any], *, place: str, allowed: Collection[str] = ()) -> T:
        """The thing of that name with its parameters read, checked and applied.

        A registered dataclass is read from `params` (see `rlinf.core.config.read`). Any other class or function is given to the
        registry's adapter, with `params`; without one it takes no parameters.

        Args:
            name: a registered name, or `module:attr`.
            params: the hyper-parameters.
            place: the dotted path of `params`, for messages.
            allowed: keys in `params` that belong to somebody else and are skipped.
        """
        item = self.get(name, place=place)
        if isinstance(item, type) and dataclasses.is_dataclass(cast("type[Any]", item)):
            return read(cast("type[T]", item), params, place=place, allowed=allowed)
        # The adapter is a name, too: the part that registers it may not be installed.
        if self._adapter is not None and self._adapter[0] in self.names():
            adapter, parameter = self._adapter
            # An instance has no path of its own, under which another process could import it.
            path = self.owner(name) if ":" not in name and hasattr(item, "__qualname__") else name
            return self.build(adapter, {**params, parameter: path}, place=place, allowed=allowed)
        extra = sorted(str(key) for key in params if key not in allowed)
        if extra:
            raise ConfigError(f"{place}.{extra[0]}", f"the {self.kind} '{name}' takes no parameters", "Remove the key.")
        return item

    def names(self) -> list[str]:
        """All claimed names, sorted."""
        self._scan()
        return sorted(self._claims)

    def owner(self, name: str) -> str:
        """Who claims `name`, as `module:attr`."""
        self._scan()
        return self._claims[name.casefold()].owner

    def unverified(self) -> list[str]:
        """The names of what never ran against what it adapts."""
        return [name for name in self.names() if is_unverified(self.owner(name))]

    def _hint(self, name: str) -> str:
        """What to do about a name that nobody claims: what a package says of that word, else the nearest name; and all names."""
        for point in entry_points(group=HINTS, name=self.group):
            # A package that can't be imported must not hide the error about the name.
            with contextlib.suppress(ImportError):
                said = cast("Mapping[str, str]", point.load()).get(name)
                if said is not None:
                    return f"{said} Installed: {', '.join(self.names()) or 'none'}."
        return did_you_mean(name, self.names(), label="Installed", marks=dict.fromkeys(self.unverified(), "unverified"))

    def _scan(self) -> None:
        import_extension()
        with self._lock:
            if self._scanned:
                return
            points: EntryPoints = _installed(tuple(sys.path)).select(group=self.group)
            for point in points:
                self._claim(point.name.casefold(), _Claim(point.value, point.load))
            # Last, so that a clash of two packages is told to everyone who asks.
            self._scanned = True

    def _claim(self, name: str, claim: _Claim) -> None:
        held = self._claims.get(name)
        # The same owner may claim its name again: by its decorator, and by the entry point of its package.
        if held is not None and held.owner != claim.owner:
            raise DuplicateName(f"{self.kind} '{name}'", f"claimed by {held.owner} and by {claim.owner}", "Rename one of the two.")
        if held is None:
            self._claims[name] = claim

    def _load(self, claim: _Claim, name: str, place: str) -> T:
        try:
            return claim.load()
        except ModuleNotFoundError as error:
            # Whether the module itself is missing, and not something that it needs.
            own = f"{claim.owner.partition(':')[0]}.".startswith(f"{error.name}.")
            remedy = FIND_MODULE if own else f"It is provided by {claim.owner}; install what it needs."
            raise MissingExtra(place, f"the {self.kind} '{name}' needs the module '{error.name}'", remedy) from error
        except RLinfError:
            raise
        except Exception as error:
            module = claim.owner.partition(":")[0]
            # A module that fails while it is imported is not kept: the path is right, and its own error says what is wrong.
            if module not in sys.modules:
                found = f"the {self.kind} '{name}' is in the module '{module}', which fails while it is imported"
                raise ConfigError(place, f"{found}: {_told(error)}", "Mend it; --traceback shows all frames.") from error
            if not isinstance(error, AttributeError):
                raise
            raise UnknownName(place, f"no {self.kind} at '{claim.owner}' ({error})", "Check the path.") from error


def _told(error: Exception) -> str:
    """An error with the line that raised it; of a file that is no Python the error itself has the line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error_text(error)} ({frame.filename}:{frame.lineno})"


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> Any:
    """The entry points of all packages: to read them takes 10 ms, and a run asks eight registries."""
    return entry_points()  # of another type in each Python; `select` is in all


def is_unverified(path: str) -> bool:
    """Whether a module, or `module:attr`, lies in a package named `unverified`."""
    return "unverified" in path.partition(":")[0].split(".")


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def require_modules(*modules: str, place: str, extra: str, otherwise: str = "") -> None:
    """Refuses early what would fail late.

    Args:
        modules: the modules that must be importable; they are not imported.
        place: the dotted path of the configuration key that needs them.
        extra: what to install, such as "rlinf-envs[maniskill]".
        otherwise: what else can be done, such as "set it to false".

    Raises:
        MissingExtra: a module is not installed; the message has the command that installs it here.
    """
    for module in modules:
        if not is_there(module):
            remedy = f"Install {extra}: {install_command(extra)}{otherwise and f', or {otherwise}'}."
            raise MissingExtra(place, f"the module '{module}' is not installed", remedy)


def require_importable(*modules: str, place: str) -> None:
    """The same for modules of the user's, which nobody can know how to install.

    Raises:
        MissingExtra: there is no such module; the message says where it is looked for.
    """
    for module in modules:
        if not is_there(module):
            raise MissingExtra(place, f"there is no module '{module}'", FIND_MODULE)


ADVANTAGES: Registry[Any] = Registry("advantage", "rlinf.advantages")
LOSSES: Registry[Any] = Registry("policy loss", "rlinf.losses")
OBJECTIVES: Registry[Any] = Registry("off-policy objective", "rlinf.objectives")
REWARDS: Registry[Any] = Registry("reward", "rlinf.rewards")
MODELS: Registry[Any] = Registry("model", "rlinf.models")
ENVS: Registry[Any] = Registry("environment", "rlinf.envs", adapter=("custom", "env"))
ENV_WRAPPERS: Registry[Any] = Registry("environment wrapper", "rlinf.env_wrappers", adapter=("custom", "wrapper"))
TRAINERS: Registry[Any] = Registry("trainer", "rlinf.trainers")
WEIGHT_SYNCS: Registry[Any] = Registry("weight sync", "rlinf.weight_syncs")
GENERATORS: Registry[Any] = Registry("generator", "rlinf.generators")
TASKS: Registry[Any] = Registry("task", "rlinf.tasks")
GATES: Registry[Any] = Registry("gate", "rlinf.gates")
CLUSTERS: Registry[Any] = Registry("cluster", "rlinf.clusters")
WEIGHT_LAYOUTS: Registry[Any] = Registry("layout of weights", "rlinf.weight_layouts")
DATASETS: Registry[Any] = Registry("dataset of episodes", "rlinf.datasets")
SANDBOXES: Registry[Any] = Registry("sandbox", "rlinf.sandboxes")
RECIPES: Registry[Any] = Registry("reader of recipes", "rlinf.recipes")
TOOLS: Registry[Any] = Registry("tool", "rlinf.tools", adapter=("function", "function"))
TOOL_FORMATS: Registry[Any] = Registry("format of tool calls", "rlinf.tool_formats")
WORKFLOWS: Registry[Any] = Registry("workflow", "rlinf.workflows")
AGENTS: Registry[Any] = Registry("agent", "rlinf.agents")
ENDPOINTS: Registry[Any] = Registry("endpoint", "rlinf.endpoints")

register_advantage = ADVANTAGES.register
register_policy_loss = LOSSES.register
register_objective = OBJECTIVES.register
register_reward = REWARDS.register
register_model = MODELS.register
register_env = ENVS.register
register_env_wrapper = ENV_WRAPPERS.register
register_sandbox = SANDBOXES.register
register_tool = TOOLS.register
register_workflow = WORKFLOWS.register
