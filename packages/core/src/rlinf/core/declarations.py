"""What a configuration says of the thing that it builds, so that a run is refused before anything is built.

Each of these is optional: a plug-in without a declaration is unknown, and what is unknown is not refused. Who reads them asks with
`isinstance`, or with the functions below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

from rlinf.core.data.types import EnvSpec

Need = Literal[
    "value", "target", "entropy", "reference", "proximal", "version", "baseline", "group", "sum_pi_squared", "regression"
]
"""What an advantage or a loss may be unable to do without:

| need | who has it |
|---|---|
| `value` | `Trajectory.value`: a policy with a critic |
| `target` | `Credit.target`: an advantage that says what the critic should learn |
| `entropy` | `Rescored.entropy`: a policy that knows its entropy |
| `reference` | `Trajectory.reference`: a reference policy, or a teacher |
| `proximal` | `Trajectory.proximal`: a trainer that scores decisions again before the update |
| `version` | `Rescored.version`: a policy that counts the versions of its weights |
| `baseline` | the score of another answer to the same question, such as the greedy one |
| `group` | groups of more than one row |
| `regression` | `rlinf.core.capabilities.HasFlowRegression`: a flow whose decisions recorded where it may be asked about them |
| `sum_pi_squared` | `Trajectory.sum_pi_squared`: a trainer that scores again, and adds the squared probabilities of all tokens |
"""


@runtime_checkable
class HasNeeds(Protocol):
    """An advantage, a loss or an objective that says what it can't do without."""

    @property
    def needs(self) -> Mapping[Need, str]:
        """Each need, and which of its own parameters asks for it; "" if it always does."""
        ...


@runtime_checkable
class HasTargets(Protocol):
    """An advantage that says whether its credit has targets for a critic."""

    @property
    def has_targets(self) -> bool:
        """Whether `Credit.target` is there, given a policy with a critic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraits:
    """What is known of a policy before it is built; None is unknown."""

    critic: bool | None = None
    """Whether it says what a state is worth."""
    critic_key: str = ""
    """The parameter that gives it a critic, such as `add_value_head`; "" if none does."""
    entropy: bool | None = None
    """Whether its evaluations have an entropy."""
    q_functions: bool | None = None
    """Whether it has Q-functions (`rlinf.core.off_policy.HasQFunctions`), as soft actor-critic needs them."""
    q_batch_norm: bool | None = None
    """Whether its Q-functions normalise by the statistics of a batch (`rlinf.core.off_policy.HasQBatchNorm`), as CrossQ needs."""
    latent_action: bool | None = None
    """Whether what its Q-functions judge is not what is executed (`rlinf.core.off_policy.HasLatentAction`)."""
    reference_action: bool | None = None
    """Whether it changes what another policy proposes (`rlinf.core.off_policy.HasReferenceAction`), as RLT needs."""
    recurrent: bool | None = None
    """Whether it has a memory (`rlinf.core.capabilities.RecurrentPolicy`)."""
    discrete_actions: bool | None = None
    """Whether it can decide among numbered actions; otherwise its actions are vectors of numbers."""
    language: bool | None = None
    """Whether it writes text (`rlinf.core.capabilities.LanguageModelPolicy`) rather than acts."""
    judges: Literal["texts", "states", "pairs of states"] | None = None
    """What it scores (`LearnsPreferences`, `LearnsReturns`, `LearnsOffsets` of `rlinf.core.rewards`), where it neither writes nor
    acts."""
    temperature: float | None = None
    """At which a language model scores."""
    observations: tuple[str, ...] | None = None
    """The keys that it can't do without, such as `main_images`; it may look at others, too."""
    any_observation: tuple[str, ...] = ()
    """Keys of which it needs one at least, such as those of cameras; () if there are none."""
    optional_observations: tuple[str, ...] = ()
    """Keys that it is built for where they are there, and can't do without then."""
    chunk: int | None = None
    """K, the control steps of a decision."""
    largest_action: int | None = None
    """The most numbers that one of its actions can have, where the network has a fixed size."""
    largest_action_key: str = ""
    """The parameter that raises it, such as `max_action_dim`; "" if none does."""
    scored: bool | None = None
    """Whether decisions of training have log-probabilities; those of a flow without noise (`flow_ode`) have none."""
    flow_regression: bool | None = None
    """Whether its decisions can be regressed on (`rlinf.core.capabilities.HasFlowRegression`), as the loss `nft` does."""
    flow_regression_key: str = ""
    """The parameter that makes it so, such as `sampling.likelihood`; "" if none does."""
    row_generators: bool | None = None
    """Whether it takes `rlinf.core.random.RowGenerators` as a generator, and so can decide for several requests in one pass."""
    real_time_chunking: bool | None = None
    """Whether it can decide while its last chunk is still executed (`rlinf.core.capabilities.RealTimeChunkingPolicy`)."""
    compiled: bool | None = None
    """Whether it can be compiled (`rlinf.core.protocols.CompiledPolicy`)."""
    blocks: bool | None = None
    """Whether its network has repeated blocks (a `torch.nn.ModuleList` of one class), as gradient checkpointing needs them."""


@runtime_checkable
class HasTraits(Protocol):
    """A model's configuration that says what its policy will be like."""

    @property
    def traits(self) -> PolicyTraits:
        """What is known of the policy."""
        ...


@runtime_checkable
class ChecksTasks(Protocol):
    """A model's configuration that can tell before anything is built whether it has room for what tasks ask for."""

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        """Refuses texts that are too long.

        Args:
            texts: what tasks ask for; none where the environment tells none.
            place: that of the model.
            spec: what the environment shows beside the text, which may be in the prompt, too; None where that is not known yet.

        Raises:
            ConfigError: the message has `place`, that of the model.
        """
        ...


@runtime_checkable
class KnowsObservations(Protocol):
    """An environment's configuration that knows what is observed before anything is built."""

    @property
    def observed(self) -> tuple[str, ...] | None:
        """All observation keys; None if only the simulator knows."""
        ...


@runtime_checkable
class KnowsActions(Protocol):
    """An environment's configuration that knows the size of an action before anything is built."""

    @property
    def action_size(self) -> int | None:
        """A of an action `[A]`; None if only the simulator knows."""
        ...


@runtime_checkable
class ConvertsActions(Protocol):
    """A wrapper's configuration that knows before anything is built which actions it makes of a policy's."""

    def taken_size(self, simulator: int, place: str) -> int:
        """A of the actions that it takes, where the environment inside takes `simulator` numbers.

        Raises:
            ConfigError: it gives other actions; the message has `place`, that of its section.
        """
        ...


@runtime_checkable
class MadeForSimulators(Protocol):
    """A wrapper's configuration that knows for which environments it is made."""

    def for_simulator(self, env_type: str) -> Self:
        """With all that it leaves to the environment of this registered name, or as it is where nothing is known of that one."""
        ...

    def expect_simulator(self, env_type: str, place: str) -> None:
        """Refuses an environment for which another one is made; `place` is that of the wrapper's section.

        Raises:
            ConfigError: with the one that is made for it.
        """
        ...


@runtime_checkable
class KnowsEpisodeSteps(Protocol):
    """An environment's configuration that knows before anything is built how long an episode is."""

    @property
    def episode_steps(self) -> int | None:
        """Control steps after which the task cuts an episode by itself; 0 if it never does, None if only the simulator knows."""
        ...


@runtime_checkable
class KnowsRewards(Protocol):
    """An environment's configuration that knows before anything is built what is rewarded."""

    @property
    def success_only(self) -> bool | None:
        """Whether success is rewarded and nothing else; None if only the simulator knows."""
        ...


@runtime_checkable
class KnowsTasks(Protocol):
    """An environment's configuration that knows before anything is built which tasks `reset` can be asked for."""

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...] | None:
        """By number, what each task is called, its words last; () if none can be asked for, None if only the simulator knows."""
        ...


@runtime_checkable
class HasStatistics(Protocol):
    """A model's configuration whose actions have units by the statistics that the folder of its weights brings."""

    def check_statistics(self, place: str, actions: int | None = None) -> None:
        """Refuses a folder without the statistics that are asked for; a preset has the bounds of its environment.

        Args:
            place: the section, whose keys the message names.
            actions: of how many the statistics must be; None where that is not known yet.

        Raises:
            ConfigError: what is asked for, and what there is.
        """
        ...


@runtime_checkable
class KnowsExpert(Protocol):
    """An environment's configuration that says whether its simulators have a scripted expert (`capabilities.HasExpert`)."""

    @property
    def has_expert(self) -> bool:
        """Whether they have one."""
        ...


@runtime_checkable
class RunsElsewhere(Protocol):
    """An environment's configuration that runs another one in other processes, with the same numbers."""

    @property
    def runs(self) -> tuple[str, Any] | None:
        """The registered name and the configuration of that one; None if nothing is registered here for it."""
        ...


@runtime_checkable
class ChecksFilms(Protocol):
    """An environment's configuration that knows where else than in this process films need something."""

    def check_films(self, place: str, otherwise: str) -> None:
        """Refuses films without what makes them.

        Args:
            place: the key that asks for films, for the message.
            otherwise: what to do without them, for the message.

        Raises:
            ConfigError: a module is missing there.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """A configuration that can look at this machine: whether what it needs is installed, and whether its files are there."""

    def check(self, place: str) -> None:
        """Refuses early what would fail when the thing is built.

        Raises:
            ConfigError: it would; the message names keys below `place`.
        """
        ...


@runtime_checkable
class HasContextLength(Protocol):
    """A generator's configuration that bounds prompt and response together."""

    max_model_len: int | None
    """In tokens; None for what the model was made for."""


@runtime_checkable
class ModelParallel(Protocol):
    """A trainer's configuration under which several ranks hold one copy of the model, and so train on the same samples.

    `Trainer.all_reduce` of such a trainer may add over all ranks or over one rank of each share.
    """

    def data_rank(self, rank: int, world_size: int) -> tuple[int, int]:
        """Which share of the samples a rank trains on, and how many shares there are.

        Raises:
            ConfigError: so many ranks can't hold the model.
        """
        ...


@runtime_checkable
class ChecksRanks(Protocol):
    """A trainer's configuration that can't be built on any number of ranks."""

    def check_ranks(self, world_size: int, *, one_process: bool) -> None:
        """Refuses so many ranks, before any of them starts.

        Args:
            world_size: how many train together.
            one_process: whether they share a process, as on the `local` back-end.

        Raises:
            ConfigError: names the key that does not go with them.
        """
        ...


def needs_of(item: object) -> Mapping[Need, str]:
    """What is known to be needed; nothing of a plug-in that does not say."""
    # `isinstance` of a protocol looks at names alone; a plug-in may mean something else by them, here and below.
    found = item.needs if isinstance(item, HasNeeds) else None
    return found if isinstance(found, Mapping) else {}


def traits_of(item: object) -> PolicyTraits:
    """What is known of the policy that a configuration builds."""
    found = item.traits if isinstance(item, HasTraits) else None
    return found if isinstance(found, PolicyTraits) else PolicyTraits()


def observed_of(item: object) -> tuple[str, ...] | None:
    """The observation keys of the environment that a configuration builds; None where nobody knows yet."""
    item = _run_by(item)
    found = item.observed if isinstance(item, KnowsObservations) else None
    return found if isinstance(found, tuple) else None


def tasks_of(item: object) -> tuple[tuple[str, ...], ...] | None:
    """What each task of the environment that a configuration builds may be called; None where nobody knows yet."""
    item = _run_by(item)
    found = item.task_names if isinstance(item, KnowsTasks) else None
    return found if isinstance(found, tuple) else None


def texts_of(item: object, *, needed: bool) -> tuple[str, ...] | None:
    """What the environment that a configuration builds asks for in words; () if it shows none, None where nobody knows yet.

    Args:
        item: the environment's configuration.
        needed: whether a policy must be told: then one is that does not say what it shows.
    """
    shown = observed_of(item)
    if shown is None and not needed:
        return None
    if shown is not None and "task_descriptions" not in shown:
        return ()
    return tuple(names[-1] for names in tasks_of(item) or ()) or None


def action_size_of(item: object) -> int | None:
    """The size of an action of the environment that a configuration builds; None where nobody knows yet."""
    item = _run_by(item)
    found = item.action_size if isinstance(item, KnowsActions) else None
    return found if isinstance(found, int) else None


def episode_steps_of(item: object) -> int | None:
    """The own step limit of the environment that a configuration builds; 0 for none, None where nobody knows yet."""
    item = _run_by(item)
    found = item.episode_steps if isinstance(item, KnowsEpisodeSteps) else None
    return found if isinstance(found, int) else None


def success_only_of(item: object) -> bool:
    """Whether the environment that a configuration builds is known to reward success and nothing else."""
    item = _run_by(item)
    return isinstance(item, KnowsRewards) and item.success_only is True


def _run_by(item: object) -> object:
    """The environment itself, of one that runs in other processes."""
    return (item.runs or (None, None))[1] if isinstance(item, RunsElsewhere) else item
