"""The contract of policies, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlinf.core.testing.checks import run_checks
from rlinf.core.testing.finding import Finding
from rlinf.core.testing.policy import learning, purity, scores, weights
from rlinf.core.testing.policy.subject import PolicySubject


@dataclass(kw_only=True)
class PolicyContract(PolicySubject):
    """Examines a policy.

        spec = EnvSpec(…)
        PolicyContract(policy=config.build(spec, seed=0), spec=spec, as_array=torch.as_tensor,
                       generator=lambda seed: torch.Generator().manual_seed(seed)).run()

    The weights end as they began. A policy that is a module (it has `train(mode)` and `named_parameters()`, as those of torch
    have) is examined in both of its modes, and its gradients are. The arguments are those of `PolicySubject`.
    """

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """The sentences that hold, all of them, each told to `report` at once; a ContractError says which doesn't, and why."""
        return run_checks(self, CHECKS, report)

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

    def _finding(self, sentence: str, check: Callable[[PolicySubject], None]) -> Finding:
        try:
            check(self)
        except Exception as error:  # noqa: BLE001 - whatever the examined thing raises is a finding
            return Finding(sentence, error)
        return Finding(sentence)


CHECKS: Final[dict[str, Callable[[PolicySubject], None]]] = {
    "a decision has its shapes, its version, and finite numbers": scores.shapes,
    "predict_action_batch and default_forward agree, in mode 'train' and 'eval', for any number of rows": scores.agreement,
    "a module's own mode changes nothing: dropout is off": scores.module_modes,
    "a batch is scored as its parts are": scores.parts,
    "a batch of no rows gives empty results of the same shapes": scores.no_rows,
    "entropy and value have one number for each decision": scores.evaluation_shapes,
    "a decision holds no graph": purity.no_graph,
    "the same seed decides the same, another seed something else": purity.seeds,
    "mode 'eval' uses no randomness": purity.mode,
    "a row does not depend on its neighbours": purity.rows,
    "nothing is remembered from one call to the next": purity.no_state,
    "an observation is neither changed nor kept": purity.own_memory,
    "the log-probability can be differentiated, and its gradient reaches what is trained": learning.gradient,
    "actions are drawn from the distribution that is scored": learning.unbiased,
    "an observation that is not finite is refused, or not read": purity.not_finite,
    "weights go out, and come back the same": weights.round_trip,
    "weights that don't fit are refused, and nothing is changed": weights.misfit,
}
"""The contract, in the order in which it is examined."""
