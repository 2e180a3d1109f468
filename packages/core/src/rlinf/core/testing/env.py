"""The contract of vector environments, as an examiner.

The examined object is a `gymnasium.vector.VectorEnv` without autoreset; nothing of Gymnasium is imported here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.errors import ContractError
from rlinf.core.testing import env_ends, env_misuse, env_purity, env_words
from rlinf.core.testing.env_ends import Episode
from rlinf.core.testing.env_moments import Moment, first_only
from rlinf.core.testing.finding import Finding as Finding


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the contract."""

    sentence: str
    """What holds if the check passes."""
    examine: Callable[[EnvContract], None]
    """Raises a ContractError if it doesn't."""
    waiver: str | None = None
    """The key of `metadata["waived"]` with which an environment declares that it can't keep this line."""
    option: str | None = None
    """The option of `reset` that it is about; there is nothing to examine in an environment that doesn't take it."""


@dataclass(kw_only=True)
class EnvContract:
    """Examines environments that a factory builds.

        EnvContract(factory=lambda: make_my_env(num_envs=3)).run()

    The factory must give at least two sub-environments, and a new object on each call. Two are built; the second is closed
    at the end, the first by the last check. An environment that can't keep a line says so, with a reason, in
    `metadata["waived"]`, a mapping whose keys are out of `rlinf.core.testing.env_words.WAIVERS`; those lines are not examined.

    Attributes:
        factory: builds the vector environment.
        steps: how many steps a compared sequence has.
        seed: from which the seeds of the sub-environments follow.
        act: what to do in a played-out episode instead of random actions, such as a scripted expert: from the environment to
            actions `[N, *]`. With it an end is examined that random actions don't reach.
    """

    factory: Callable[[], Any]
    steps: int = 12
    seed: int = 7
    act: Callable[[Any], Any] | None = None
    episodes: dict[str, list[Episode]] = field(default_factory=dict[str, list[Episode]], init=False, repr=False)
    _envs: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    _reference: list[Moment] = field(default_factory=list[Moment], init=False, repr=False)

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """Runs the checks and returns what was checked, one sentence each; what the environment waived is not.

        Args:
            report: called with each sentence as soon as its check has passed.

        Raises:
            ContractError: the first check that fails; it says what was expected and what was found.
        """
        passed: list[str] = []
        for finding in self._findings():
            if finding.error is not None:
                raise finding.error
            if finding.skipped is None:
                passed.append(finding.sentence)
                if report is not None:
                    report(finding.sentence)
        return passed

    def examine(self, report: Callable[[Finding], None] | None = None) -> list[Finding]:
        """Runs all checks, whatever fails, and returns what became of each.

        Args:
            report: called with each finding as soon as it is known.
        """
        findings: list[Finding] = []
        for finding in self._findings():
            findings.append(finding)
            if report is not None:
                report(finding)
        return findings

    @property
    def env(self) -> Any:
        """The environment under examination."""
        return self._built(0)

    @property
    def other(self) -> Any:
        """Another environment from the same factory."""
        return self._built(1)

    @property
    def waived(self) -> Mapping[str, str]:
        """What the environment declares not to keep, with its reasons."""
        return self.env.metadata.get("waived", {})

    @property
    def options(self) -> Sequence[str]:
        """The row options that the environment takes, out of `task` and `init_id`."""
        return self.env.metadata.get("reset_options", ())

    @property
    def reference(self) -> list[Moment]:
        """The sequence that `seeds(1)` and `actions(steps)` gave the first time."""
        if not self._reference:
            self._reference = self.replay(self.env, self.seeds(1), self.actions(self.steps))
        return self._reference

    def some(self) -> Any:
        """A `reset_mask` of the first sub-environment alone; of all where partial resets are waived."""
        return first_only(self.env.num_envs) | ("partial_reset" in self.waived)

    def seeds(self, first: int) -> list[int]:
        """One seed for each sub-environment, all different."""
        return [self.seed + 1000 * first + 17 * i for i in range(self.env.num_envs)]

    def actions(self, count: int, seed: int = 0) -> list[Any]:
        """Random actions `[N, *]` within the bounds, the same for the same seed."""
        space = self.env.action_space
        space.seed(self.seed + seed)
        return [space.sample() for _ in range(count)]

    def reset(self, env: Any, seeds: Sequence[int] | None, mask: Any = None, **options: Any) -> Moment:
        """Resets and copies the answer."""
        if mask is not None:
            options["reset_mask"] = mask
        return Moment.of(env.reset(seed=None if seeds is None else list(seeds), options=options))

    def step(self, env: Any, action: Any) -> Moment:
        """Steps and copies the answer."""
        return Moment.of(env.step(action))

    def replay(self, env: Any, seeds: Sequence[int], actions: Sequence[Any], **options: Any) -> list[Moment]:
        """Resets all and steps through `actions`, or up to the first end of an episode."""
        moments = [self.reset(env, seeds, **options)]
        for action in actions:
            moments.append(self.step(env, action))
            if moments[-1].done.any():
                break
        return moments

    def _findings(self) -> Iterator[Finding]:
        try:
            for check in CHECKS:
                yield self._finding(check)
        finally:
            for env in self._envs:
                # Whether closing twice works has been examined.
                with contextlib.suppress(Exception):
                    env.close()
            self._envs.clear()
            self._reference.clear()
            self.episodes.clear()

    def _finding(self, check: Check) -> Finding:
        if check.waiver is not None and check.waiver in self.waived:
            return Finding(check.sentence, skipped=f"waived: {self.waived[check.waiver]}")
        if check.option is not None and check.option not in self.options:
            return Finding(check.sentence, skipped=f"it takes no '{check.option}'")
        try:
            check.examine(self)
        except Exception as error:  # noqa: BLE001
            return Finding(check.sentence, error)
        return Finding(check.sentence)

    def _built(self, index: int) -> Any:
        while len(self._envs) <= index:
            env = self.factory()
            if not hasattr(env, "num_envs"):
                remedy = "Assemble single environments: rlinf.envs.assembly."
                raise ContractError("factory", f"expected a gymnasium.vector.VectorEnv, found {type(env).__name__}", remedy)
            self._envs.append(env)
        return self._envs[index]


CHECKS: Final = (
    Check("it announces no autoreset, observations by key, and batched spaces", env_words.announcement),
    Check("a step or a partial reset before the first reset is an error", env_misuse.early_calls),
    Check("observations, rewards, flags and infos are what is announced", env_words.observations),
    Check("what it says survives pickling", env_words.pickling),
    Check(
        "a reset depends on its arguments alone, and a replayed sequence is the same to the bit",
        env_purity.pure_reset,
        "pure_reset",
    ),
    Check("another seed gives another state, and a seed can be said in three ways", env_purity.seeds, "seeds"),
    Check("a seed gives the same state in each place of the vector", env_purity.place, "place"),
    Check("an init_id gives the same state whatever the seed", env_purity.init_id, "pure_reset", "init_id"),
    Check("a task that is asked for is played", env_purity.task, option="task"),
    Check("a partial reset touches no other environment", env_purity.partial_reset, "partial_reset"),
    Check("two instances share no state", env_purity.instances, "instances"),
    Check("what was given stays as it is", env_purity.kept_observation, "kept_observation"),
    Check("the statistics of an ended episode agree with its steps, and a step after the end is an error", env_ends.statistics),
    Check("truncated means the step limit, terminated the task", env_ends.flags, "early_truncation"),
    Check("the last observation is the final one: no step resets", env_ends.final_observation, "final_observation"),
    Check("a wrong action is an error and moves nothing", env_misuse.actions),
    Check("a wrong option of a reset is an error", env_misuse.options),
    Check("closing twice is fine, and a closed environment refuses calls", env_misuse.closing),
)
"""The contract, in the order in which it is examined."""
