"""Lines of the environment contract about what an environment must refuse."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf.core.testing.checks import expect
from rlinf.core.testing.env.moments import expect_error, expect_same, first_only
from rlinf.core.testing.env.subject import EnvSubject


def early_calls(subject: EnvSubject) -> None:
    """Neither a step nor a partial reset comes before the first full reset."""
    env, action = subject.env, subject.actions(1)[0]
    expect_error(lambda: env.step(action), "env.step", "an error before the first reset")
    mask = first_only(env.num_envs)
    wanted = "an error for a partial reset before the first full one"
    expect_error(lambda: subject.reset(env, subject.seeds(0), mask), "env.reset", wanted)


def actions(subject: EnvSubject) -> None:
    """Actions of a wrong shape, not finite or out of bounds are errors, and move nothing."""
    env, reference = subject.env, subject.reference
    subject.reset(env, subject.seeds(1))
    action = subject.actions(1)[0]
    for wanted, wrong in _wrong_actions(env, action).items():
        expect_error(lambda wrong=wrong: env.step(wrong), "env.step", f"an error for {wanted}")
    after = subject.step(env, action)
    if "pure_reset" not in subject.waived:
        expect_same([after], reference[1:2], "env.step", "an action that was refused moved something")


def options(subject: EnvSubject) -> None:
    """Options of a reset that mean nothing are errors, and the caller's own are left alone."""
    env, count = subject.env, subject.env.num_envs
    subject.reset(env, subject.seeds(1))
    wrong: dict[str, dict[str, Any]] = {
        # Misspelt on purpose.
        "an option that doesn't exist": {"reset_masc": np.ones(count, np.bool_)},
        "a mask of a wrong length": {"reset_mask": np.ones(count + 1, np.bool_)},
        "a mask that isn't bool": {"reset_mask": np.ones(count, np.int64)},
        "a mask that names no environment": {"reset_mask": np.zeros(count, np.bool_)},
        "too few seeds": {"seed": [1] * (count - 1)},
        "a negative seed": {"seed": [-1] * count},
    }
    for key in ("task", "init_id"):
        if key not in subject.options:
            wrong[f"the option '{key}', which the environment doesn't announce"] = {key: 0}
    if "init_id" in subject.options:
        wrong |= {"a negative init_id": {"init_id": -1}, "too few entries of init_id": {"init_id": [0] * (count - 1)}}
    if "task" in subject.options:
        wrong |= {"a task that doesn't exist": {"task": "no such task"}, "too few entries of task": {"task": [0] * (count - 1)}}
    for wanted, given in wrong.items():
        expect_error(lambda given=given: env.reset(options=given), "env.reset", f"an error for {wanted}")
    expect_error(lambda: env.reset(seed=1, options={"seed": 1}), "env.reset", "an error for two seeds")
    mine: dict[str, Any] = {"reset_mask": subject.some()}
    env.reset(seed=subject.seeds(1), options=mine)
    kept = list(mine) == ["reset_mask"] and mine["reset_mask"].tolist() == subject.some().tolist()
    expect(kept, "env.reset", "a reset changed the caller's options")


def closing(subject: EnvSubject) -> None:
    """Closing twice is fine; afterwards every call is an error."""
    env, action = subject.env, subject.actions(1)[0]
    env.close()
    env.close()
    expect_error(lambda: env.step(action), "env.step", "an error after close")
    expect_error(lambda: env.reset(seed=1), "env.reset", "an error after close")


def _wrong_actions(env: Any, action: Any) -> dict[str, Any]:
    wrong: dict[str, Any] = {"actions of a wrong shape": action[:-1]}
    if not np.issubdtype(action.dtype, np.floating):
        wide = action.astype(np.int64)  # the type of a space may end at 127
        return wrong | {"an action above the bounds": wide + 10_000, "an action below the bounds": wide - 10_000}

    def with_last(value: Any) -> Any:
        changed = action.copy()
        changed.reshape(-1)[-1] = value
        return changed

    wrong |= {"an action that is not a number": with_last(np.nan), "an infinite action": with_last(np.inf)}
    for side, bound in (("above", env.action_space.high), ("below", env.action_space.low)):
        last = np.asarray(bound).reshape(-1)[-1]
        if np.isfinite(last):
            # By more than the bound itself, because adding 1 to a large number may change nothing.
            wrong[f"an action {side} the bounds"] = with_last(last + (1 + abs(last)) * (1 if side == "above" else -1))
    return wrong
