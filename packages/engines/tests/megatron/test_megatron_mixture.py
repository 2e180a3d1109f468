"""A mixture of experts over ranks gives what the formula gives in one place, however uneven the tokens and those who want them."""

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from rlinf.engines.megatron.mapping import Experts
from rlinf.engines.megatron.mixture import Mixture

HIDDEN, COUNT, FFN = 5, 4, 3
TOKENS = (6, 1)
"""Of each rank."""


def problem(wanted: str) -> dict[str, torch.Tensor]:
    """Weights, tokens and what to descend; experts that are `spread`, or the first two alone, which are one rank's."""
    g = torch.Generator().manual_seed(4)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    found = {"router": noise(COUNT, HIDDEN), "gate_up": noise(COUNT, 2 * FFN, HIDDEN), "down": noise(COUNT, HIDDEN, FFN)}
    found |= {"tokens": noise(sum(TOKENS), 1, HIDDEN), "by": noise(sum(TOKENS), 1, HIDDEN)}
    if wanted == "first":
        found["tokens"][..., 0] = 1.0
        found["router"][:, 0] = torch.tensor([100.0, 100.0, 0.0, 0.0])
    return found


def answered(rank: int, folder: Path, wanted: str, normalised: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    config = SimpleNamespace(use_cpu_initialization=True, params_dtype=torch.float64, hidden_size=HIDDEN)
    mixture = Mixture(config, Experts(COUNT, 2, FFN, normalised), dist.group.WORLD)
    whole = problem(wanted)
    with torch.no_grad():
        mixture.router.copy_(whole["router"])
        mixture.gate_up.copy_(whole["gate_up"].chunk(2)[rank])
        mixture.down.copy_(whole["down"].chunk(2)[rank])
    tokens = whole["tokens"].split(TOKENS)[rank].clone().requires_grad_()
    found, bias = mixture(tokens)
    assert bias is None
    (found * whole["by"].split(TOKENS)[rank]).sum().backward()
    grads = {name: parameter.grad for name, parameter in mixture.named_parameters()}
    torch.save({"found": found.detach(), "tokens": tokens.grad, **grads}, folder / f"{rank}.pt")
    os._exit(0)


def in_one_place(wanted: str, normalised: bool) -> dict[str, torch.Tensor]:
    """Token by token, expert by expert."""
    whole = {name: tensor.requires_grad_(name != "by") for name, tensor in problem(wanted).items()}
    rows: list[torch.Tensor] = []
    for token in whole["tokens"].squeeze(1):
        share = (whole["router"] @ token).softmax(-1, dtype=torch.float32)
        chosen = share.argsort(descending=True)[:2]
        total = share[chosen].sum() if normalised else 1.0
        row = torch.zeros_like(token)
        for e in chosen.tolist():
            gate, up = (whole["gate_up"][e] @ token).chunk(2)
            row = row + (share[e] / total).double() * (whole["down"][e] @ (functional.silu(gate) * up))
        rows.append(row)
    found = torch.stack(rows)[:, None]
    (found * whole["by"]).sum().backward()
    return {"found": found.detach()} | {name: tensor.grad for name, tensor in whole.items() if name != "by"}


@pytest.mark.parametrize(("wanted", "normalised"), [("spread", True), ("spread", False), ("first", True)])
def test_experts_over_ranks_answer_as_in_one_place(tmp_path, wanted, normalised) -> None:
    """Values and all gradients; with `first` the second rank's experts are wanted by nobody."""
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=answered, args=(rank, tmp_path, wanted, normalised)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(100)
        assert one.exitcode == 0
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    expected = in_one_place(wanted, normalised)
    for name in ("found", "tokens", "gate_up", "down"):
        torch.testing.assert_close(torch.cat([one[name], other[name]]), expected[name], atol=1e-6, rtol=0)
    torch.testing.assert_close(one["router"] + other["router"], expected["router"], atol=1e-6, rtol=0)
    assert bool(other["gate_up"].any()) == (wanted == "spread")
