"""The contract of policies, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.data import Decision, EnvSpec
from rlinf.core.protocols import Policy
from rlinf.core.testing import policy_learning, policy_purity, policy_scores, policy_weights
from rlinf.core.testing.finding import Finding
from rlinf.core.testing.samples import AsArray
from rlinf.core.trajectory import Batch, Trajectory

ROWS, STEPS = 5, 3
"""What is decided at once, and how often in a row, unless a check says otherwise."""

_TEXTS = ("pick up the red block", "open the drawer", "put the bowl on the plate and close the door of the microwave")


@dataclass(kw_only=True)
class PolicyContract:
    """Examines a policy.

        spec = EnvSpec(…)
        PolicyContract(policy=config.build(spec, seed=0), spec=spec, as_array=torch.as_tensor,
                       generator=lambda seed: torch.Generator().manual_seed(seed)).run()

    The weights end as they began. A policy that is a module (it has `train(mode)` and `named_parameters()`, as those of torch
    have) is examined in both of its modes, and its gradients are.

    Attributes:
        policy: what is examined.
        spec: the environment that it was built for.
        as_array: makes of a NumPy array what the policy is trained on.
        generator: makes a source of randomness from a seed.
        tolerance: the largest difference between log-probabilities, or values, that must agree; 1e-5 is for float32, and
            whoever computes in bfloat16 says what to expect of it.
    """

    policy: Policy
    spec: EnvSpec
    as_array: AsArray
    generator: Callable[[int], Any]
    tolerance: float = 1e-5
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5), init=False, repr=False)

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """Runs all checks and returns what was checked, one sentence each.

        Args:
            report: called with each sentence as soon as its check has passed.

        Raises:
            ContractError: the first check that fails; it says what was expected and what was found.
        """
        for sentence, check in CHECKS.items():
            check(self)
            if report is not None:
                report(sentence)
        return list(CHECKS)

    def examine(self, report: Callable[[Finding], None] | None = None) -> list[Finding]:
        """Runs all checks, whatever fails, and returns what became of each.

        Args:
            report: called with each finding as soon as it is known.
        """
        findings: list[Finding] = []
        for sentence, check in CHECKS.items():
            findings.append(self._finding(sentence, check))
            if report is not None:
                report(findings[-1])
        return findings

    def observation(self, rows: int = ROWS) -> dict[str, Any]:
        """A random observation, each leaf `[rows, *]`, NumPy."""
        return {key: self._leaf((rows, *array.shape), array.dtype) for key, array in self.spec.observation.items()}

    def _leaf(self, shape: tuple[int, ...], dtype: str) -> Any:
        kind = np.dtype(dtype)
        if kind.kind == "U":
            return self._random.choice(_TEXTS, size=shape).astype(kind)
        if np.issubdtype(kind, np.integer):
            return self._random.integers(0, 256 if dtype == "uint8" else 2, size=shape).astype(kind)
        return self._random.standard_normal(shape).astype(kind)

    def decide(self, observation: Mapping[str, Any], seed: int = 0, *, train: bool = True) -> Decision[Any]:
        """A decision whose randomness comes from `seed`."""
        return self.policy.predict_action_batch(observation, "train" if train else "eval", generator=self.generator(seed))

    def batch(self, decisions: Sequence[Decision[Any]]) -> Batch[Any]:
        """Decisions of consecutive steps as a batch, each field `[B, T, …]`."""
        trajectory = Trajectory.of_decisions(decisions)
        return Batch.of(trajectory.map(lambda leaf: self.as_array(as_numpy(leaf))))

    def modes(self) -> Iterator[bool]:
        """Puts the module into each of its modes, and back into the one that it was in; once if it is none."""
        module: Any = self.policy
        if not isinstance(module, policy_learning.Module):
            yield False
            return
        before = module.training
        try:
            for training in (True, False):
                module.train(training)
                yield training
        finally:
            module.train(before)

    def _finding(self, sentence: str, check: Callable[[PolicyContract], None]) -> Finding:
        try:
            check(self)
        except Exception as error:  # noqa: BLE001
            return Finding(sentence, error)
        return Finding(sentence)


CHECKS: Final[dict[str, Callable[[PolicyContract], None]]] = {
    "a decision has its shapes, its version, and finite numbers": policy_scores.shapes,
    "predict_action_batch and default_forward agree, in mode 'train' and 'eval', for any number of rows": policy_scores.agreement,
    "a module's own mode changes nothing: dropout is off": policy_scores.module_modes,
    "a batch is scored as its parts are": policy_scores.parts,
    "a batch of no rows gives empty results of the same shapes": policy_scores.no_rows,
    "entropy and value have one number for each decision": policy_scores.evaluation_shapes,
    "a decision holds no graph": policy_purity.no_graph,
    "the same seed decides the same, another seed something else": policy_purity.seeds,
    "mode 'eval' uses no randomness": policy_purity.mode,
    "a row does not depend on its neighbours": policy_purity.rows,
    "nothing is remembered from one call to the next": policy_purity.no_state,
    "an observation is neither changed nor kept": policy_purity.own_memory,
    "the log-probability can be differentiated, and its gradient reaches what is trained": policy_learning.gradient,
    "actions are drawn from the distribution that is scored": policy_learning.unbiased,
    "an observation that is not finite is refused, or not read": policy_purity.not_finite,
    "weights go out, and come back the same": policy_weights.round_trip,
    "weights that don't fit are refused, and nothing is changed": policy_weights.misfit,
}
"""The contract, in the order in which it is examined."""
