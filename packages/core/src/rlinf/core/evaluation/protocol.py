"""What a number was measured under: `EvalProtocol`, of episodes in an environment or of problems with answers.

protocol.work_list()  →  each entry once, on any number of workers  →  a result each  →  EvalReport  →  JSON
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast

from rlinf.core.config import expect_at_least, read
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation.canonical import canonical, canonical_hash
from rlinf.core.evaluation.results import EpisodeKey, EpisodeResult, ProblemResult, TaskId, pass_at_k

_FORMAT: Final = 2
"""Changed whenever the same fields come to mean something else, so that old hashes never meet new ones."""
_REPORTED: Final = {"hashed": False}
"""Metadata of a field that says what is reported of the same measurement; it is no part of the hash."""
_LATER: Final = {"later": True}
"""Metadata of a field that is no part of the hash while it is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProtocol(ABC):
    """Everything that a number depends on beside the policy. Two numbers are comparable only if their hashes are the same.

    Fields that take anything hold plain JSON afterwards (see `canonical`): a function is its name and a hash of its source, a file
    its content.
    """

    kind: ClassVar[str]
    """Names the class in JSON."""
    result: ClassVar[type[EpisodeResult] | type[ProblemResult]]
    """What becomes of an entry of the work-list."""

    @abstractmethod
    def work_list(self) -> Sequence[EpisodeKey] | Sequence[int]:
        """Everything that is to be done, once; to share it among R workers, worker r takes `work_list()[r::R]`."""

    @abstractmethod
    def values(self, result: Any) -> Mapping[str, float | None]:
        """The numbers of one result, whose means are reported; None where the task does not know one."""

    @abstractmethod
    def metric(self, known: Iterable[str]) -> str:
        """Which of the known means a policy is judged by."""

    @property
    def hash(self) -> str:
        """12 hexadecimal digits, the same in every process and on every machine; another one if any field differs."""
        fields = [field for field in dataclasses.fields(self) if field.metadata.get("hashed", True)]
        # What came later and is left out changes no hash.
        hashed = [field.name for field in fields if getattr(self, field.name) is not None or not field.metadata.get("later")]
        return canonical_hash({"format": _FORMAT, "kind": self.kind, **{name: _plain(getattr(self, name)) for name in hashed}})

    def to_dict(self) -> dict[str, Any]:
        """Kind, fields, the size of the work-list and the hash, for JSON."""
        fields = {field.name: _json(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"kind": self.kind, self.result.counted: len(self.work_list()), **fields, "hash": self.hash}

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, place: str = "protocol") -> EvalProtocol:
        """What `to_dict` wrote, or a section of a configuration.

        Raises:
            ConfigError: a wrong value, or a hash that is not that of the fields.
        """
        kinds: dict[str, type[EvalProtocol]] = {cls.kind: cls for cls in (EpisodeProtocol, ProblemProtocol)}
        cls = kinds.get(data.get("kind", EpisodeProtocol.kind))
        if cls is None:
            raise ConfigError(f"{place}.kind", f"expected one of {', '.join(kinds)}, found {data['kind']!r}")
        # Not `isinstance`, to which a bool is an int, too.
        fields = {key: list(range(value)) if key in _NUMBERED and type(value) is int else value for key, value in data.items()}
        # `to_dict` writes these beside the fields.
        protocol = read(cls, fields, place=place, allowed=("kind", cls.result.counted, "hash"))
        wanted = data.get("hash", protocol.hash)
        if wanted != protocol.hash:
            raise ConfigError(f"{place}.hash", f"the fields give {protocol.hash}, found {wanted}", "The file was changed by hand.")
        return protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTimeChunking:
    """Decisions that are made while the chunk before them is still executed.

    control step          … t          t + d                t + s        t + s + d
    is executed           last chunk ──► chunk of t, from its d-th action ──────► chunk of t + s
    the policy decides    observes t ──►                    observes t + s ──►

    The first chunk of an episode is decided before it begins. Black, Galliker and Levine, "Real-Time Execution of Action Chunking
    Flow Policies" (2025), arXiv:2506.07339.
    """

    delay: int
    """d, control steps from an observation to the first action that was decided for it."""
    execution_horizon: int
    """s, control steps from one decision to the next; from d to the length of a chunk less d."""
    guidance: bool = True
    """Whether a chunk is made to agree with the one in execution (`rlinf.core.capabilities.RealTimeChunkingPolicy`). Without it
    the policy ignores what is executed meanwhile, and the robot may jump from one plan to another."""

    def __post_init__(self) -> None:
        expect_at_least("delay", self.delay, 0)
        if self.execution_horizon < max(1, self.delay):
            problem = f"expected at least 1 and delay = {self.delay}, found {self.execution_horizon}"
            raise ConfigError("execution_horizon", problem, "A decision begins when the one before it is there.")

    def expect_fitting(self, chunk: int, place: str) -> None:
        """Refuses chunks that end before the next one is there.

        Args:
            chunk: K, control steps of a decision.
            place: of this section, for the message.

        Raises:
            ConfigError: s + d > K.
        """
        if self.execution_horizon + self.delay > chunk:
            problem = (
                f"{self.execution_horizon}, and with delay {self.delay} a chunk of {chunk} steps ends before the next is there"
            )
            remedy = f"Keep execution_horizon + delay at {chunk} or below, or let the policy make longer chunks."
            raise ConfigError(f"{place}.execution_horizon", problem, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeProtocol(EvalProtocol):
    """Episodes in an environment: which ones, from which initial states, how long, and what counts as solved.

    What a renderer or a model does with images is its own configuration; say it in `env` where it isn't there, so that it can't
    differ unseen.
    """

    kind: ClassVar[str] = "episodes"
    result: ClassVar[type[EpisodeResult]] = EpisodeResult

    env: Any
    """The environment: its type and parameters (`env_type`, `init_params`), or words such as "tabletop/slots rgb 32"."""
    tasks: tuple[TaskId, ...] = ()
    """Task numbers or names; none where there is only one, or where the seed chooses."""
    init_ids: tuple[int, ...]
    """Initial states of each task; in JSON a whole number n stands for 0 … n − 1."""
    seeds: tuple[int, ...] = (0,)
    """Each one plays the whole list again; it keys the policy's noise and, where initial states are seeds, those too."""
    initial_states: Literal["id", "seed"] = "id"
    """`id`: the environment takes `init_id`. `seed`: it knows only seeds, and the seed is keyed by (seed, task, init_id)."""
    max_episode_steps: int | None = None
    """Control steps after which an episode is truncated; None is the environment's own limit."""
    ignore_terminations: bool = False
    """Whether an episode continues to its step limit after the task has ended it."""
    mode: Literal["eval", "train"] = "eval"
    """"eval" takes the most likely action, "train" samples as in training."""
    success: Literal["once", "at_end"] = "once"
    """Whether an episode counts as solved if it was solved at any step, or only if it is solved at its last."""
    real_time_chunking: RealTimeChunking | None = dataclasses.field(default=None, metadata=_LATER)
    """How the policy decides while its last chunk is still executed; None where everything stands still while it decides."""
    model: Any = dataclasses.field(default=None, metadata=_LATER)
    """What is changed of the policy against its checkpoint, such as `{num_action_chunks: 1}`; None: it acts as it was trained."""

    def __post_init__(self) -> None:
        for name in ("env", "model"):
            object.__setattr__(self, name, canonical(getattr(self, name)))
        expect_at_least("max_episode_steps", self.max_episode_steps, 1)
        for name, least in (("tasks", 0), ("init_ids", 1), ("seeds", 1)):
            expect_numbers(name, getattr(self, name), least)

    def work_list(self) -> tuple[EpisodeKey, ...]:
        """Every (seed, task, initial state) once."""
        tasks: tuple[TaskId | None, ...] = self.tasks or (None,)
        lines = [(task, init_id, seed) for seed in self.seeds for task in tasks for init_id in self.init_ids]
        return tuple(EpisodeKey(number=i, task=t, init_id=k, seed=s) for i, (t, k, s) in enumerate(lines))

    def values(self, result: EpisodeResult) -> Mapping[str, float | None]:
        """Success, return and length."""
        return result.values()

    def metric(self, known: Iterable[str]) -> str:
        """Success, or the return where the task knows no success."""
        name = f"success_{self.success}"
        return name if name in known else "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemProtocol(EvalProtocol):
    """Problems with answers that can be checked: which ones, how they are answered, and what scores the answers."""

    kind: ClassVar[str] = "problems"
    result: ClassVar[type[ProblemResult]] = ProblemResult

    data: Any
    """Where the problems come from, files by their content."""
    split: str = "validation"
    """Of which split they are."""
    problems: tuple[int, ...]
    """Their places in the split; in JSON a whole number n stands for 0 … n − 1."""
    samples: int = 1
    """Responses to each problem."""
    sampling: Any
    """How tokens are drawn."""
    reward: Any
    """What scores a response, and from which reward on it is right."""
    pass_k: tuple[int, ...] = dataclasses.field(default=(1,), metadata=_REPORTED)
    """For which k it is estimated how many problems one of k responses solves."""
    agent: Any = dataclasses.field(default=None, metadata=_LATER)
    """How an agent answers: its workflow, its tools and how they are called; None for single responses."""
    model: Any = dataclasses.field(default=None, metadata=_LATER)
    """What is changed of the model against its checkpoint; None where it answers as it was trained."""

    def __post_init__(self) -> None:
        for name in ("data", "sampling", "reward", "agent", "model"):
            object.__setattr__(self, name, canonical(getattr(self, name)))
        expect_numbers("problems", self.problems, 1)
        expect_at_least("samples", self.samples, 1)
        for k in self.pass_k:
            if not 1 <= k <= self.samples:
                raise ConfigError("pass_k", f"expected values from 1 to samples = {self.samples}, found {k}")

    def work_list(self) -> tuple[int, ...]:
        """Every problem once, with all its samples."""
        return self.problems

    def values(self, result: ProblemResult) -> Mapping[str, float | None]:
        """The share of right responses, pass@k, the length of responses and the share that was cut off."""
        right, samples = sum(result.success), len(result.success)
        return {
            "accuracy": right / samples,
            "response_length": sum(result.tokens) / samples,
            "truncated": result.finish.count("length") / samples,
            **{f"pass@{k}": pass_at_k(samples, right, k) for k in self.pass_k},
        }

    def metric(self, known: Iterable[str]) -> str:
        """The share of right responses."""
        return "accuracy"


_NUMBERED: Final = ("init_ids", "problems")


def _json(name: str, value: object) -> Any:
    """A field in JSON; the numbers 0 … n − 1 as n, as evaluations have hundreds."""
    if not isinstance(value, tuple):
        return _plain(value)
    entries = list(cast("tuple[Any, ...]", value))
    return len(entries) if name in _NUMBERED and entries == list(range(len(entries))) else entries


def _plain(value: object) -> object:
    """A section as a mapping, without the place of its class."""
    return dataclasses.asdict(value) if isinstance(value, RealTimeChunking) else value


def expect_numbers(name: str, entries: Sequence[TaskId], least: int = 1) -> None:
    """Refuses tasks, initial states or seeds that no work-list has.

    Args:
        name: the field or the key, for the message.
        entries: numbers from 0, or names, each once.
        least: how many there are at least.

    Raises:
        ConfigError: one is there twice, or below 0, or there are too few.
    """
    twice = [str(entry) for entry, count in Counter(entries).items() if count > 1]
    if twice:
        repeat = "name each once" if name.endswith("seeds") else "use seeds to repeat"
        raise ConfigError(name, f"{', '.join(twice)} is there more than once", f"Each is played exactly once; {repeat}.")
    below = [entry for entry in entries if isinstance(entry, int) and entry < 0]
    if below:
        raise ConfigError(name, f"expected numbers from 0, found {below[0]}")
    if len(entries) < least:
        raise ConfigError(name, "there is none", "Name at least one, such as [0].")
