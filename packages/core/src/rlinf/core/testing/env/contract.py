"""The contract of vector environments, as an examiner.

The examined object is a `gymnasium.vector.VectorEnv` without autoreset; nothing of Gymnasium is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rlinf.core.testing.env import announced, ends, misuse, purity
from rlinf.core.testing.env.subject import EnvSubject
from rlinf.core.testing.finding import Finding


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the contract."""

    sentence: str
    """What holds if the check passes."""
    examine: Callable[[EnvSubject], None]
    """Raises a ContractError if it doesn't."""
    waiver: str | None = None
    """The key of `metadata["waived"]` with which an environment declares that it can't keep this line."""
    option: str | None = None
    """The option of `reset` that it is about; there is nothing to examine in an environment that doesn't take it."""


@dataclass(kw_only=True)
class EnvContract(EnvSubject):
    """Examines environments that a factory builds.

        EnvContract(factory=lambda: make_my_env(num_envs=3)).run()

    The factory must give at least two sub-environments, and a new object on each call. Two are built; the second is closed
    at the end, the first by the last check. An environment that can't keep a line says so, with a reason, in
    `metadata["waived"]`, a mapping whose keys are out of `rlinf.core.testing.env.WAIVERS`; those lines are
    not examined. The arguments are those of `EnvSubject`.
    """

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

    def _findings(self) -> Iterator[Finding]:
        try:
            for check in CHECKS:
                yield self._finding(check)
        finally:
            self.close()

    def _finding(self, check: Check) -> Finding:
        if check.waiver is not None and check.waiver in self.waived:
            return Finding(check.sentence, skipped=f"waived: {self.waived[check.waiver]}")
        if check.option is not None and check.option not in self.options:
            return Finding(check.sentence, skipped=f"it takes no '{check.option}'")
        try:
            check.examine(self)
        except Exception as error:  # noqa: BLE001 - whatever the examined thing raises is a finding
            return Finding(check.sentence, error)
        return Finding(check.sentence)


CHECKS: Final = (
    Check("it announces no autoreset, observations by key, and batched spaces", announced.announcement),
    Check("a step or a partial reset before the first reset is an error", misuse.early_calls),
    Check("observations, rewards, flags and infos are what is announced", announced.observations),
    Check("what it says survives pickling", announced.pickling),
    Check(
        "a reset depends on its arguments alone, and a replayed sequence is the same to the bit",
        purity.pure_reset,
        "pure_reset",
    ),
    Check("another seed gives another state, and a seed can be said in three ways", purity.seeds, "seeds"),
    Check("a seed gives the same state in each place of the vector", purity.place, "place"),
    Check("an init_id gives the same state whatever the seed", purity.init_id, "pure_reset", "init_id"),
    Check("a task that is asked for is played", purity.task, option="task"),
    Check("a partial reset touches no other environment", purity.partial_reset, "partial_reset"),
    Check("two instances share no state", purity.instances, "instances"),
    Check("what was given stays as it is", purity.kept_observation, "kept_observation"),
    Check("the statistics of an ended episode agree with its steps, and a step after the end is an error", ends.statistics),
    Check("truncated means the step limit, terminated the task", ends.flags, "early_truncation"),
    Check("the last observation is the final one: no step resets", ends.final_observation, "final_observation"),
    Check("a wrong action is an error and moves nothing", misuse.actions),
    Check("a wrong option of a reset is an error", misuse.options),
    Check("closing twice is fine, and a closed environment refuses calls", misuse.closing),
)
"""The contract, in the order in which it is examined."""
