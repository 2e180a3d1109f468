"""Repeating a published measurement: the protocol of a file, and what differs from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeProtocol, EvalProtocol

OPTION: Final = "--protocol"
_SHOWN: Final = 8
"""Differences that a message names."""


def read_protocol(path: Path) -> EvalProtocol:
    """The protocol of a file: one that `EvalProtocol.to_dict` wrote, or a report that has it, such as `summary.json`.

    Raises:
        ConfigError: there is no such file, or it holds no protocol, or one whose hash is not that of its fields.
    """
    try:
        content: object = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(OPTION, f"'{path}' can't be read ({reason})", "Name a summary.json, or a protocol as JSON.") from error
    found = cast("Mapping[str, Any]", content).get("protocol", content) if isinstance(content, Mapping) else None
    # Written with every protocol: a file without them is something else, such as the summary of a run that measures a loss alone.
    if not isinstance(found, Mapping) or not {"kind", "hash"} <= {*found}:
        remedy = "Name the summary.json of an evaluation."
        raise ConfigError(OPTION, f"expected a protocol with its kind and hash in '{path}', found none", remedy)
    return EvalProtocol.from_dict(cast("Mapping[str, Any]", found), place=f"{path}: protocol")


def expect_protocol(published: EvalProtocol | None, own: EvalProtocol) -> None:
    """Refuses to measure under another protocol than the published one; does nothing without one.

    Raises:
        ConfigError: the hashes differ; the message names the fields that do.
    """
    if published is None or published.hash == own.hash:
        return
    found = list(differences(published.to_dict(), own.to_dict()))
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    told = "; ".join([*found[:_SHOWN], *more])
    problem = f"expected {published.hash}, found {own.hash}: {told}"
    raise ConfigError(OPTION, problem, "Change the configuration, or the versions installed, until they agree.")


def differences(published: object, own: object, place: str = "") -> Iterator[str]:
    """What differs in plain containers, each with its dotted path; not the hashes, which follow from the rest."""
    if isinstance(published, Mapping) and isinstance(own, Mapping):
        left, right = cast("Mapping[str, object]", published), cast("Mapping[str, object]", own)
        for key in dict.fromkeys([*left, *right]):
            at = f"{place}.{key}" if place else key
            if key not in left or key not in right:
                yield f"{at} is only {'here' if key in right else 'in the file'}"
            elif at != "hash":
                yield from differences(left[key], right[key], at)
    elif published != own:
        yield f"{place} is {published!r:.60} in the file and {own!r:.60} here"


def repeated_episodes(data: Mapping[str, Any], published: EvalProtocol, explicit: Sequence[str]) -> Mapping[str, Any]:
    """The configuration of an embodied evaluation with the section `env.eval` that a published protocol states.

    Args:
        data: the configuration.
        published: the protocol of a file.
        explicit: the dotted keys that the command line sets.

    Raises:
        ConfigError: it is no protocol of episodes, or states its environment in words, or the command line contradicts it.
    """
    if not isinstance(published, EpisodeProtocol):
        raise ConfigError(OPTION, f"expected a protocol of episodes, found one of {published.kind}", "Name another file.")
    if "env" not in data:
        remedy = "Name the file of an evaluation of this kind."
        raise ConfigError(
            OPTION, "expected a protocol of problems, as this configuration has no env, found one of episodes", remedy
        )
    stated: object = published.env
    if not isinstance(stated, Mapping) or "env_type" not in stated:
        problem = f"expected env_type and init_params, found the environment in words: {stated!r:.80}"
        raise ConfigError(OPTION, problem, "Describe it in env.eval yourself, and evaluate without this option.")
    count = len(published.init_ids)
    section = {
        "wrappers": [],
        **cast("Mapping[str, Any]", stated),
        "tasks": list(published.tasks) or None,
        "episodes": count,
        "final_episodes": None,
        "init_ids": None if published.init_ids == tuple(range(count)) else list(published.init_ids),
        "seeds": list(published.seeds),
        "initial_states": published.initial_states,
        "max_episode_steps": published.max_episode_steps,
        "ignore_terminations": published.ignore_terminations,
        "mode": published.mode,
        "success": published.success,
        "real_time_chunking": published.to_dict()["real_time_chunking"],
    }
    for key in explicit:
        # The text before it is empty only where the key begins with it.
        env, _, rest = key.partition("env.eval.")
        if not env and rest.partition(".")[0] in section:
            raise ConfigError(key, f"the file of {OPTION} says it, and the command line, too", "Leave one of them out.")
    env = cast("Mapping[str, Any]", data.get("env", {}))
    return {**data, "env": {**env, "eval": {**env.get("eval", {}), **section}}}
