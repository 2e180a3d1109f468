"""`rlinf check-policy`: examines a registered policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.registry import MODELS

USAGE = "Usage: rlinf check-policy <name> [key=value …], such as: rlinf check-policy mlp_policy hidden_sizes=[32,32]"

TINY = EnvSpec(
    observation={"states": ArraySpec(shape=(7,), dtype="float32")},
    action=ArraySpec(shape=(3,), dtype="float32"),
    max_episode_steps=10,
)
"""An environment that no simulator is needed for."""


def check_policy(args: Sequence[str]) -> int:
    """Builds a policy for a tiny environment and runs `PolicyContract` on it.

    Args:
        args: the registered name, then hyper-parameters as `key=value` with JSON values.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or wrong.
        ContractError: the policy breaks the contract.
    """
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
        return 0 if args else 2
    import torch

    from rlinf.core.testing.policy import PolicyContract

    config = MODELS.build(args[0], dict(_parameter(arg) for arg in args[1:]), place="check-policy")
    policy = config.build(TINY, seed=0)

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    contract = PolicyContract(policy=policy, spec=TINY, as_array=torch.as_tensor, generator=generator)
    sentences = contract.run(lambda sentence: _write(f"  ok  {sentence}"))
    _write(f"{args[0]}: {len(sentences)} checks passed")
    return 0


def _parameter(arg: str) -> tuple[str, Any]:
    key, equals, value = arg.partition("=")
    if not equals:
        raise ConfigError("check-policy", f"expected key=value, found '{arg}'", USAGE)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
