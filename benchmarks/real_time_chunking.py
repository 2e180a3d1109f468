"""What a delay does to a policy of action chunks, with and without real-time chunking: success, and how far actions jump.

uv run apps/embodied/collect.py --config-name tabletop_flow_sft --episodes 1000 --noise 0.3 data.path=logs/demonstrations/push_1000
uv run apps/embodied/sft.py --config-name tabletop_flow_sft cluster.backend=local data.path=logs/demonstrations/push_1000 \
    actor.model.num_action_chunks=8 runner.max_steps=60
uv run --group bench benchmarks/real_time_chunking.py logs/tabletop_flow_sft
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.evaluation import EvalReport
from rlinf.envs.recording import read_numpy

HERE = Path(__file__).parent
EVAL = HERE.parent / "apps/embodied/eval.py"
CHUNK = 8
TIMES = ((1, 2), (2, 3), (3, 4))
"""d and s."""


def measured(run: str, timing: str, delay: int, horizon: int) -> dict[str, Any]:
    """Success of 256 episodes, and the mean distance between the actions on both sides of a change of chunks, and of others."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = f"env.eval.data_collection={{save_dir: {folder}, export_format: numpy}}"
        keys = ("cluster.backend=local", "env.eval.episodes=256", "env.eval.video_cfg={save_video: false}", recorded)
        command = [sys.executable, str(EVAL), run, *keys, f"env.eval.real_time_chunking={timing}"]
        said = subprocess.run(command, check=True, text=True, capture_output=True).stdout
        report = EvalReport[Any].load(Path(said.split()[-1]))
        episodes = [read_numpy(file).actions for file in sorted(Path(folder).rglob("*.npz"))]
    jumps = [np.linalg.norm(np.diff(actions, axis=0), axis=1) for actions in episodes]
    changes = [np.arange(len(jump)) % horizon == (delay - 1) % horizon for jump in jumps]
    at_changes, elsewhere = (
        np.concatenate([jump[of == wanted] for jump, of in zip(jumps, changes, strict=True)]) for wanted in (1, 0)
    )
    rate = report.total
    return {"success": None if rate is None else rate.to_dict(), "jump": _mean(at_changes), "jump_elsewhere": _mean(elsewhere)}


def _mean(values: NDArray[Any]) -> float:
    return round(float(values.mean()), 3)


def main() -> None:
    """Measures the run that the command line names."""
    run = sys.argv[1]
    results: dict[str, Any] = {"waits": measured(run, "null", 0, CHUNK)}
    for delay, horizon in TIMES:
        for name, guidance in (("naive", "false"), ("guided", "true")):
            timing = f"{{delay: {delay}, execution_horizon: {horizon}, guidance: {guidance}}}"
            results[f"d={delay} s={horizon} {name}"] = measured(run, timing, delay, horizon)
    text = json.dumps(results, indent=2)
    (HERE / "results/real_time_chunking.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
