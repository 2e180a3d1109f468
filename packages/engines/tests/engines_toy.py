"""A toy policy, loss and batch, and what one rank of a data-parallel trainer does with them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlinf.core import Batch, LossOutput, Metric, Rescored, Trajectory
from rlinf.core.errors import RLinfError
from rlinf.engines import FSDPConfig, FSDPTrainerConfig, OptimConfig


class ToyPolicy(torch.nn.Module):
    """A linear layer as actor, one as critic, and sizes that two ranks can't share evenly."""

    version = 0

    def __init__(self, seed: int = 0, dropout: float = 0.0, width: int = 5) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
        self.critic = torch.nn.Linear(3, 1)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("offset", torch.ones(1))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def default_forward(self, batch):
        states = batch.trajectory.context["states"]
        logprob = self.actor(self.dropout(states)).squeeze(-1) * self.offset
        return Rescored(logprob=logprob, value=self.critic(states).squeeze(-1))


def toy_loss(batch, evaluation):
    mask = batch.trajectory.mask.float()
    gap = (evaluation.logprob - batch.credit.advantage).square() + (evaluation.value - batch.trajectory.reward).square()
    total, weight = (gap * mask).sum(), mask.sum()
    return LossOutput(total=total, weight=weight, metrics={"gap": Metric(total.item(), weight.item())})


def toy_batch(rows: int = 10, horizon: int = 3, seed: int = 1) -> Batch:
    g = torch.Generator().manual_seed(seed)
    trajectory = Trajectory.of(
        context={"states": torch.randn(rows, horizon, 3, generator=g)},
        action=torch.zeros(rows, horizon, 1, 1),
        logprob=torch.zeros(rows, horizon),
        reward=torch.randn(rows, horizon, generator=g),
        mask=torch.rand(rows, horizon, generator=g) < 0.7,
    )
    return Batch.of(trajectory, torch.randn(rows, horizon, generator=g))


def parts_of(batch: Batch, sizes: list[int]) -> list[Batch]:
    """Consecutive rows of the given numbers."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [batch.rows(slice(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def parts_of_rank(batch: Batch, sizes: list[list[int]], rank: int) -> list[Batch]:
    """A rank's micro-batches, where each rank has consecutive rows in parts of the given sizes."""
    first = sum(map(len, sizes[:rank]))
    return parts_of(batch, [size for each in sizes for size in each])[first : first + len(sizes[rank])]


def visible(strategy: str = "auto", clip_grad: float | None = None) -> FSDPTrainerConfig:
    """With a large epsilon, Adam's step shows the size of the gradient, and a factor could not hide."""
    optim = OptimConfig(lr=1.0, value_lr=0.5, adam_eps=1.0, clip_grad=clip_grad)
    return FSDPTrainerConfig(optim, FSDPConfig(strategy=strategy, timeout_s=30.0))


def run_rank(rank: int, world_size: int, rendezvous: str, folder: Path, case: dict) -> dict:
    """One rank: steps over its share of the rows, then what it saw."""
    policy = ToyPolicy(seed=rank)
    config = visible(case["strategy"], case["clip_grad"])
    trainer = config.build(policy, rank=rank, world_size=world_size, rendezvous=rendezvous)
    batches = parts_of(toy_batch(), [n for sizes in case["sizes"] for n in sizes])
    first = sum(len(sizes) for sizes in case["sizes"][:rank])
    mine = batches[first : first + len(case["sizes"][rank])]
    if case.get("poison") == rank:
        mine[0].trajectory.reward[:] = float("nan")
    seen: dict = {"history": []}
    try:
        for _ in range(case["steps"]):
            trainer.evaluate(mine[0] if mine else toy_batch())
            seen["history"].append({k: m.mean for k, m in trainer.step(mine, toy_loss).items()})
        trainer.save(folder)
        weights = trainer.weights()
        seen["version"] = trainer.version
        seen["sum"] = trainer.all_reduce(torch.tensor([rank + 1.0])).item()
        save_file(dict(weights.tensors), folder / f"weights_{rank}.safetensors")
    except RLinfError as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    trainer.close()
    return seen


CASES = {
    "fsdp2": {"strategy": "fsdp2", "clip_grad": 0.5, "sizes": [[2, 1, 3], [4]], "steps": 3},
    "none": {"strategy": "none", "clip_grad": 0.5, "sizes": [[2, 1, 3], [4]], "steps": 3},
    "idle": {"strategy": "fsdp2", "clip_grad": None, "sizes": [[10], []], "steps": 1},
    "poison": {"strategy": "fsdp2", "clip_grad": None, "sizes": [[5], [5]], "steps": 1, "poison": 1},
}


def run_cases(rank: int, rendezvous: list[str], folder: Path) -> None:
    """All cases on two ranks, each below the folder of its name."""
    for (name, case), meeting in zip(CASES.items(), rendezvous, strict=True):
        (folder / name).mkdir(exist_ok=True)
        seen = run_rank(rank, 2, meeting, folder / name, case)
        (folder / name / f"seen_{rank}.json").write_text(json.dumps(seen))
