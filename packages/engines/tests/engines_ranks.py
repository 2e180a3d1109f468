"""Training on several ranks: what each case does, and how ranks are started. Run as a program, all ranks of all cases."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from engines_text import OwnLoss, ToyWriter, sequence_loss, text_batch, token_loss
from engines_toy import parts_of_rank, run_cases
from forked_ranks import forked
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from weight_sync_toy import ToyNetwork, exchange_at

from rlinf.core import Weights
from rlinf.engines import CheckpointConfig, FSDPConfig, FSDPTrainerConfig, OptimConfig
from rlinf.engines.fsdp.resizing import prepare
from rlinf.engines.weight_sync import BucketWeightSync, DiskWeightSync, FullWeightSync, PatchWeightSync
from rlinf.engines.weights.checksum import checksums

STEPS = 2
SHARED = {"timeout_s": 60.0}
SIZES = {1: [[2, 1, 1, 2, 1]], 2: [[2, 1, 1], [3]], 4: [[2, 1], [1], [2], [1]]}
"""How many rows the micro-batches of each rank have, for each number of ranks."""
SHARDS = CheckpointConfig(format="sharded")

CASES: dict[str, FSDPTrainerConfig] = {
    "full_shard": FSDPTrainerConfig(fsdp_config=FSDPConfig(**SHARED)),
    "shard_grad_op": FSDPTrainerConfig(fsdp_config=FSDPConfig(sharding_strategy="shard_grad_op", **SHARED), max_tokens_per_mbs=11),
    "packed": FSDPTrainerConfig(fsdp_config=FSDPConfig(strategy="fsdp", **SHARED), max_tokens_per_mbs=11),
    "recomputed": FSDPTrainerConfig(
        fsdp_config=FSDPConfig(gradient_checkpointing=True, enable_gradient_accumulation=False, **SHARED)
    ),
    "no_shard": FSDPTrainerConfig(fsdp_config=FSDPConfig(sharding_strategy="no_shard", **SHARED)),
    "offloaded": FSDPTrainerConfig(fsdp_config=FSDPConfig(cpu_offload=True, **SHARED)),
    "frozen": FSDPTrainerConfig(fsdp_config=FSDPConfig(ignore_frozen=True, **SHARED), reference="cpu"),
    "forked": FSDPTrainerConfig(fsdp_config=FSDPConfig(**SHARED)),
    "hybrid": FSDPTrainerConfig(fsdp_config=FSDPConfig(sharding_strategy="hybrid_shard", shard_group_size=2, **SHARED)),
}
# Before 2.13 torch can't add zeros for weights that another rank used.
FORKED = ["forked"] if hasattr(FSDPModule, "set_reduce_scatter_unused_params") else []
ON_TWO = ["full_shard", "shard_grad_op", "packed", "recomputed", "no_shard", "offloaded", "frozen", *FORKED]
ON_FOUR = ["full_shard", "packed", "hybrid"]
MEETINGS = {"resizing": 8}
"""Where ranks meet in a case, if they do more often than four times."""


def visible(name: str) -> FSDPTrainerConfig:
    """With a large epsilon, Adam's step shows the size of the gradient; the clip bites."""
    optim = OptimConfig(lr=1.0, value_lr=0.5, adam_eps=1.0, clip_grad=0.2)
    return replace(CASES[name], optim=optim)


def run_case(name: str, rank: int, world_size: int, rendezvous: str, folder: Path) -> None:
    """Steps over this rank's rows, and writes what came of it."""
    policy = ToyWriter(seed=rank, frozen=name == "frozen", forks=name == "forked")
    trainer = visible(name).build(policy, rank=rank, world_size=world_size, rendezvous=rendezvous)
    mine = share(rank, world_size)
    seen = []
    for loss in (token_loss, sequence_loss):
        trainer.evaluate(mine[0])
        trainer.offload("optimizer")
        trainer.onload()
        seen.append({key: metric.mean for key, metric in trainer.step(mine, loss).items()})
    for take in (trainer.step_policy, trainer.measure_policy):
        seen.append({key: metric.mean for key, metric in take(mine, OwnLoss()).items()})
    seen.append({key: metric.mean for key, metric in trainer.add_policy_loss(mine, OwnLoss(), weight=0.3).items()})
    seen.append({key: metric.mean for key, metric in trainer.step(mine, token_loss).items()})
    found = {**trainer.weights().tensors, "scored": trainer.evaluate(text_batch()).logprob}
    if name == "frozen":
        found["reference"] = trainer.reference(text_batch())
    save_file(found, folder / f"weights_{rank}.safetensors")
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    trainer.close()


def share(rank: int, world_size: int) -> list:
    return parts_of_rank(text_batch(), SIZES[world_size], rank)


def run_chain(rank: int, rendezvous: list[str], folder: Path) -> None:
    """Two ranks write a checkpoint; one takes it over, and hands on to two."""
    config = replace(visible("full_shard"), checkpoint=SHARDS)
    trainer = config.build(ToyWriter(seed=rank), rank=rank, world_size=2, rendezvous=rendezvous[0])
    trainer.step(share(rank, 2), token_loss)
    kept = trainer.weights().tensors
    trainer.save(folder / "two")
    trainer.close()
    seen = {}
    if rank == 0:
        alone = config.build(ToyWriter(seed=5), rank=0, world_size=1, rendezvous="")
        alone.load(folder / "two")
        seen["same"] = all(torch.equal(kept[name], tensor) for name, tensor in alone.weights().tensors.items())
        seen["version"] = alone.version
        alone.step(share(0, 1), sequence_loss)
        kept = alone.weights().tensors
        alone.save(folder / "one")
        alone.close()
    trainer = config.build(ToyWriter(seed=6), rank=rank, world_size=2, rendezvous=rendezvous[1])
    trainer.load(folder / "one")
    again = trainer.weights().tensors
    if rank == 0:
        seen["again"] = all(torch.equal(kept[name], tensor) for name, tensor in again.items())
    trainer.step(share(rank, 2), token_loss)
    save_file(dict(trainer.weights().tensors), folder / f"weights_{rank}.safetensors")
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    trainer.close()


def run_sent(rank: int, rendezvous: str, folder: Path) -> None:
    """Two ranks send lazily by each way, to a receiver that takes the weights and to one that can't; training goes on."""
    trainer = visible("full_shard").build(ToyWriter(seed=rank), rank=rank, world_size=2, rendezvous=rendezvous)
    network, held = ToyNetwork(), dict(ToyWriter(seed=9).state_dict())
    short = {name: tensor for name, tensor in held.items() if not name.startswith("value_head")}
    seen: dict[str, object] = {}
    for name, sync in ways(folder / "shared").items():
        for current in (held, short, held):
            weights = trainer.lazy_weights()
            if rank:
                sync.send(network.at("actor", rank), weights, "rollout", [])
            else:
                receiver = Weights(tensors=current, version=0)
                sent, got = exchange_at(sync, network.at("actor", 0), weights, [network.at("rollout", 0)], [receiver])
            whole = trainer.weights().tensors
            if rank == 0 and current is held:
                seen[name] = [sent is None, checksums(got.tensors) == checksums(whole), got.version]
                save_file(dict(got.tensors), folder / f"{name}_{got.version}.safetensors")
            elif rank == 0:
                seen[f"{name} refused"] = [type(sent).__name__, type(got).__name__]
            trainer.step(share(rank, 2), token_loss)
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    trainer.close()


def run_masters(rank: int, rendezvous: str, folder: Path) -> None:
    """Two ranks train a policy in bfloat16 by small steps, and one of them writes the checkpoint of both."""
    from test_masters import SMALL, BrainWriter

    config = FSDPTrainerConfig(SMALL, FSDPConfig(**SHARED))
    trainer = config.build(BrainWriter(seed=rank), rank=rank, world_size=2, rendezvous=rendezvous)
    for _ in range(10):
        trainer.step(share(rank, 2), token_loss)
    trainer.save(folder)
    held = trainer._optimizers.parts[0].parameters
    seen = {
        "reduced": sorted({str(state.dtype) for p in held for key, state in trainer._optimizers.state(p).items() if key != "step"}),
        "types": sorted({str(tensor.dtype) for tensor in trainer.weights().tensors.values()}),
    }
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    trainer.close()


def ways(shared: Path) -> dict:
    few = {"timeout_s": 60.0}
    return {
        "full": FullWeightSync(**few),
        "bucket": BucketWeightSync(bucket_size=64, verify=True, **few),
        "patch": PatchWeightSync(bucket_size=64, **few),
        "disk": DiskWeightSync(str(shared), shard_size=200, **few),
    }


_HELD: list[socket.socket] = []


def free_port() -> int:
    """A port for a store of torch, which may bind it again; it stays bound here, so that nobody else is given it before."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _HELD.append(sock)
    return sock.getsockname()[1]


def launch(folder: Path, world_size: int, cases: list[str]) -> Path:
    """What the ranks left of all cases. One process imports, which is most of the time, and becomes all ranks."""
    for name in (*cases, "chain/two", "chain/one"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    ports = json.dumps({name: [free_port() for _ in range(MEETINGS.get(name, 4))] for name in cases})
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, __file__, str(world_size), str(folder), ports], env=env, timeout=280, check=True)
    return folder


def run_rank(rank: int, world_size: int, folder: Path, ports: dict[str, list[int]]) -> None:
    """All cases, one after another."""
    for name, own in ports.items():
        addresses = [f"tcp://127.0.0.1:{port}" for port in own]
        if name == "chain":
            run_chain(rank, addresses, folder / name)
        elif name == "sent":
            run_sent(rank, addresses[0], folder / name)
        elif name == "masters":
            run_masters(rank, addresses[0], folder / name)
        elif name == "toys":
            run_cases(rank, addresses, folder / name)
        elif name == "resizing":
            from resizing_ranks import run_resizing

            run_resizing(rank, addresses, folder / name)
        else:
            run_case(name, rank, world_size, addresses[0], folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    prepare()
    the_world = int(sys.argv[1])
    sys.exit(not forked(the_world, run_rank, the_world, Path(sys.argv[2]), json.loads(sys.argv[3])))
