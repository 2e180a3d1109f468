"""`rlinf check-policy`: does a policy keep the contract?"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, ContractError, RLinfError
from rlinf.core.models import build_model
from rlinf.core.protocols import LanguageModelConfig, Policy
from rlinf.core.registry import MODELS
from rlinf.core.testing.finding import Finding
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
    given = parser.parse_args(list(args))
    # After parsing, so that help and refusals load no torch.
    import torch

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    policy, spec = _build(given.policy, dict(parameter(param, place="check-policy") for param in given.params), given.seed)
    device = _device(given.device)
    if isinstance(policy, torch.nn.Module):
        policy = policy.to(device)
    as_array = partial(torch.as_tensor, device=device)
    contract = PolicyContract(policy=policy, spec=spec, as_array=as_array, generator=generator, tolerance=given.tolerance)
    findings = contract.examine(report=_tell)
    broken = sum(finding.error is not None for finding in findings)
    if broken:
        _write(f"     {broken} of {len(findings)} lines are broken; the first is often the cause of others")
        return 1
    _write(f"{given.policy}: all {len(findings)} lines hold, to {given.tolerance:g}")
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
    if ":" in name and os.getcwd() not in sys.path:
        # A module that lies where the command is run is found, as by `python -m`, but takes no other module's place.
        sys.path.append(os.getcwd())
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


def parameter(text: str, *, place: str) -> tuple[str, Any]:
    """A hyper-parameter of a command line.

    Raises:
        ConfigError: it is no `key=value`.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(place, f"expected key=value, found '{text}'", "Such as hidden_sizes=[32,32].")
    try:
        return key, json.loads(value)
    except ValueError:
        # What is no JSON is text, so that preset=tiny needs no quotes.
        return key, value


def _tell(finding: Finding) -> None:
    if finding.error is None:
        _write(f"  ok {finding.sentence}")
        return
    _write(f"FAIL {finding.sentence}")
    name = "" if isinstance(finding.error, RLinfError) else f"{type(finding.error).__name__}: "
    _write(f"     {name}{finding.error}")


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
