"""The contract of policies, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.data import Decision, EnvSpec, Evaluation
from rlinf.core.errors import ContractError
from rlinf.core.protocols import Policy
from rlinf.core.testing.samples import AsArray, same
from rlinf.core.trajectory import Batch, Credit, Trajectory
from rlinf.core.tree import tree_combine, tree_leaves

_ROWS, _STEPS = 5, 3


@dataclass(kw_only=True)
class PolicyContract:
    """Examines a policy.

        spec = EnvSpec(…)
        PolicyContract(policy=config.build(spec, seed=0), spec=spec, as_array=torch.as_tensor,
                       generator=lambda seed: torch.Generator().manual_seed(seed)).run()

    Attributes:
        policy: what is examined.
        spec: the environment that it was built for.
        as_array: makes of a NumPy array what the policy is trained on.
        generator: makes a source of randomness from a seed.
        tolerance: the largest difference between log-probabilities, or values, that must agree.
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

    def observation(self) -> dict[str, Any]:
        """A random observation, each leaf `[B, *]`, NumPy."""
        return {key: self._leaf((_ROWS, *array.shape), array.dtype) for key, array in self.spec.observation.items()}

    def _leaf(self, shape: tuple[int, ...], dtype: str) -> Any:
        if np.issubdtype(np.dtype(dtype), np.integer):
            return self._random.integers(0, 256 if dtype == "uint8" else 2, size=shape).astype(dtype)
        return self._random.standard_normal(shape).astype(dtype)

    def decide(self, observation: Mapping[str, Any], seed: int = 0, *, train: bool = True) -> Decision[Any]:
        """A decision whose randomness comes from `seed`."""
        return self.policy.predict_action_batch(observation, "train" if train else "eval", generator=self.generator(seed))

    def batch(self, decisions: list[Decision[Any]]) -> Batch[Any]:
        """Decisions of consecutive steps as a batch, each field `[B, T, …]`."""
        shape = (_ROWS, len(decisions))
        no, zeros = self.as_array(np.zeros(shape, dtype=bool)), self.as_array(np.zeros(shape, dtype=np.float32))

        def stack(arrays: Any) -> Any:
            return self.as_array(np.stack([as_numpy(array) for array in arrays], axis=1))

        trajectory = Trajectory(
            context=tree_combine(stack, [decision.context for decision in decisions]),
            action=stack([decision.action for decision in decisions]),
            logprob=stack([decision.logprob for decision in decisions]),
            reward=zeros,
            terminated=no,
            truncated=no,
            mask=self.as_array(np.ones(shape, dtype=bool)),
            version=self.as_array(np.zeros(shape, dtype=np.int64)),
            group=self.as_array(np.arange(_ROWS)),
            task=self.as_array(np.zeros(_ROWS, dtype=np.int64)),
        )
        return Batch(trajectory=trajectory, credit=Credit(advantage=zeros))


def _shapes(contract: PolicyContract) -> None:
    decision = contract.decide(contract.observation())
    action, logprob = tuple(decision.action.shape), tuple(decision.logprob.shape)
    if len(action) != 3 or (action[0], action[2:]) != (_ROWS, contract.spec.action.shape):
        raise ContractError("Decision.action", f"expected [B, K, A] = ({_ROWS}, K, *{contract.spec.action.shape}), found {action}")
    if logprob not in (action[:1], action[:2], action):
        raise ContractError("Decision.logprob", f"expected {action[:1]}, {action[:2]} or {action}, found {logprob}")
    if decision.value is not None and tuple(decision.value.shape) != (_ROWS,):
        raise ContractError("Decision.value", f"expected ({_ROWS},), found {tuple(decision.value.shape)}")
    for path, leaf in tree_leaves(decision.context):
        if leaf.shape[0] != _ROWS:
            raise ContractError(f"Decision.context.{path}", f"expected {_ROWS} rows, found {tuple(leaf.shape)}")
    for name, array in (("action", decision.action), ("logprob", decision.logprob)):
        if not np.isfinite(as_numpy(array)).all():
            raise ContractError(f"Decision.{name}", "expected finite numbers, found infinity or not a number")
    if decision.version != contract.policy.version:
        raise ContractError("Decision.version", f"expected that of the policy, {contract.policy.version}, found {decision.version}")


def _agreement(contract: PolicyContract) -> None:
    decisions = [contract.decide(contract.observation(), seed) for seed in range(_STEPS)]
    _agrees(contract, decisions, contract.policy.default_forward(contract.batch(decisions)))


def _agrees(contract: PolicyContract, decisions: list[Decision[Any]], evaluation: Evaluation[Any]) -> None:
    for name in ("logprob", "value"):
        parts = [getattr(decision, name) for decision in decisions]
        if parts[0] is None:
            continue
        expected = np.stack([as_numpy(part) for part in parts], axis=1)
        found = getattr(evaluation, name)
        if found is None:
            raise ContractError(f"Evaluation.{name}", "expected what predict_action_batch gives too, found None")
        same(f"Evaluation.{name} against Decision.{name}", expected, found, contract.tolerance)


def _gradient(contract: PolicyContract) -> None:
    evaluation = contract.policy.default_forward(contract.batch([contract.decide(contract.observation())]))
    if not evaluation.logprob.requires_grad:
        raise ContractError("Evaluation.logprob", "expected to be differentiable, found a constant")


def _no_graph(contract: PolicyContract) -> None:
    decision = contract.decide(contract.observation())
    for name, array in (("action", decision.action), ("logprob", decision.logprob), ("value", decision.value)):
        if array is not None and array.requires_grad:
            raise ContractError(f"Decision.{name}", "expected no graph, found one that keeps memory alive")


def _seeds(contract: PolicyContract) -> None:
    observation = contract.observation()
    one, again, other = (as_numpy(contract.decide(observation, seed).action) for seed in (1, 1, 2))
    same("Decision.action from the same seed", one, again, 0.0)
    if np.array_equal(one, other):
        raise ContractError("Decision.action", "expected another action from another seed, found the same")


def _mode(contract: PolicyContract) -> None:
    observation = contract.observation()
    one, other = (contract.decide(observation, seed, train=False).action for seed in (1, 2))
    same("Decision.action in mode 'eval' from two seeds", one, other, 0.0)


def _rows(contract: PolicyContract) -> None:
    observation = contract.observation()
    together = contract.decide(observation, train=False)
    alone = contract.decide({key: leaf[:1] for key, leaf in observation.items()}, train=False)
    same("Decision.action of a row alone", together.action[:1], alone.action, contract.tolerance)


def _own_memory(contract: PolicyContract) -> None:
    observation = contract.observation()
    before = {key: leaf.copy() for key, leaf in observation.items()}
    decision = contract.decide(observation)
    for key, leaf in observation.items():
        if not np.array_equal(before[key], leaf):
            raise ContractError(f"env_obs.{key}", "expected to be left as it was, found it changed")
    kept = [(path, as_numpy(leaf).copy()) for path, leaf in tree_leaves(decision.context)]
    for leaf in observation.values():
        leaf[...] = 0
    for (path, old), (_, new) in zip(kept, tree_leaves(decision.context), strict=True):
        if not np.array_equal(old, as_numpy(new)):
            raise ContractError(f"Decision.context.{path}", "expected a copy, found the memory of the observation")


CHECKS: Final[dict[str, Callable[[PolicyContract], None]]] = {
    "a decision has its shapes, its version, and finite numbers": _shapes,
    "predict_action_batch and default_forward agree": _agreement,
    "the log-probability can be differentiated": _gradient,
    "a decision holds no graph": _no_graph,
    "the same seed decides the same, another seed something else": _seeds,
    "mode 'eval' uses no randomness": _mode,
    "a row does not depend on its neighbours": _rows,
    "an observation is neither changed nor kept": _own_memory,
}
