"""Environments in processes of their own, as one vector environment.

step(actions)                                       process 0: environments 0 … 3
    │  actions → shared memory                         reads its rows, steps, writes its rows
    ├──── "step, slot 2" ──────────────────────────▶ process 1: environments 4 … 7
    ◀──── "done", infos ────────────────────────────   the same, at the same time
    │  views of slot 2, leased while they are alive
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import SharedMemory
from rlinf.envs.remote.encoding import unpack
from rlinf.envs.remote.infos import join, truncate
from rlinf.envs.remote.launch import Launch, RunFolder, SimulatorDied
from rlinf.envs.remote.memory import PARTIAL, Arrays, Memory, plan
from rlinf.envs.remote.replay import Call, ResetCall, StepCall, columns_of
from rlinf.envs.remote.shard import RestartBudget, Shard
from rlinf.envs.remote.simulator import Description, SimulatorFailure, SimulatorProcess, raise_error, wait_for
from rlinf.envs.remote.spaces import Json
from rlinf.envs.wrappers.contract import EnvMisuse
from rlinf.envs.wrappers.episodes import Infos, Step, unmasked
from rlinf.envs.wrappers.video import Frame, Shot

_NEEDED = frozenset({"pure_reset", "seeds", "partial_reset", "instances"})
"""What an environment must keep of the contract for its episodes to be repeated in another process."""


class Processes(VectorEnv[Any, Any, Any]):
    """Environments in processes, each with a shard of consecutive ones; an `EnforceContract` around it checks the arguments.

    `infos["restarts"]` counts, as an int, how often a failed process was started again so far.

    Args:
        launch: how the processes are started.
        num_envs: N.
        processes: at least 1; no more are started than there are environments.

    Raises:
        SimulatorDied: one failed before it was ready.
        ConfigError: it can't be started, or the shards disagree about what they are.
    """

    def __init__(self, launch: Launch, num_envs: int, processes: int) -> None:
        self._shards: list[Shard] = []
        self._folder = RunFolder()
        self._shared = SharedMemory()
        self._budget = RestartBudget(launch.restarts)
        self._pending: dict[SimulatorProcess, Shard] = {}
        self._last: Arrays = {}
        self._asynchronous = False
        self._frames: dict[Shard, list[Frame]] = {}
        self.num_envs = num_envs
        try:
            for index, rows in enumerate(_partition(num_envs, processes)):
                start = partial(SimulatorProcess, launch, self._folder, index, rows, self._shared)
                self._shards.append(Shard(rows, launch, start, self._budget))
            # What was started must not outlive a constructor that fails, by an interrupt either.
            self._attach(launch)
        except BaseException:
            self.close()
            raise

    def _attach(self, launch: Launch) -> None:
        described, num_envs = self._descriptions(), self.num_envs
        untyped = cast("Any", self)
        untyped.single_observation_space = described.observation
        untyped.single_action_space = described.action
        untyped.observation_space = batch_space(described.observation, num_envs)
        untyped.action_space = batch_space(described.action, num_envs)
        self.metadata = {**described.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.metadata.pop("device", None)  # what comes from there are arrays
        self.metadata.pop("unseen_steps", None)  # whether a step is seen is not sent
        self.versions = described.versions
        if described.has_expert:
            # Only then, as by this `HasExpert` tells who has one.
            self.expert_actions = self._expert_actions
        layout = plan(described.observation, described.action, num_envs)
        self._memory = Memory(self._shared, layout)
        can_replay = not _NEEDED & set(self.metadata.get("waived", {}))
        for shard in self._shards:
            shard.attach(self._memory, layout.size, num_envs, can_replay=can_replay)

    @property
    def shards(self) -> list[range]:
        """The environments of each process."""
        return [shard.rows for shard in self._shards]

    @property
    def processes(self) -> list[int]:
        """The process id of each process."""
        return [shard.simulator.process.pid for shard in self._shards]

    @property
    def recycled(self) -> int:
        """How many processes were replaced because they had run enough episodes."""
        return self._budget.recycled

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes; see `EnforceContract.reset`, which has made lists of seeds and options."""
        calls = self._resets(seed, dict(options or {}))
        if self._asynchronous:
            self.begin(calls)
            return {}, {}
        with self._slot() as slot:
            self._run(calls, slot)
            for shard in self._shards:
                if shard not in calls:
                    # The slot is another one than before, and has nothing of these environments yet.
                    shard.query("show", slot)
                if shard.lost.any():
                    self._show_last(shard, slot)
        return self._lease(slot), {"restarts": self._budget.spent}

    def step(self, actions: Any) -> Step:
        """One step of every environment, in all processes at once."""
        calls = self.steps_of(actions, self._shards)
        with self._slot() as slot:
            infos = self._run(calls, slot)
        results = self._memory.results[slot]
        parts = [(len(shard.rows), self._truncate_lost(shard, infos[shard], slot)) for shard in self._shards]
        flags = (results["reward"].copy(), results["terminated"].copy(), results["truncated"].copy())
        return self._lease(slot), *flags, {**join(parts), "restarts": self._budget.spent}

    def render(self) -> tuple[Frame, ...]:
        """A frame of each environment, `[H, W, 3]` uint8."""
        return tuple(frame for shard in self._shards for frame in self._photographs(shard))

    def photograph(self, shot: Shot) -> Frame:
        """The frame of one environment; all of its shard are drawn, once after each step."""
        shard = next(shard for shard in self._shards if shot.index in shard.rows)
        return self._photographs(shard)[shot.index - shard.rows.start]

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the processes."""
        for shard in self._shards:
            # All are asked before any is waited for, so that they close at the same time.
            shard.simulator.request_close()
        for shard in self._shards:
            shard.close()
        self._shards = []
        self._shared.close()
        self._folder.clear()

    @contextlib.contextmanager
    def without_waiting(self) -> Generator[None]:
        """Inside, a reset is only begun; `collect` gets its answer."""
        self._asynchronous = True
        try:
            yield
        finally:
            self._asynchronous = False

    def steps_of(self, actions: Any, shards: Sequence[Shard]) -> dict[Shard, Call]:
        """The step of each shard, of actions `[N, *]`, which may be `MaskedActions`."""
        values, active = unmasked(actions, self.num_envs)
        values, everyone = as_numpy(values), bool(active.all())
        rows = {shard: slice(shard.rows.start, shard.rows.stop) for shard in shards}
        return {shard: StepCall(values[rows[shard]], None if everyone else active[rows[shard]]) for shard in shards}

    def shards_within(self, ids: NDArray[np.int64]) -> list[Shard]:
        """The shards all of whose environments are named."""
        named = set(ids.tolist())
        return [shard for shard in self._shards if named.issuperset(shard.rows)]

    def begin(self, calls: Mapping[Shard, Call]) -> None:
        """Asks some shards for something without waiting; `collect` gets the answers.

        Raises:
            EnvMisuse: one of them has not answered the request before.
        """
        busy = [shard for shard in calls if shard in self._pending.values()]
        if busy:
            where = f"environments {busy[0].rows.start} to {busy[0].rows.stop - 1} have not answered yet"
            raise EnvMisuse("env.send", where, "Call env.recv() first.")
        self._frames.clear()
        for shard, call in calls.items():
            shard.begin(call, PARTIAL)
            self._pending[shard.simulator] = shard

    def collect(self, least: int) -> list[tuple[Shard, Infos]]:
        """Waits until shards with at least that many environments have answered, those asked first coming first.

        Their observations and results lie in the slot of partial batches, see `partial_rows`.
        """
        answered: list[tuple[Shard, Infos]] = []
        while sum(len(shard.rows) for shard, _ in answered) < least:
            # One at a time, so that answers beyond `least` stay for the next call.
            for simulator, outcome in wait_for(list(self._pending), most=1).items():
                shard = self._pending.pop(simulator)
                infos = shard.result(outcome)
                answered.append(
                    (shard, infos if isinstance(shard.asked, ResetCall) else self._truncate_lost(shard, infos, PARTIAL))
                )
        return answered

    @property
    def pending(self) -> int:
        """Environments that were asked and have not answered."""
        return sum(len(shard.rows) for shard in self._pending.values())

    @property
    def restarts(self) -> int:
        """How often a failed process was started again."""
        return self._budget.spent

    def partial_rows(self, rows: NDArray[np.int64]) -> tuple[Arrays, Arrays]:
        """Copies of what lies in the slot of partial batches: observations, and `reward`, `terminated`, `truncated`."""
        observation, results = self._memory.observation(PARTIAL), self._memory.results[PARTIAL]
        return {k: array[rows] for k, array in observation.items()}, {k: array[rows] for k, array in results.items()}

    def _resets(self, seeds: Any, options: dict[str, Any]) -> dict[Shard, Call]:
        """The reset of each shard that has an environment to reset."""
        mask: NDArray[np.bool_] = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        calls: dict[Shard, Call] = {}
        for shard in self._shards:
            rows = slice(shard.rows.start, shard.rows.stop)
            if mask[rows].any():
                calls[shard] = ResetCall(mask[rows].copy(), tuple(seeds[rows]), columns_of(options, shard.rows))
        return calls

    def _descriptions(self) -> Description:
        """What the processes of all shards say of their environments."""
        described: dict[Shard, Json] = {}
        waiting = {shard.simulator: shard for shard in self._shards}
        while waiting:
            for simulator, outcome in wait_for(list(waiting)).items():
                if isinstance(outcome, SimulatorFailure):
                    raise SimulatorDied("env", str(outcome)) from outcome
                if "error" in outcome[0]:
                    raise_error(simulator, outcome[0]["error"])
                described[waiting.pop(simulator)] = outcome[0]
        first = described[self._shards[0]]
        for shard, fields in described.items():
            if fields != first:
                where = f"environments {shard.rows.start} to {shard.rows.stop - 1}"
                raise ConfigError("env", f"{where} describe themselves otherwise than the first", "Build them all the same way.")
        return Description(first)

    def _run(self, calls: Mapping[Shard, Call], slot: int) -> dict[Shard, Infos]:
        """Asks shards and waits for all of them, even if one fails."""
        if self._pending:
            raise EnvMisuse("env", f"{self.pending} environments have not answered yet", "Call env.recv() first.")
        self._frames.clear()
        for shard, call in calls.items():
            shard.begin(call, slot)
        waiting = {shard.simulator: shard for shard in calls}
        infos: dict[Shard, Infos] = {}
        failure: RLinfError | None = None
        while waiting:  # to the end even if one fails, so that all have taken the same number of steps
            for simulator, outcome in wait_for(list(waiting)).items():
                shard = waiting.pop(simulator)
                try:
                    infos[shard] = shard.result(outcome)
                except RLinfError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return infos

    @contextlib.contextmanager
    def _slot(self) -> Generator[int]:
        """A slot for the results of a call, given back if the call fails."""
        slot = self._memory.acquire()
        try:
            yield slot
        except BaseException:
            self._memory.release(slot)
            raise

    def _lease(self, slot: int) -> Arrays:
        """The observation in a slot, for the caller to keep."""
        self._last = self._memory.lease(slot)
        return dict(self._last)

    def _truncate_lost(self, shard: Shard, infos: Infos, slot: int) -> Infos:
        """Truncates episodes that were lost with their process, in the results of a step."""
        lost = shard.lost.copy()
        if not lost.any():
            return infos
        # A partial batch shows the first observation of the repetition instead, see `Asynchronous`.
        if slot != PARTIAL:
            self._show_last(shard, slot)
        rows = shard.rows.start + np.flatnonzero(lost)
        results = self._memory.results[slot]
        results["reward"][rows], results["terminated"][rows], results["truncated"][rows] = 0.0, False, True
        shard.lost[:] = False
        return truncate(infos, shard.known, lost)

    def _show_last(self, shard: Shard, slot: int) -> None:
        """Shows lost environments as they were seen last."""
        rows = shard.rows.start + np.flatnonzero(shard.lost)
        for key, array in self._memory.observation(slot).items():
            array[rows] = self._last[key][rows]

    def _expert_actions(self) -> NDArray[Any]:
        """What the experts of the simulators would do now, `[N, A]`."""
        if self._pending:
            raise EnvMisuse("env", f"{self.pending} environments have not answered yet", "Call env.recv() first.")
        answers = [shard.query("expert", PARTIAL) for shard in self._shards]
        return np.concatenate([unpack(fields["expert"], payload)["actions"] for fields, payload in answers])

    def _photographs(self, shard: Shard) -> list[Frame]:
        if shard not in self._frames:
            # Frames come with the answer, so no slot is written.
            fields, payload = shard.query("render", PARTIAL)
            self._frames[shard] = list(unpack(fields["frames"], payload).values())
        return self._frames[shard]


def _partition(num_envs: int, processes: int) -> list[range]:
    """Consecutive environments for each process, as evenly as it goes."""
    expect_at_least("env.processes", processes, 1)
    edges = [num_envs * k // min(processes, num_envs) for k in range(min(processes, num_envs) + 1)]
    return [range(a, b) for a, b in itertools.pairwise(edges)]
