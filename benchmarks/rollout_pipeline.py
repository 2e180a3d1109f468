"""How much of simulation and decision overlaps in a rollout, against the bound: `uv run benchmarks/rollout_pipeline.py`.

The workers are those of an embodied run (`EnvWorker`, `MultiStepRolloutWorker`) and so are the channels between them; the simulator
and the policy are of known cost (`timed_parts.py`). By default they sleep, so that other work on the machine hardly counts;
`--computes` lets them compute. A case is repeated `--repeats` times in the same workers, and its median counts.

An env worker has S slots (stages), a rollout T decisions; a step of a slot costs a, a decision for it b. The bound is the longest:

- T (a + b) + b, the chain of one slot: each step needs a decision first, and the last decision values the end;
- b + S T a + b, what an env worker has to do; S (T + 1) b N, what a rollout worker has to do for N of them (once, if it batches).

`row`: costs belong to environments, a = te / S and b = tp / S. `call`: costs belong to calls, a = te and b = tp, as of a simulator
on a GPU: there stages pay only where one side would be idle for longer. On the `local` back-end workers take turns: the bound is
the sum. Two ratios are printed: against the bound of the costs that were asked for, and of those that the workers' timers measured,
in which a busy machine wakes sleepers late.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rlinf.runners import read_embodied
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.task_types import launch
from rlinf.scheduler import Cluster
from timed_parts import Cost, TimedEnvWorker, TimedRolloutWorker

ENVS = 6
"""Environments of each env worker: whole numbers of them for 1, 2 and 3 stages."""
DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured."""

    kind: str = "row"
    """`row` or `call`; see above."""
    stages: int = 1
    te_ms: float = 20.0
    tp_ms: float = 20.0
    envs: int = 1
    """Env workers."""
    batching: str = "none"

    def costs(self, *, computes: bool) -> tuple[Cost, Cost]:
        """Of a simulation step and of a decision."""
        te, tp = self.te_ms / 1e3, self.tp_ms / 1e3
        if self.kind == "call":
            return Cost(call=te, computes=computes), Cost(call=tp, computes=computes)
        return Cost(row=te / ENVS, computes=computes), Cost(row=tp / ENVS, computes=computes)

    def per_slot_s(self) -> tuple[float, float]:
        """Seconds of a step of one slot, and of a decision for it."""
        parts = 1 if self.kind == "call" else self.stages
        return self.te_ms / 1e3 / parts, self.tp_ms / 1e3 / parts

    def bound_s(self, decisions: int, backend: str, costs: tuple[float, float]) -> float:
        """Seconds of a rollout in which nothing takes time but simulation and decision, given those of a slot."""
        s, t, (a, b) = self.stages, decisions, costs
        passes = self.passes * (t + 1) * b
        if backend == "local":
            return self.envs * s * t * a + passes
        return max(t * (a + b) + b, 2 * b + s * t * a, passes)

    @property
    def passes(self) -> int:
        """Of the policy for one decision of all slots, if every batch is whole."""
        return self.stages * (self.envs if self.batching == "none" else 1)


class Bench:
    """The workers of a rollout on one cluster; one of them decides.

    Args:
        backend: `local` or `ray`.
        envs: env workers.
        trace: where the flow trace goes; None records none.
    """

    def __init__(self, backend: str, *, envs: int = 1, trace: Path | None = None) -> None:
        self.backend, self._envs = backend, envs
        self._tracer = {"enabled": trace is not None, "path": None if trace is None else str(trace)}
        cfg = self._config(Case(), 1)
        self.cluster = Cluster(cluster_cfg=cast("Any", cfg.cluster))
        self._rollout = launch(TimedRolloutWorker, cfg, self.cluster, "rollout")
        self._env = launch(TimedEnvWorker, cfg, self.cluster, "env")
        self._requests = self.cluster.create_channel("requests", near="rollout")
        self._answers = self.cluster.create_channel("answers", near="env")
        self._trajectories = self.cluster.create_channel("trajectories")

    def seconds(
        self, case: Case, *, decisions: int, repeats: int, computes: bool = False
    ) -> tuple[list[float], tuple[float, float]]:
        """Of each of several rollouts, from the call of the workers to their return; one more before them is not counted.

        Returns:
            The seconds, and what a step of a slot and a decision for it took on average.
        """
        cfg, (simulation, decision) = self._config(case, decisions), case.costs(computes=computes)
        slots = slot_layout(cfg, self._envs)
        self._env.change(cfg, simulation).wait(DEADLINE_S)
        self._rollout.change(cfg, decision).wait(DEADLINE_S)
        spec = self._env.init_worker(slots["train"]).wait(DEADLINE_S)[0]
        topology = Topology(spec=spec, actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, slots=slots)
        self._rollout.init_worker(topology).wait(DEADLINE_S)
        self._env.connect(topology).wait(DEADLINE_S)
        found: list[float] = []
        for step in range(repeats + 1):
            self._env.prepare(step).wait(DEADLINE_S)
            began = time.perf_counter()
            playing = self._env.interact(step, self._requests, self._answers, self._trajectories)
            deciding = self._rollout.generate(step, self._requests, self._answers)
            playing.wait(DEADLINE_S)
            deciding.wait(DEADLINE_S)
            found.append(time.perf_counter() - began)
            for _ in range(self._envs):
                self._trajectories.get(key=0)
        simulated, decided = (group.pop_execution_times().wait(DEADLINE_S) for group in (self._env, self._rollout))
        rollouts = (repeats + 1) * case.stages
        step_s = max(times["simulate"] for times in simulated) / (rollouts * decisions)
        return found[1:], (step_s, decided[0]["decide"] / ((repeats + 1) * case.passes * (decisions + 1)))

    def _config(self, case: Case, decisions: int) -> EmbodiedConfig:
        placed = {"actor": "0", "rollout": "0", "env": f"0-{self._envs - 1}"}
        return read_embodied(
            {
                "runner": {"experiment_name": "pipeline", "max_steps": 1},
                "cluster": {
                    "backend": self.backend,
                    "virtual_accelerators": {"count": self._envs},
                    "component_placement": placed,
                    "tracer": self._tracer,
                },
                "env": {
                    "train": {
                        "env_type": "timed_parts:Timed",
                        "total_num_envs": ENVS * self._envs,
                        "max_steps_per_rollout_epoch": decisions,
                    },
                    "eval": {"total_num_envs": ENVS * self._envs},
                },
                "rollout": {"pipeline_stage_num": case.stages, "batching": case.batching},
                "actor": {"model": {"model_type": "timed_parts:TimedPolicy"}, "global_batch_size": ENVS * self._envs * decisions},
            }
        )


def pipelines(te_ms: float) -> list[Case]:
    """1, 2 and 3 stages, for equal costs and for either of them the double."""
    pairs = [(te_ms, te_ms), (te_ms, te_ms / 2), (te_ms / 2, te_ms)]
    return [
        Case(kind=kind, stages=stages, te_ms=te, tp_ms=tp) for kind in ("row", "call") for te, tp in pairs for stages in (1, 2, 3)
    ]


def batches(te_ms: float, envs: int) -> list[Case]:
    """Small requests of several env workers to one policy whose calls cost the same for any number of rows."""
    modes = ("none", "waiting", "stage")
    return [Case(kind="call", te_ms=te_ms, tp_ms=te_ms, envs=envs, stages=s, batching=mode) for s in (1, 2) for mode in modes]


def measured(bench: Bench, case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    seconds, paid = bench.seconds(case, decisions=given.decisions, repeats=given.repeats, computes=given.computes)
    median, of = statistics.median(seconds), given.decisions
    asked, took = (case.bound_s(of, bench.backend, costs) for costs in (case.per_slot_s(), paid))
    # How often a clock batches is not known beforehand, so neither is what a whole batch took.
    took = None if case.batching == "waiting" else took
    head = f"{bench.backend:5}  {case.kind:4}  {case.envs}:1  {case.batching:7}  stages {case.stages}"
    print(
        f"{head}  te {case.te_ms:4g} tp {case.tp_ms:4g} ms   {median:7.3f} s  {1e3 * median / of:6.1f} ms a decision   "
        f"bound {asked:7.3f} s   ratio {asked / median:.3f}   {'' if took is None else f'as measured {took / median:.3f}'}",
        flush=True,
    )
    row = {"backend": bench.backend, **asdict(case), "seconds": median, "bound_s": asked, "ratio": asked / median}
    return row if took is None else {**row, "ratio_of_measured_costs": took / median}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ray", "local"], choices=("ray", "local"))
    parser.add_argument("--te-ms", type=float, default=50.0, help="the larger of the two costs")
    parser.add_argument("--decisions", type=int, default=20, help="T, in one rollout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["stages", "batching"], choices=("stages", "batching"))
    parser.add_argument("--env-workers", type=int, default=3, help="of the cases of batching")
    parser.add_argument("--computes", action="store_true")
    parser.add_argument(
        "--trace", type=Path, help="writes the flow trace of two rollouts on Ray, with 1 and with 2 stages; no more"
    )
    parser.add_argument("--json", type=Path, help="where the figures go, too")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Workers on Ray load `timed_parts` by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    if given.trace is not None:
        for stages in (1, 2):
            bench = Bench("ray", trace=given.trace.with_stem(f"{given.trace.stem}_{stages}"))
            bench.seconds(Case(stages=stages, te_ms=given.te_ms, tp_ms=given.te_ms), decisions=6, repeats=1)
            bench.cluster.shutdown()
        return
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    for backend in given.backends:
        known = {"stages": pipelines(given.te_ms), "batching": batches(given.te_ms, given.env_workers)}
        for cases in (known[name] for name in given.cases):
            bench = Bench(backend, envs=cases[0].envs)
            rows += [measured(bench, case, given) for case in cases]
            bench.cluster.shutdown()
    print(f"load of the machine at the start {load:.1f}, at the end {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores")
    if given.json is not None:
        about = {"python": sys.version.split()[0], "machine": platform.machine(), "cores": os.cpu_count(), "load": load}
        protocol = {"decisions": given.decisions, "repeats": given.repeats, "computes": given.computes}
        given.json.write_text(json.dumps({**about, **protocol, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
