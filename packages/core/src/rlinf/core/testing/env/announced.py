"""Lines of the environment contract about what an environment announces, and whether what it says is so."""

from __future__ import annotations

import pickle
from typing import Any, Final

import numpy as np

from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ContractError, did_you_mean, error_text
from rlinf.core.testing.checks import expect
from rlinf.core.testing.env.moments import copied, same
from rlinf.core.testing.env.subject import EnvSubject

WAIVERS: Final = (
    "early_truncation",
    "final_observation",
    "instances",
    "kept_observation",
    "partial_reset",
    "place",
    "pure_reset",
    "seeds",
)
"""The lines that an environment may declare not to keep, each with a reason, in `metadata["waived"]`."""
ROW_OPTIONS: Final = ("task", "init_id")
"""The options of `reset` that an environment may announce in `metadata["reset_options"]`."""

_KINDS: Final = {
    "main_images": ((3,), "u", "[H, W, C] uint8"),
    "wrist_images": ((3, 4), "u", "[H, W, C] or [V, H, W, C] uint8"),
    "extra_view_images": ((4,), "u", "[V, H, W, C] uint8"),
    "states": ((1,), "f", "[D] float32"),
    "task_descriptions": ((0,), "U", "one text"),
}
"""The embodied keys: ranks of one environment's entry, kind of type, and both in words."""


def announcement(subject: EnvSubject) -> None:
    """Spaces and metadata are those of a vector environment without autoreset, with observations by key."""
    env = subject.env
    mode = getattr(env.metadata.get("autoreset_mode"), "name", None)
    expect(mode == "DISABLED", "env.metadata['autoreset_mode']", f"expected AutoresetMode.DISABLED, found {mode}")
    expect(env.num_envs >= 2, "env.num_envs", f"the contract needs at least 2, found {env.num_envs}")
    single, batch = (getattr(space, "spaces", {}) for space in (env.single_observation_space, env.observation_space))
    expect(bool(single), "env.single_observation_space", "expected a Dict of observation keys such as 'states'")
    expect(set(single) == set(batch), "env.observation_space", f"expected the keys {sorted(single)}, found {sorted(batch)}")
    for key, space in single.items():
        _expect_batch(space, batch[key], env.num_envs, f"env.observation_space['{key}']")
        _expect_kind(key, space)
    _expect_batch(env.single_action_space, env.action_space, env.num_envs, "env.action_space")
    limit = env.metadata.get("max_episode_steps")
    expect(
        isinstance(limit, int) and limit >= 1,
        "env.metadata['max_episode_steps']",
        f"expected the number of steps after which an episode is truncated, found {limit!r}",
    )
    _expect_declarations(subject)


def observations(subject: EnvSubject) -> None:
    """Observations, rewards, flags and infos are what the spaces and the conventions announce."""
    env = subject.env
    first, *more = subject.actions(2)
    answers = [env.reset(seed=subject.seeds(1)), env.step(first)]
    done = as_numpy(answers[-1][2]) | as_numpy(answers[-1][3])
    if done.any():
        # An episode may end with its first step.
        whole = done | ("partial_reset" in subject.waived)
        answers[0] = env.reset(seed=subject.seeds(2), options={"reset_mask": whole})
    answers += [env.step(action) for action in more]
    for answer in answers:
        expect(len(answer) == (2 if answer is answers[0] else 5), "env", "expected 2 values from reset and 5 from step")
        expect(isinstance(answer[-1], dict), "infos", f"expected a dict, found {type(answer[-1]).__name__}")
        _expect_observation(env, answer[0])
    for _, reward, terminated, truncated, infos in answers[1:]:
        expect("success" in infos, "infos", f"expected 'success', found {sorted(infos)}")
        for name, array, dtype in (
            ("reward", reward, np.float32),
            ("terminated", terminated, np.bool_),
            ("truncated", truncated, np.bool_),
            ("infos['success']", infos["success"], np.bool_),
        ):
            found = f"{getattr(array, 'dtype', type(array).__name__)} {list(np.shape(array))}"
            fits = type(array) is np.ndarray and bool(array.dtype == dtype) and array.shape == (env.num_envs,)
            expect(fits, name, f"expected NumPy {dtype.__name__} [N], found {found}")
        expect(bool(np.isfinite(reward).all()), "reward", f"expected finite numbers, found {reward}")


def pickling(subject: EnvSubject) -> None:
    """What an environment says can be sent to another process: observations, infos, spaces and metadata."""
    env = subject.env
    observation, infos = env.reset(seed=subject.seeds(1))
    answer = env.step(subject.actions(1)[0])
    said = {"observation": observation, "reset infos": infos, "step observation": answer[0], "infos": answer[-1]}
    for place, tree in said.items():
        twin = _through_pickle(tree, place)
        for (key, leaf), (_, copy) in zip(tree_leaves(tree), tree_leaves(twin), strict=True):
            expect(same(leaf, copy), f"{place}['{key}']", "it is another one after pickling")
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        space = getattr(env, name)
        expect(_through_pickle(space, f"env.{name}") == space, f"env.{name}", "it is another one after pickling")
    _through_pickle(dict(env.metadata), "env.metadata")


def _expect_batch(single: Any, batch: Any, count: int, place: str) -> None:
    shape = getattr(single, "shape", None)
    expect(shape is not None, place, f"expected a space of arrays, found {single}")
    found, wanted = list(batch.shape), [count, *(shape or ())]
    expect(found == wanted, place, f"expected shape {wanted}, as there are {count} environments, found {found}")
    integers = all(np.issubdtype(space.dtype, np.integer) for space in (single, batch))
    expect(integers or single.dtype == batch.dtype, place, f"expected {single.dtype}, as for one environment, found {batch.dtype}")


def _expect_kind(key: str, space: Any) -> None:
    if key in _KINDS:
        ranks, kind, words = _KINDS[key]
        # Texts may have any length.
        size = {"u": 1, "f": 4}.get(kind, space.dtype.itemsize)
        fits = len(space.shape) in ranks and (space.dtype.kind, space.dtype.itemsize) == (kind, size)
        expect(fits, f"env.single_observation_space['{key}']", f"expected {words}, found {space.dtype} {list(space.shape)}")


def _expect_declarations(subject: EnvSubject) -> None:
    for key, known in (("waived", WAIVERS), ("reset_options", ROW_OPTIONS)):
        for name in subject.env.metadata.get(key, ()):
            expect(name in known, f"env.metadata['{key}']", f"nothing is named '{name}'", did_you_mean(name, known))
    for name, reason in subject.waived.items():
        told = isinstance(reason, str) and bool(reason.strip())
        expect(told, "env.metadata['waived']", f"'{name}' is waived without a reason", "Say why it can't be kept.")
    tasks: Any = subject.env.metadata.get("tasks", ())
    texts = [task for task in tasks if isinstance(task, str)]
    expect(
        type(tasks) is tuple and len(texts) == len(tasks),
        "env.metadata['tasks']",
        f"expected a tuple of descriptions by task number, found {tasks!r}",
    )


def _expect_observation(env: Any, observation: Any) -> None:
    expect(isinstance(observation, dict), "observation", f"expected a dict by key, found {type(observation).__name__}")
    arrays, spaces = copied(observation), env.observation_space.spaces
    expect(set(arrays) == set(spaces), "observation", f"announced {sorted(spaces)}, found {sorted(arrays)}")
    for key, array in arrays.items():
        found, wanted = (array.dtype, array.shape), (spaces[key].dtype, spaces[key].shape)
        expect(found == wanted, f"observation['{key}']", f"announced {wanted}, found {found}")
        expect(spaces[key].contains(array), f"observation['{key}']", f"it lies outside the announced space {spaces[key]}")
        one = env.single_observation_space[key]
        inside = all(one.contains(np.asarray(array[index])) for index in range(env.num_envs))
        expect(inside, f"observation['{key}']", f"an environment's own entry lies outside {one}")


def _through_pickle(item: Any, place: str) -> Any:
    try:
        return pickle.loads(pickle.dumps(item))  # noqa: S301
    except Exception as error:
        raise ContractError(place, f"it can't be pickled: {error_text(error)}") from error
