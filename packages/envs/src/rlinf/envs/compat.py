"""Environments by name."""

from __future__ import annotations

from typing import Any

from rlinf.core.registry import ENVS


def get_env_cls(env_type: str, env_cfg: object = None) -> Any:
    """The environment of a name: a configuration class whose objects have `check`, `make` and `describe`.

        get_env_cls("maniskill")(task_id="PickCube-v1").make(4, max_episode_steps=None, ignore_terminations=False, render=False)

    Nothing of a simulator is imported before `make`.

    Args:
        env_type: a registered name, in any case, or `module:attr`.
        env_cfg: not needed; variants of an environment are fields of its configuration.

    Raises:
        UnknownName: nobody registered it; the message has the nearest name.
    """
    del env_cfg
    return ENVS.get(env_type, place="env_type")
