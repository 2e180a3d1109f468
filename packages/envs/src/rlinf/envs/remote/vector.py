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
import os
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.remote.block import Block, Budget
from rlinf.envs.remote.infos import join, truncate
from rlinf.envs.remote.journal import Call, Move, Reset, columns_of
from rlinf.envs.remote.launch import Launch, SimulatorDied, Workplace
from rlinf.envs.remote.memory import PARTIAL, Arrays, Memory, plan
from rlinf.envs.remote.simulator import Death, Description, Simulator, raise_error, wait_for
from rlinf.envs.remote.spaces import Json
from rlinf.envs.remote.wire import unpack
from rlinf.envs.wrappers.contract import EnvMisuse
from rlinf.envs.wrappers.episodes import Infos, Step, unmasked
from rlinf.envs.wrappers.video import Frame, Shot

_NEEDED = frozenset({"pure_reset", "seeds", "partial_reset", "instances"})
"""What an environment must keep of the contract for its episodes to be repeated in another process."""


class Processes(VectorEnv[Any, Any, Any]):
    """Environments in processes, each with a block of consecutive ones; an `EnforceContract` around it checks the arguments.

    `infos["restarts"]` counts, as an int, how often a dead process was started again so far.

    Args:
        launch: how the processes are started.
        num_envs: N.
        processes: at least 1; no more are started than there are environments.

    Raises:
        SimulatorDied: one died before it was ready.
        ConfigError: it can't be started, or the blocks disagree about what they are.
    """

    def __init__(self, launch: Launch, num_envs: int, processes: int) -> None:
        self._blocks: list[Block] = []
        self._workplace = Workplace()
        self._descriptor = os.memfd_create("rlinf-envs")
        self._budget = Budget(launch.restarts)
        self._pending: dict[Simulator, Block] = {}
        self._last: Arrays = {}
        self._asynchronous = False
        self._frames: dict[Block, list[Frame]] = {}
        self.num_envs = num_envs
        for index, rows in enumerate(_shares(num_envs, processes)):
            begin = partial(Simulator, launch, self._workplace, index, rows, self._descriptor)
            self._blocks.append(Block(rows, launch, begin, self._budget))
        try:
            self._settle_in(launch)
        except BaseException:
            self.close()
            raise

    def _settle_in(self, launch: Launch) -> None:
        about, num_envs = self._introductions(), self.num_envs
        untyped = cast("Any", self)
        untyped.single_observation_space = about.observation
        untyped.single_action_space = about.action
        untyped.observation_space = batch_space(about.observation, num_envs)
        untyped.action_space = batch_space(about.action, num_envs)
        self.metadata = {**about.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.metadata.pop("device", None)  # what comes from there are arrays
        self.versions = about.versions
        layout = plan(about.observation, about.action, num_envs)
        self._memory = Memory(self._descriptor, layout)
        can_replay = not _NEEDED & set(self.metadata.get("waived", {}))
        for block in self._blocks:
            block.settle_in(self._memory, layout.size, num_envs, can_replay=can_replay)

    @property
    def blocks(self) -> list[range]:
        """The environments of each process."""
        return [block.rows for block in self._blocks]

    @property
    def processes(self) -> list[int]:
        """The number of each process."""
        return [block.simulator.process.pid for block in self._blocks]

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
            for block in self._blocks:
                if block not in calls:
                    block.query("show", slot)
                if block.lost.any():
                    self._show_last(block, slot)
        return self._give(slot), {"restarts": self._budget.spent}

    def step(self, actions: Any) -> Step:
        """One step of every environment, in all processes at once."""
        calls = self.moves(actions, self._blocks)
        with self._slot() as slot:
            infos = self._run(calls, slot)
        results = self._memory.results[slot]
        parts = [(len(block.rows), self._honest(block, infos[block], slot)) for block in self._blocks]
        flags = (results["reward"].copy(), results["terminated"].copy(), results["truncated"].copy())
        return self._give(slot), *flags, {**join(parts), "restarts": self._budget.spent}

    def render(self) -> tuple[Frame, ...]:
        """A frame of each environment, `[H, W, 3]` uint8."""
        return tuple(frame for block in self._blocks for frame in self._photographs(block))

    def photograph(self, shot: Shot) -> Frame:
        """The frame of one environment; all of its block are drawn, once after each step."""
        block = next(block for block in self._blocks if shot.index in block.rows)
        return self._photographs(block)[shot.index - block.rows.start]

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the processes."""
        for block in self._blocks:
            block.simulator.part()
        for block in self._blocks:
            block.close()
        self._blocks = []
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._workplace.clear()

    @contextlib.contextmanager
    def without_waiting(self) -> Generator[None]:
        """Inside, a reset is only begun; `collect` gets its answer."""
        self._asynchronous = True
        try:
            yield
        finally:
            self._asynchronous = False

    def moves(self, actions: Any, blocks: Sequence[Block]) -> dict[Block, Call]:
        """The step of each block, of actions `[N, *]`, which may be `MaskedActions`."""
        values, active = unmasked(actions, self.num_envs)
        values, everyone = as_numpy(values), bool(active.all())
        rows = {block: slice(block.rows.start, block.rows.stop) for block in blocks}
        return {block: Move(values[rows[block]], None if everyone else active[rows[block]]) for block in blocks}

    def blocks_within(self, ids: NDArray[np.int64]) -> list[Block]:
        """The blocks all of whose environments are named."""
        named = set(ids.tolist())
        return [block for block in self._blocks if named.issuperset(block.rows)]

    def begin(self, calls: Mapping[Block, Call]) -> None:
        """Asks some blocks for something without waiting; `collect` gets the answers.

        Raises:
            EnvMisuse: one of them has not answered the question before.
        """
        busy = [block for block in calls if block in self._pending.values()]
        if busy:
            where = f"environments {busy[0].rows.start} to {busy[0].rows.stop - 1} have not answered yet"
            raise EnvMisuse("env.send", where, "Call env.recv() first.")
        self._frames.clear()
        for block, call in calls.items():
            block.post(call, PARTIAL)
            self._pending[block.simulator] = block

    def collect(self, least: int) -> list[tuple[Block, Infos]]:
        """Waits until blocks with at least that many environments have answered, those asked first coming first.

        Their observations and results lie in the slot of partial batches, see `partial_rows`.
        """
        answered: list[tuple[Block, Infos]] = []
        while sum(len(block.rows) for block, _ in answered) < least:
            for simulator, outcome in wait_for(list(self._pending), most=1).items():
                block = self._pending.pop(simulator)
                infos = block.finish(outcome)
                answered.append((block, infos if isinstance(block.asked, Reset) else self._honest(block, infos, PARTIAL)))
        return answered

    @property
    def pending(self) -> int:
        """Environments that were asked and have not answered."""
        return sum(len(block.rows) for block in self._pending.values())

    @property
    def restarts(self) -> int:
        """How often a dead process was started again."""
        return self._budget.spent

    def partial_rows(self, rows: NDArray[np.int64]) -> tuple[Arrays, Arrays]:
        """Copies of what lies in the slot of partial batches: observations, and `reward`, `terminated`, `truncated`."""
        observation, results = self._memory.observation(PARTIAL), self._memory.results[PARTIAL]
        return {k: array[rows] for k, array in observation.items()}, {k: array[rows] for k, array in results.items()}

    def _resets(self, seeds: Any, options: dict[str, Any]) -> dict[Block, Call]:
        """The reset of each block that has an environment to reset."""
        mask: NDArray[np.bool_] = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        calls: dict[Block, Call] = {}
        for block in self._blocks:
            rows = slice(block.rows.start, block.rows.stop)
            if mask[rows].any():
                calls[block] = Reset(mask[rows].copy(), tuple(seeds[rows]), columns_of(options, block.rows))
        return calls

    def _introductions(self) -> Description:
        """What all blocks say of themselves."""
        said: dict[Block, Json] = {}
        waiting = {block.simulator: block for block in self._blocks}
        while waiting:
            for simulator, outcome in wait_for(list(waiting)).items():
                if isinstance(outcome, Death):
                    raise SimulatorDied("env", str(outcome)) from outcome
                if "error" in outcome[0]:
                    raise_error(simulator, outcome[0]["error"])
                said[waiting.pop(simulator)] = outcome[0]
        first = said[self._blocks[0]]
        for block, fields in said.items():
            if fields != first:
                where = f"environments {block.rows.start} to {block.rows.stop - 1}"
                raise ConfigError("env", f"{where} describe themselves otherwise than the first", "Build them all the same way.")
        return Description(first)

    def _run(self, calls: Mapping[Block, Call], slot: int) -> dict[Block, Infos]:
        """Asks blocks and waits for all of them, even if one fails."""
        if self._pending:
            raise EnvMisuse("env", f"{self.pending} environments have not answered yet", "Call env.recv() first.")
        self._frames.clear()
        for block, call in calls.items():
            block.post(call, slot)
        waiting = {block.simulator: block for block in calls}
        infos: dict[Block, Infos] = {}
        failure: RLinfError | None = None
        while waiting:
            for simulator, outcome in wait_for(list(waiting)).items():
                block = waiting.pop(simulator)
                try:
                    infos[block] = block.finish(outcome)
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

    def _give(self, slot: int) -> Arrays:
        """The observation in a slot, for the caller to keep."""
        self._last = self._memory.lease(slot)
        return dict(self._last)

    def _honest(self, block: Block, infos: Infos, slot: int) -> Infos:
        """Truncates episodes that were lost with their process, in the results of a step."""
        lost = block.lost.copy()
        if not lost.any():
            return infos
        if slot != PARTIAL:
            self._show_last(block, slot)
        rows = block.rows.start + np.flatnonzero(lost)
        results = self._memory.results[slot]
        results["reward"][rows], results["terminated"][rows], results["truncated"][rows] = 0.0, False, True
        block.lost[:] = False
        return truncate(infos, block.known, lost)

    def _show_last(self, block: Block, slot: int) -> None:
        """Shows lost environments as they were seen last."""
        rows = block.rows.start + np.flatnonzero(block.lost)
        for key, array in self._memory.observation(slot).items():
            array[rows] = self._last[key][rows]

    def _photographs(self, block: Block) -> list[Frame]:
        if block not in self._frames:
            fields, payload = block.query("render", PARTIAL)
            self._frames[block] = list(unpack(fields["frames"], payload).values())
        return self._frames[block]


def _shares(num_envs: int, processes: int) -> list[range]:
    """Consecutive environments for each process, as evenly as it goes."""
    if processes < 1:
        raise ConfigError("env.processes", f"expected at least 1 process, found {processes}")
    edges = [num_envs * k // min(processes, num_envs) for k in range(min(processes, num_envs) + 1)]
    return [range(a, b) for a, b in itertools.pairwise(edges)]
