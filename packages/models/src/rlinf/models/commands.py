"""`rlinf check-policy`: does a policy keep the contract?"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from rlinf.core.config.arguments import ArgumentParser, key_value, real, whole
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, ContractError
from rlinf.core.models import build_model
from rlinf.core.protocols import LanguageModelConfig, Policy
from rlinf.core.registry import MODELS
from rlinf.core.testing.finding import any_broken, tell
from rlinf.core.testing.policy import PolicyContract

if TYPE_CHECKING:
    import torch

_BOUND = np.ones(3, np.float32)

TINY = EnvSpec(
    observation={
        "states": ArraySpec(shape=(7,), dtype="float32"),
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "wrist_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "extra_view_images": ArraySpec(shape=(1, 32, 32, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    },
    action=ArraySpec(shape=(3,), dtype="float32", low=-_BOUND, high=_BOUND),
    max_episode_steps=10,
)
"""An environment that needs no simulator and shows everything that a policy may want to see."""


TEXT = EnvSpec(
    observation={"input_ids": ArraySpec(shape=(6,), dtype="int64")},
    action=ArraySpec(shape=(1,), dtype="int64"),
    max_episode_steps=10,
)
"""What a language model is asked: texts of a few tokens, and which one follows."""


def check_policy(args: Sequence[str]) -> int:
    """Examines a policy: `rlinf check-policy pi0 preset=tiny`, or `rlinf check-policy my_module:MyConfig`.

    Returns:
        0 if every line of the contract holds, 1 if one is broken.
    """
    parser = ArgumentParser(prog="rlinf check-policy", description="Examines a policy on made-up observations.")
    parser.add_argument("policy", help="a registered model, or module:attr of a configuration class or of a factory(spec, *, seed)")
    parser.add_argument(
        "params", nargs="*", default=[], metavar="key=value", help="hyper-parameters with JSON values: hidden_sizes=[32,32]"
    )
    parser.add_argument("--tolerance", type=real(0), default=1e-5, help="of log-probabilities that must agree (1e-5, for float32)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the weights (0)")
    parser.add_argument("--device", default="cpu", help='where the weights are: cpu, cuda, "cuda:1" (cpu)')
    given = parser.parse_intermixed_args(list(args))
    # After parsing, so that help and refusals load no torch.
    import torch

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    params = dict(key_value(each, place="check-policy", example="hidden_sizes=[32,32]") for each in given.params)
    policy, spec = _build(given.policy, params, given.seed)
    device = _device(given.device)
    if isinstance(policy, torch.nn.Module):
        policy = policy.to(device)
    as_array = partial(torch.as_tensor, device=device)
    contract = PolicyContract(policy=policy, spec=spec, as_array=as_array, generator=generator, tolerance=given.tolerance)
    findings = contract.examine(report=tell)
    if any_broken(findings):
        return 1
    sys.stdout.write(f"{given.policy}: all {len(findings)} lines hold, to {given.tolerance:g}\n")
    return 0


def _device(name: str) -> torch.device:
    """A device of this machine that takes a tensor."""
    import torch

    try:
        found = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        first = str(error).partition("\n")[0]
        raise ConfigError("check-policy --device", f"'{name}' is no device here ({first})", "Try cpu.") from error
    if found.type == "meta":
        raise ConfigError("check-policy --device", f"'{name}' is no device here (its tensors hold no numbers)", "Try cpu.")
    return found


def _build(name: str, params: dict[str, Any], seed: int) -> tuple[Policy, EnvSpec]:
    """The policy, and the environment that it is asked about."""
    item: Any = MODELS.build(name, params, place="check-policy")
    spec = TEXT if isinstance(item, LanguageModelConfig) else TINY
    with _offline():
        policy = build_model(item, spec, seed=seed, place="check-policy")
    for needed in ("predict_action_batch", "default_forward", "weights", "load"):
        if not callable(getattr(policy, needed, None)):
            problem = f"{type(policy).__name__} has no {needed}(…), so it is no policy that acts"
            raise ConfigError("check-policy", problem, "Derive it from rlinf.models.BasePolicy.")
    return policy, spec


@contextlib.contextmanager
def _offline() -> Generator[None]:
    """A policy is built without a network."""

    def refuse(_: socket.socket, address: object) -> None:
        raise ContractError("build", f"expected to be built without a network, found a connection to {address}")

    with mock.patch.object(socket.socket, "connect", refuse):
        yield
