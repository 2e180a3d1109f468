"""What an iteration of PPO takes for policies in their published sizes on one GPU: random weights, bfloat16, tabletop's pictures.

    uv run benchmarks/gpu_policies.py [--models openvla_oft pi0] [--out result.json]
    uv run benchmarks/gpu_policies.py --tiny      # tries the program: small presets on the CPU

Actor, rollout and simulators are processes of their own that share the GPU. OpenVLA-OFT (7.5 billion weights) trains adapters of
rank 32, π0 (3.3 billion) its action expert. Of each: seconds of the phases of the last iteration, decisions per second, GB of the
GPU by part, and the whole run with its start and its checkpoint. The first iteration does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlinf.scheduler.trace import spans

ROOT = Path(__file__).parents[1]
ENVS, DECISIONS = 64, 2
GB = 1e9
BOTH = (
    "runner.max_steps=3",
    "runner.timeout_s=3600",
    "runner.val_check_interval=0",
    "runner.logger.logger_backends=[]",
    "env.train.init_params={task: pick_place, obs_mode: rgb, image_size: 224, reward_mode: progress}",
    f"env.train.total_num_envs={ENVS}",
    f"env.train.max_steps_per_rollout_epoch={DECISIONS}",
    "env.train.auto_reset=true",
    "env.train.bootstrap_truncated=true",
    "env.eval={total_num_envs: 8, episodes: 8, final_episodes: 8}",
    "env.eval.video_cfg.save_video=false",
    f"actor.global_batch_size={ENVS * DECISIONS}",
    "actor.micro_batch_size=16",
    "algorithm.update_epoch=1",
)
MODELS = {
    "openvla_oft": (
        "tabletop_openvla_oft_ppo",
        "actor.model.num_action_chunks=8",
        "actor.model.n_action_bins=256",
        "actor.model.lora={rank: 32}",
    ),
    "pi0": (
        "tabletop_pi0_ppo",
        "actor.model.num_action_chunks=8",
        "actor.model.horizon=50",
        "actor.model.max_state_dim=32",
        "actor.model.max_action_dim=32",
        "actor.model.train_expert_only=true",
    ),
}
FULL = ("actor.model.preset=base", "actor.model.precision=bf16", "actor.fsdp_config={gradient_checkpointing: true}")
ON_GPU = (
    "cluster.backend=ray",
    "cluster.virtual_accelerators=null",
    "cluster.component_placement={actor: '0', rollout: '0', env: '0:0-3'}",
)
ON_CPU = (
    "cluster.backend=local",
    "cluster.virtual_accelerators={count: 1}",
    "cluster.component_placement={actor: '0', rollout: '0', env: '0'}",
)
PHASES = ("sync_weights", "generate_rollouts", "actor_training", "step", "env/simulate", "rollout/decide", "actor/score")


def main() -> None:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("gpu_policies.json"))
    parser.add_argument("--tiny", action="store_true", help="small presets on the CPU")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in given.models:
        found[name] = run(name, tiny=given.tiny)
        print(name, json.dumps(found[name]), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def run(name: str, *, tiny: bool) -> dict[str, Any]:
    """One run of three iterations."""
    recipe, *changed = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        command = [sys.executable, str(ROOT / "apps/embodied/train.py"), "--config-name", recipe, *BOTH, *changed]
        command += [*(ON_CPU if tiny else (*FULL, *ON_GPU)), f"runner.logger.log_path={folder}"]
        command += [f"cluster.tracer={{enabled: true, path: '{trace}'}}"]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        whole = time.perf_counter() - began
        lines = [json.loads(line) for line in Path(folder, recipe, "metrics.jsonl").read_text().splitlines()]
        last = [line for line in lines if "train/loss" in line][-1]
        memory: dict[str, float] = {}
        for span in spans(trace):
            if span.kind == "memory" and span.bytes:
                part = f"{span.group}/{span.name}"
                memory[part] = max(memory.get(part, 0.0), span.bytes / GB)
    times = {phase: last[f"time/{phase}"] for phase in PHASES if f"time/{phase}" in last}
    decisions = ENVS * DECISIONS
    return {
        "run_s": whole,
        "seconds": times,
        "decisions": decisions,
        "decided_per_s": decisions / times["generate_rollouts"],
        "trained_per_s": decisions / times["actor_training"],
        "memory_gb": memory,
        "grad_norm": last["train/grad_norm"],
    }


if __name__ == "__main__":
    main()
