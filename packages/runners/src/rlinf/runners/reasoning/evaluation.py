"""How good a policy is at problems that it was not trained on: pass@k, how sure it is, and under which protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.core.capabilities import HasFingerprint
from rlinf.core.evaluation import wilson_interval
from rlinf.core.problems import Split, TaskConfig
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.evaluation import protocol_hash
from rlinf.runners.evaluation.canonical import canonical
from rlinf.runners.reasoning.generation.admission import GroupReport
from rlinf.runners.reasoning.schema import ReasoningConfig

PROTOCOL_FREE = (
    *("rollout_batch_size", "val_problems", "final_problems", "shuffle"),
    *("max_prompt_length", "filter_overlong_prompts"),
)
"""Keys of `data` that can't change what is measured, or that the protocol states in its own way."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that one of k responses, drawn of `samples` without putting back, is right.

    1 − C(n − c, k) / C(n, k)

    Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1, arXiv:2107.03374.

    Args:
        samples: n, how many responses there are.
        right: c, how many of them are right.
        k: at most n.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def summarise(reports: Sequence[GroupReport], pass_k: Sequence[int]) -> dict[str, float]:
    """`eval/…`: the share of right responses as `accuracy`, pass@k, and how long responses are."""
    responses = [response for report in reports for response in report.responses]
    found = {
        "eval/accuracy": _mean([float(r.success) for r in responses]),
        "eval/response_length": _mean([float(r.tokens) for r in responses]),
        "eval/truncated": _mean([float(r.finish == "length") for r in responses]),
    }
    for k in pass_k:
        per_problem = [pass_at_k(len(r.responses), sum(x.success for x in r.responses), k) for r in reports]
        found[f"eval/pass@{k}"] = _mean(per_problem)
    return found


def interval(accuracy: float, problems: int) -> tuple[float, float]:
    """The 95 % interval of a share of `problems` problems; responses to one problem are not independent, so they count once."""
    return wilson_interval(round(accuracy * problems), problems)


def reasoning_protocol(cfg: ReasoningConfig, problems: Sequence[int]) -> dict[str, Any]:
    """Everything that an accuracy depends on beside the weights, and a hash of it.

    Two numbers are comparable only if their protocols have the same hash.

    Args:
        cfg: the configuration of the run.
        problems: which of the validation split, ascending.
    """
    left_out = problems[-1] + 1 - len(problems)
    fewer = f" but for {left_out} with too long a prompt" if left_out else ""
    stated = by_content(resolved(cfg.data), cfg.data.task, "validation")
    data = {key: value for key, value in stated.items() if key not in PROTOCOL_FREE}
    reward = {key: value for key, value in resolved(cfg.reward).items() if key != "overlong"}
    protocol: dict[str, Any] = {
        "data": data,
        "problems": f"the first {len(problems)} of the validation split{fewer}, each {cfg.eval.samples} times",
        "reward": reward,
        "sampling": resolved(cfg.eval_sampling),
    }
    return {**canonical(protocol), "hash": protocol_hash(protocol)}


def by_content(data: Mapping[str, Any], task: TaskConfig, split: Split) -> dict[str, Any]:
    """The section `data` with what its problems are in place of where they come from; see `HasFingerprint`."""
    if not isinstance(task, HasFingerprint):
        return dict(data)
    found = task.fingerprint(split)
    return {key: found.get(key, value) for key, value in data.items() if found.get(key) != ""}


def measured(cfg: ReasoningConfig, scalars: Mapping[str, float], problems: int) -> dict[str, Any]:
    """The scalars with the interval of the accuracy."""
    low, high = interval(scalars["eval/accuracy"], problems)
    return {**scalars, "eval/accuracy_ci95": [round(low, 4), round(high, 4)], "problems": problems}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
