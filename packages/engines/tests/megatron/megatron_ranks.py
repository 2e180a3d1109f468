"""Ranks of Megatron trainers: what each case does, and how ranks are started. Run as a program, one rank of all cases."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from forked_ranks import forked
from megatron_text import Writer, text_batch, text_loss
from safetensors.torch import save_file

from rlinf.engines import OptimConfig
from rlinf.engines.megatron import MegatronTrainerConfig

OPTIM = OptimConfig(lr=1.0, adam_eps=1.0, clip_grad=8.0, weight_decay=0.01)
"""With a large epsilon, Adam's step shows the size of the gradient; the clip bites in some steps."""
TENSOR, PIPELINE, CONTEXT, EXPERT = (
    {f"{kind}_parallel_size": 2} for kind in ("tensor_model", "pipeline_model", "context", "expert_model")
)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("llama", {"recompute": True}),
    "tensor": ("qwen3", {**TENSOR, "logit_chunk": 5}),
    "tensor_tied": ("qwen2", {**TENSOR, "max_tokens_per_mbs": 12, "recompute": True}),
    "data": ("qwen2", {}),
    "data_divided": ("llama", {"use_distributed_optimizer": True, "max_tokens_per_mbs": 12}),
    "context": ("qwen3", {**CONTEXT}),
    "pipeline": ("qwen3", {**PIPELINE}),
    "pipeline_tied": ("qwen2", {**PIPELINE, "max_tokens_per_mbs": 12}),
    "sequence": ("qwen3", {**TENSOR, "sequence_parallel": True}),
    "tensor_pipeline": ("qwen2", {**TENSOR, **PIPELINE}),
    "tensor_data": ("qwen3", {**TENSOR, "use_distributed_optimizer": True}),
    "context_pipeline": ("llama", {**CONTEXT, **PIPELINE}),
    "context_tensor_packed": ("qwen2", {**CONTEXT, **TENSOR, "max_tokens_per_mbs": 12}),
    "mixture": ("qwen3_moe", {"max_tokens_per_mbs": 12}),
    "expert": ("qwen3_moe", {**EXPERT}),
    "expert_packed": ("qwen3_moe_tied", {**EXPERT, "max_tokens_per_mbs": 12, "recompute": True, "use_distributed_optimizer": True}),
    "expert_context": ("qwen3_moe_tied", {**EXPERT, **CONTEXT, "max_tokens_per_mbs": 12}),
    "expert_sequence": ("qwen3_moe", {**EXPERT, **TENSOR, "sequence_parallel": True}),
    "expert_data": ("qwen3_moe", {**EXPERT, "use_distributed_optimizer": True}),
    "experts_context": ("qwen3_moe", {**CONTEXT, "expert_model_parallel_size": 4}),
    "experts_sequence": ("qwen3_moe", {**TENSOR, "sequence_parallel": True, "expert_model_parallel_size": 4}),
    "sequence_data": ("qwen3_moe_tied", {**TENSOR, "sequence_parallel": True, "use_distributed_optimizer": True}),
    "expert_pipeline": ("qwen3_moe_tied", {**EXPERT, **PIPELINE, "max_tokens_per_mbs": 12}),
    "context_data": ("qwen3", {**CONTEXT, "use_distributed_optimizer": True}),
}
SHIMMED = [name for name, (_, sizes) in CASES.items() if "sequence_parallel" in sizes or "pipeline_model_parallel_size" in sizes]
"""Those in which a piece of Megatron asks for CUDA."""
ALONE = ("alone", "mixture")
"""Those in which each rank is alone."""
DENSE_ON_TWO = ["alone", "tensor", "tensor_tied", "data", "data_divided", "context", "sequence", "pipeline", "pipeline_tied"]
ON_TWO = [*DENSE_ON_TWO, "mixture", "expert", "expert_packed", "expert_context", "expert_sequence"]
DENSE_ON_FOUR = ["tensor_pipeline", "tensor_data", "context_pipeline", "context_tensor_packed", "context_data"]
ON_FOUR = [*DENSE_ON_FOUR, "expert_data", "experts_context", "experts_sequence", "sequence_data", "expert_pipeline"]
CHAINS = {
    "chain": ("qwen2", (("tensor", 2), ("data_divided", 2), ("alone", 1), ("tensor", 2))),
    "expert_chain": ("qwen3_moe", (("expert", 2), ("data_divided", 2), ("mixture", 1), ("expert", 2))),
}
"""Who goes on from whose checkpoint, and on how many ranks."""
SIZES = {1: [[2, 1, 2, 1]], 2: [[2, 1], [3]], 4: [[2], [1], [2], [1]]}
"""Rows of the micro-batches of each share."""


def config_of(name: str) -> MegatronTrainerConfig:
    return MegatronTrainerConfig(OPTIM, timeout_s=120.0, reference="cpu", **CASES[name][1])


def parts_of(batch: Any, sizes: list[int]) -> list[Any]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [batch.rows(slice(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def share(index: int, shares: int) -> list[Any]:
    sizes = SIZES[shares]
    first = sum(len(one) for one in sizes[:index])
    return parts_of(text_batch(), [n for one in sizes for n in one])[first : first + len(sizes[index])]


SCORES = ("logprob", "entropy", "sum_pi_squared")


def uneven(index: int) -> Any:
    """What a share scores alone: packed, in another number of passes than its neighbour."""
    return text_batch().rows(slice(0, 6 if index % 2 else 1))


def run_case(name: str, rank: int, world_size: int, rendezvous: str, folder: Path) -> None:
    """Scores, steps twice over this rank's rows, and writes what came of it."""
    if name in ALONE:
        rank, world_size, rendezvous, folder = 0, 1, "", folder / str(rank)
        folder.mkdir()
    family, config = CASES[name][0], config_of(name)
    policy = Writer(family, seed=rank)
    trainer = config.build(policy, rank=rank, world_size=world_size, rendezvous=rendezvous)
    found = {f"start/{key}": tensor for key, tensor in trainer.weights().tensors.items()}
    for kind, batch in (("right", text_batch()), ("left", text_batch(left=True)), ("packed", text_batch(packed=True))):
        evaluation = trainer.evaluate(batch)
        found |= {f"{kind}/{field}": getattr(evaluation, field) for field in SCORES}
    index, shares = config.data_rank(rank, world_size)
    evaluation = trainer.evaluate(uneven(index))
    found |= {f"uneven/{field}": getattr(evaluation, field) for field in SCORES}
    mine, seen = share(index, shares), []
    for _ in range(2):
        trainer.offload("optimizer")
        trainer.onload()
        seen.append({key: metric.mean for key, metric in trainer.step(mine, text_loss).items()})
    found |= {f"end/{key}": tensor for key, tensor in trainer.weights().tensors.items()}
    found["reference"] = trainer.reference(text_batch()).clone()
    found["shares"] = trainer.all_reduce(torch.ones(1))
    save_file({key: tensor.contiguous().clone() for key, tensor in found.items()}, folder / f"found_{rank}.safetensors")
    (folder / f"seen_{rank}.json").write_text(json.dumps([*seen, trainer.version]))
    trainer.save(folder)
    trainer.close()


def run_chain(name: str, rank: int, rendezvous: list[str], folder: Path) -> None:
    """Two ranks that share matrices or experts write; two with copies go on, and write; ranks alone go on; all to the bit."""
    seen, kept = {}, {}
    family, plans = CHAINS[name]
    for number, ((name, world), meeting) in enumerate(zip(plans, rendezvous, strict=True)):
        alone = world == 1
        config = config_of(name)
        place = (0, 1, "") if alone else (rank, 2, meeting)
        trainer = config.build(Writer(family, seed=7), rank=place[0], world_size=place[1], rendezvous=place[2])
        if number:
            trainer.load(folder / str(number - 1))
            same = all(torch.equal(kept[key], tensor) for key, tensor in trainer.weights().tensors.items())
            seen[name + str(number)] = [same, trainer.version]
        trainer.step(share(*config.data_rank(*place[:2])), text_loss)
        kept = trainer.weights().tensors
        target = folder / (str(number) if not alone or rank == 0 else "unused")
        target.mkdir(exist_ok=True)
        trainer.save(target)
        trainer.close()
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    save_file({key: tensor.contiguous() for key, tensor in kept.items()}, folder / f"end_{rank}.safetensors")


def launch(folder: Path, world_size: int, cases: list[str], timeout_s: float = 280.0) -> Path:
    """What the ranks left of all cases. One process imports, which is most of the time, and becomes all ranks."""
    for name in cases:
        (folder / name).mkdir(parents=True, exist_ok=True)
    beside = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": beside}
    command = [sys.executable, __file__, str(world_size), str(folder), *cases]
    subprocess.run(command, env=env, timeout=timeout_s, check=True)
    return folder


def run_rank(rank: int, world_size: int, folder: Path, cases: list[str]) -> None:
    """All cases, one after another; those that need the shim last, since it changes the process for good."""
    for name in sorted(cases, key=lambda name: name in SHIMMED):
        # Files, since a port that was free a while ago may have been taken.
        addresses = [f"file://{folder}/{name}_{number}" for number in range(4)]
        if name in CHAINS:
            run_chain(name, rank, addresses, folder / name)
            continue
        shim: Any = nullcontext()
        if name in SHIMMED:
            from cuda_on_cpu import pretend

            shim = pretend()
        with shim:
            run_case(name, rank, world_size, addresses[0], folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Megatron imports the compiler for functions that are not used here: half of the time that importing it takes.
    torch.compile = lambda function=None, **_: function
    importlib.import_module("rlinf.engines.megatron._trainer")
    the_world, the_folder = int(sys.argv[1]), Path(sys.argv[2])
    sys.exit(not forked(the_world, run_rank, the_world, the_folder, sys.argv[3:]))
