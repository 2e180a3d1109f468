"""Our environments in the hands of Stable-Baselines3. Importing this imports neither it nor a simulator."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from rlinf.core.registry import require_modules


def as_sb3_vec_env(env: VectorEnv[Any, Any, Any]) -> Any:
    """One of our vector environments as a `stable_baselines3.common.vec_env.VecEnv`, batched as it is.

        model = PPO("MlpPolicy", as_sb3_vec_env(env)).learn(100_000)

    Observations: texts are left out; where one array is left it is the observation ("MlpPolicy", "CnnPolicy"), otherwise they are
    a dict ("MultiInputPolicy"). What Stable-Baselines3 looks for in `infos` is there: `terminal_observation`,
    `TimeLimit.truncated`, `episode` with `r` and `l`; and `is_success`, where the task knows success.

    Args:
        env: without autoreset; it is not to be used otherwise from now on.

    Raises:
        MissingExtra: Stable-Baselines3 is not installed.
        ConfigError: an environment that has an autoreset already, or no observation but texts.
    """
    require_modules("stable_baselines3", place="as_sb3_vec_env", extra="stable-baselines3")
    from rlinf.envs.interop._stable_baselines3 import SB3VecEnv

    return SB3VecEnv(env)
