"""Environments by name, and names that RLinf's users know, with what stands for them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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


_GYM: Final = "It is 'gymnasium', with init_params: {env_id: …}."
_LEARNED: Final = "A learned simulator is 'world_model', whose init_params name it by model.build."
_ABSENT: Final = "It is not among ours; 'module:attr' names an environment of your own (docs/envs/add-an-environment.md)."

ENVIRONMENTS: Final[Mapping[str, str]] = {
    **{
        name: f"It is 'libero', with init_params: {{suite: {name}}}."
        for name in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
    },
    **dict.fromkeys(("libero_pro", "libero_plus"), "LIBERO is 'libero'; its variants Pro and Plus are not here."),
    "maniskill_rlt": "ManiSkill is 'maniskill'; RLT is actor.model.model_type rlt, in any environment.",
    **dict.fromkeys(("gym", "mujoco", "classic_control"), _GYM),
    **dict.fromkeys(("opensora_wm", "wan_wm"), _LEARNED),
    "d4rl": "Recorded episodes are a dataset, 'minari' or 'lerobot' (algorithm.demo_buffer, or data of a fine-tuning).",
    **dict.fromkeys(("embodichain", "polaris", "roboverse"), _ABSENT),
}
"""What to say of a word that is no environment."""

TASKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("math", "gsm8k"), "Problems in a file are 'dataset', for which the reward 'math' is made."),
    "code": "Problems in a file are 'dataset', and 'programs' makes some; the reward 'code' runs their tests.",
    "vision_language": "'shapes' draws pictures; those of your own come with a task of your own (docs/reasoning/pictures.md).",
}
"""What to say of a word that is no task of language models."""
