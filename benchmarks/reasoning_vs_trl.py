"""Samples per second, end to end, of `ReasoningRunner` and of TRL's `GRPOTrainer`: same weights, tokenizer, prompts and rewards.

    uv venv --python 3.11 /tmp/trl && uv pip install --python /tmp/trl/bin/python -r benchmarks/reasoning_trl.txt
    uv run benchmarks/reasoning_vs_trl.py --trl /tmp/trl/bin/python            # one process with one thread each
    uv run benchmarks/reasoning_vs_trl.py --trl /tmp/trl/bin/python --cores 2  # Ray with a rollout on each core; TRL as it likes

An iteration writes `problems` × `group_size` responses, scores them, and takes one optimizer step with all of them. The network is
random (1.8 million weights), so that each token ends the response with probability 1/64: lengths vary as those of reasoning do, few
reach the limit. The learning rate of 1e-6 keeps them so. Same on both sides: GRPO with a clip, no KL, AdamW, float32, temperature
1, the limit, prompts (sums of six terms) and the reward (whether the answer occurs). What differs is what each of them is: TRL pads
all responses to the longest, writes them in one batch with `generate` (or with the continuous batching of transformers, a variant
of its own), and needs no log-probabilities of its rollout; ours writes continuously, gives a log-probability and a version with
each token, compares some of them with the trainer's, and trains on micro-batches of like length.

Every variant runs in a process of its own, in turns, `repeats` times; start-up and the first iteration don't count, weight
synchronisation, rewards and logging do. With one core, seconds are those of the process's CPU time, so that others who use the
machine count little; beside them those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TRL_SIDE = Path(__file__).with_name("reasoning_trl.py")
LETTERS = "0123456789+-=#abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"
"""60 characters; with the special ones 64 tokens."""


@dataclass(frozen=True, slots=True)
class Contains:
    """The reward: 1 if the answer occurs anywhere, else 0."""

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """One for each."""
        return [float(answer in text) for text, answer in zip(completions, answers, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a process measured."""

    samples: float
    """Responses per second of the chosen clock."""
    wall: float
    """Responses per second of the clock on the wall."""
    length: float
    """Tokens of a response, on average."""


def main() -> None:
    """Prepares, runs all variants in turns, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", help="the Python of an environment with benchmarks/reasoning_trl.txt")
    parser.add_argument("--cores", type=int, choices=[1, 2], default=1)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--limit", type=int, default=256, help="tokens of the longest response")
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=4, help="the first one does not count")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl-micro-batch", type=int, default=32)
    parser.add_argument("--rlinf", type=Path, metavar="FOLDER", help="used by the script itself")
    given = parser.parse_args()
    if given.rlinf is not None:
        run_rlinf(given, given.rlinf)
        return
    if given.trl is None:
        parser.error("--trl is needed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(given, folder)
        found: dict[str, list[Speed]] = {}
        for _ in range(given.repeats):
            for variant, command in commands(given, folder).items():
                found.setdefault(variant, []).append(measured(given, command, folder))
                print(f"{variant:24s} {asdict(found[variant][-1])}", flush=True)
    report(found)


def commands(given: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """What starts each variant."""
    ours = [sys.executable, __file__, "--rlinf", str(folder)]
    for name in ("cores", "problems", "group_size", "limit", "iterations"):
        ours += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    theirs = [str(TRL_SIDE), str(folder)]
    alone = [given.trl, *theirs]
    found = {"rlinf": ours, "trl, generate": alone, "trl, continuous": [*alone, "--continuous"]}
    if given.cores == 2:
        ranks = [given.trl, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *theirs]
        found |= {"trl, generate, 2 ranks": ranks}
    return found


def measured(given: argparse.Namespace, command: list[str], folder: Path) -> Speed:
    """Runs a variant, which writes when each iteration began: `[[wall, cpu], …]`, and the tokens of all responses."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    threads = "1" if "torch.distributed.run" in command or command[0] == sys.executable else str(given.cores)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode or not result.is_file():
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    told = json.loads(result.read_text())
    spent = [[end - begin for begin, end in zip(*pair, strict=True)] for pair in pairwise(told["marks"][1:])]
    responses = given.problems * given.group_size
    wall, cpu = (responses * len(spent) / sum(column) for column in zip(*spent, strict=True))
    return Speed(samples=wall if given.cores > 1 else cpu, wall=wall, length=told["tokens"] / (responses * (len(spent) + 1)))


def report(found: Mapping[str, Sequence[Speed]]) -> None:
    """Medians, and ours over the best of theirs."""
    print(f"{'':24s} samples/s  by the clock  tokens/response")
    medians: dict[str, float] = {}
    for variant, speeds in found.items():
        medians[variant] = statistics.median(speed.samples for speed in speeds)
        wall, length = (statistics.median(values) for values in zip(*((s.wall, s.length) for s in speeds), strict=True))
        print(f"{variant:24s} {medians[variant]:9.2f}  {wall:12.2f}  {length:15.1f}")
    best = max((variant for variant in found if variant != "rlinf"), key=medians.__getitem__)
    ratios = [ours.samples / theirs.samples for ours, theirs in zip(found["rlinf"], found[best], strict=True)]
    print(
        f"rlinf / {best}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); load {os.getloadavg()[0]:.1f}"
    )


def prepare(given: argparse.Namespace, folder: Path) -> None:
    """Writes the model with its tokenizer, and the problems."""
    from rlinf.envs.tasks import Arithmetic
    from rlinf.models.language import CausalLMConfig, TokensConfig, save_language_model

    sizes = {
        "hidden_size": given.hidden,
        "intermediate_size": 3 * given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.hidden // 32,
        "num_key_value_heads": given.hidden // 64,
        "head_dim": 32,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "max_position_embeddings": given.limit + 32,
    }
    tokens = TokensConfig(kind="characters", alphabet=LETTERS)
    config = CausalLMConfig(preset="tiny", architecture="qwen3", overrides=sizes, tokens=tokens)
    problems = Arithmetic().problems("train")[: given.problems * given.iterations]
    tokenizer = config.tokenizer([f"{problem.prompt}{problem.answer}" for problem in problems])
    save_language_model(config.build(seed=0), folder / "model", tokenizer=tokenizer)
    asked = {name: getattr(given, name) for name in ("problems", "group_size", "limit", "iterations", "trl_micro_batch")}
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    (folder / "work.json").write_text(json.dumps({"rows": rows, **asked}))


def configuration(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A run of `apps/reasoning`, as a mapping."""
    local = {"backend": "local", "component_placement": {"actor, rollout, reward": "0"}, "virtual_accelerators": {"count": 1}}
    placed = {"component_placement": {"actor": "0", "rollout": "0-1", "reward": "0"}, "virtual_accelerators": {"count": 2}}
    return {
        "runner": {
            "task_type": "reasoning",
            "experiment_name": "vs_trl",
            "max_steps": given.iterations,
            "val_check_interval": 0,
            "logger": {"log_path": str(folder)},
        },
        "cluster": local if given.cores == 1 else placed,
        "data": {"type": "arithmetic", "rollout_batch_size": given.problems, "val_problems": 1, "shuffle": False},
        "rollout": {
            "group_size": given.group_size,
            "max_running_requests": given.problems * given.group_size // given.cores,
            "sampling_params": {"max_new_tokens": given.limit},
        },
        "reward": {"reward_type": "reasoning_vs_trl:Contains"},
        "actor": {
            "model": {"model_type": "causal_lm", "model_path": str(folder / "model")},
            "optim": {"lr": 1e-6, "clip_grad": 1.0},
            "global_batch_size": given.problems * given.group_size,
            "max_tokens_per_mbs": 4096,
        },
        "algorithm": {"adv_type": "grpo", "loss_type": "ppo_clip"},
    }


def run_rlinf(given: argparse.Namespace, folder: Path) -> None:
    """Our side: what `apps/reasoning/train.py` does, with a look at the clock when an iteration begins."""
    from rlinf.runners.reasoning import ReasoningActor, ReasoningRolloutWorker, ReasoningRunner, RewardWorker, read_reasoning
    from rlinf.scheduler import Cluster, HybridComponentPlacement

    marks: list[tuple[float, float]] = []

    class Timed(ReasoningRunner):
        def update_rollout_weights(self) -> None:
            marks.append((time.perf_counter(), time.process_time()))
            super().update_rollout_weights()

    cfg = read_reasoning(configuration(given, folder))
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)

        def start(worker: Any, name: str) -> Any:
            return worker.create_group(cfg).launch(cluster, name=name, placement_strategy=placement.get_strategy(name))

        actor, reward = start(ReasoningActor, "actor"), start(RewardWorker, "reward")
        runner = Timed(cfg=cfg, actor=actor, rollout=start(ReasoningRolloutWorker, "rollout"), reward=reward)
        runner.init_workers()
        runner.run()
    (folder / "result.json").write_text(json.dumps({"marks": marks, "tokens": runner.tokens}))


if __name__ == "__main__":
    main()
