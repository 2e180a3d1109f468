"""Ranks that are workers of one process add by messages, and learn what one rank learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engines_toy import CASES, ToyPolicy, run_rank
from rank_threads import in_each
from safetensors.torch import load_file

from rlinf.core.errors import ConfigError
from rlinf.engines import FSDPConfig, FSDPTrainerConfig
from rlinf.engines.layout import Replicated
from rlinf.engines.ranks import join


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    case = CASES["none"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    found = in_each(2, lambda rank: run_rank(rank, 2, "", tmp_path / "two", case))
    one = run_rank(0, 1, "", tmp_path / "one", case | {"sizes": [[n for part in case["sizes"] for n in part]]})
    for seen in found:
        assert seen["sum"] == 3.0
        for expected, step in zip(one["history"], seen["history"], strict=True):
            assert step == pytest.approx(expected, abs=1e-6)
    expected = load_file(tmp_path / "one/weights_0.safetensors")
    for rank in range(2):
        for name, tensor in load_file(tmp_path / f"two/weights_{rank}.safetensors").items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)


def test_sums_are_those_of_all_ranks_in_order_and_change_nothing_else() -> None:
    def call(rank: int) -> tuple:
        ranks = join(rank, 3, "", device=torch.device("cpu"), timeout_s=20)
        # In float32, 2²⁴ + 1 is 2²⁴: the order shows.
        own = torch.tensor([[2.0**24, 1.0, 1.0][rank]])
        total, given = ranks.all_reduce(own), torch.full((2,), float(rank))
        ranks.broadcast(given)
        ranks.barrier()
        ranks.leave()
        return own.item(), total.item(), given.tolist(), ranks.all_gather(rank)

    assert in_each(3, call) == [(own, 2.0**24, [0.0, 0.0], [0, 1, 2]) for own in (2.0**24, 1.0, 1.0)]


def test_shards_are_refused_with_their_key() -> None:
    def call(rank: int) -> str:
        with pytest.raises(ConfigError) as caught:
            FSDPTrainerConfig(fsdp_config=FSDPConfig(strategy="fsdp2")).build(ToyPolicy(), rank=rank, world_size=2, rendezvous="")
        return str(caught.value)

    assert all(said.startswith("actor.fsdp_config.strategy: ") for said in in_each(2, call))


def test_who_needs_a_process_group_has_none() -> None:
    def call(rank: int) -> None:
        with pytest.raises(ConfigError, match="ranks share a process"):
            join(rank, 2, "", device=torch.device("cpu"), timeout_s=20, grouped=True)

    in_each(2, call)


def test_a_weight_that_one_rank_did_not_use_adds_nothing() -> None:
    def call(rank: int) -> list:
        first, both, never = (torch.nn.Parameter(torch.zeros(size)) for size in (3, 2, 2))
        both.grad = torch.full((2,), rank + 1.0)
        if rank == 0:
            first.grad = torch.ones(3)
        Replicated(join(rank, 2, "", device=torch.device("cpu"), timeout_s=5)).collect([first, both, never])
        return [None if each.grad is None else each.grad.tolist() for each in (first, both, never)]

    assert in_each(2, call) == [[[1.0] * 3, [3.0] * 2, None]] * 2
