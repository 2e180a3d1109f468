"""One rank and two give the same weights, whatever the split: real processes on gloo."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engines_ranks import free_port
from engines_toy import CASES, ToyPolicy, parts_of, run_rank, toy_batch, toy_loss, visible
from safetensors.torch import load_file

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.engines import FSDPConfig, FSDPTrainerConfig


@pytest.fixture(scope="module")
def two_ranks(two) -> Path:
    """What two processes left of all cases."""
    return two / "toys"


def seen_in(folder: Path) -> list[dict]:
    return [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in range(2)]


def one_rank(folder: Path, **case) -> dict:
    sizes = [[n for part in case["sizes"] for n in part]]
    return run_rank(0, 1, "", folder, case | {"sizes": sizes})


@pytest.mark.parametrize("strategy", ["fsdp2", "none"])
def test_two_ranks_equal_one(tmp_path, two_ranks, strategy):
    two = seen_in(two_ranks / strategy)
    one = one_rank(tmp_path, **CASES[strategy])
    assert [seen.get("error") for seen in two] == [None, None]
    assert two[0]["version"] == 3
    assert two[0]["sum"] == 3.0
    for seen in two:
        for expected, found in zip(one["history"], seen["history"], strict=True):
            assert found == pytest.approx(expected, abs=1e-6)
    expected = load_file(tmp_path / "weights_0.safetensors")
    for rank in range(2):
        found = load_file(two_ranks / strategy / f"weights_{rank}.safetensors")
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)
    goes_on_alone(two_ranks / strategy, tmp_path)


def goes_on_alone(two: Path, one: Path) -> None:
    """One rank takes over from what two wrote, optimizer included."""
    after = []
    for folder in (one, two):
        trainer = visible().build(ToyPolicy(seed=9), rank=0, world_size=1, rendezvous="")
        trainer.load(folder)
        trainer.step([toy_batch()], toy_loss)
        after.append(trainer.weights())
    assert after[0].version == after[1].version == 4
    for name, tensor in after[0].tensors.items():
        torch.testing.assert_close(after[1].tensors[name], tensor, atol=1e-6, rtol=0)


def test_a_rank_without_work_is_an_error_on_every_rank(two_ranks):
    assert all("1 ranks have no micro-batch" in seen["error"] for seen in seen_in(two_ranks / "idle"))


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(two_ranks):
    for seen in seen_in(two_ranks / "poison"):
        assert seen["history"][0]["skipped"] == 1.0
        assert math.isnan(seen["history"][0]["critic_grad_norm"])
        assert math.isfinite(seen["history"][0]["grad_norm"])
        assert seen["version"] == 0
    found = load_file(two_ranks / "poison" / "weights_1.safetensors")
    assert torch.equal(found["actor.0.weight"], ToyPolicy(seed=0).state_dict()["actor.0.weight"])


def test_a_rank_that_never_comes_is_a_deadline():
    config = FSDPTrainerConfig(fsdp_config=FSDPConfig(timeout_s=1.0))
    with pytest.raises(DeadlineExceeded, match="trainer rank 0 of 2: the ranks did not meet"):
        config.build(ToyPolicy(), rank=0, world_size=2, rendezvous=f"tcp://127.0.0.1:{free_port()}")


def test_ranks_need_a_rendezvous():
    with pytest.raises(ConfigError, match="rendezvous"):
        FSDPTrainerConfig().build(ToyPolicy(), rank=0, world_size=2, rendezvous="")


@pytest.mark.parametrize("sizes", [[10], [1] * 10, [3, 7], [9, 1], [4, 4, 2]])
def test_micro_batches_never_change_the_step(sizes):
    whole = visible().build(ToyPolicy(), rank=0, world_size=1, rendezvous="")
    split = visible().build(ToyPolicy(), rank=0, world_size=1, rendezvous="")
    batch = toy_batch()
    for _ in range(3):
        expected = whole.step([batch], toy_loss)
        found = split.step(parts_of(batch, sizes), toy_loss)
        assert found["loss"].mean == pytest.approx(expected["loss"].mean, abs=1e-6)
        assert found["gap"].weight == expected["gap"].weight
    for name, tensor in whole.weights().tensors.items():
        torch.testing.assert_close(split.weights().tensors[name], tensor, atol=1e-6, rtol=0)


LATE = """
import os
import torch
import torch.distributed as dist
from rlinf.engines.ranks import join

ranks = join(0, 1, "", device=torch.device("cpu"), timeout_s=60, grouped=True)
kept = dist.group.WORLD
for _ in range(2):
    dist.all_reduce(torch.ones(1))
core = {min(os.sched_getaffinity(0))}
for thread in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(thread, core)
    if thread != os.getpid():
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
dist.all_reduce(torch.ones(1))
ranks.leave()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="chooses who gets the core, as Linux can")
def test_a_process_may_end_right_after_its_ranks():
    """Gloo's threads get no core while the process wants it, and the group outlives `leave`, as FSDP's tensors keep it."""
    ended = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
