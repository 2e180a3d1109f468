"""The environments of one process, which another process takes over if that one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf.core.process import Message
from rlinf.envs.remote.encoding import unpack
from rlinf.envs.remote.launch import Launch, SimulatorDied
from rlinf.envs.remote.memory import Memory
from rlinf.envs.remote.replay import Call, Flags, ReplayLog, ResetCall, StepCall, StepResult
from rlinf.envs.remote.simulator import SimulatorFailure, SimulatorProcess, raise_error, wait_for
from rlinf.envs.remote.spaces import Json

logger = logging.getLogger("rlinf.envs")


class Shard:
    """The environments of one process, consecutive ones; their episodes go on in another process when theirs fails.

    Args:
        rows: its environments, a range of `[N]`.
        launch: how processes are started.
        start: starts a process for it.
        budget: the restarts of all shards together.
    """

    def __init__(self, rows: range, launch: Launch, start: Callable[[], SimulatorProcess], budget: RestartBudget) -> None:
        self.rows = rows
        self.simulator = start()
        self.lost: Flags = np.zeros(len(rows), np.bool_)
        """`[n]`, environments whose episode was lost with its process and can't be repeated: the next step truncates them."""
        self._launch = launch
        self._start = start
        self._budget = budget
        self._replay_log = ReplayLog(len(rows))
        self._form: Json = {}
        self._form_number = 0
        self.asked: Call | None = None
        """What it was asked last."""
        self._slot = 0
        self._episodes = 0

    @property
    def known(self) -> dict[str, Any] | None:
        """The `infos` of the last step that was taken; None after a reset of all."""
        return self._replay_log.last and self._replay_log.last.infos

    def attach(self, memory: Memory, size: int, num_envs: int, *, can_replay: bool) -> None:
        """Takes the shared memory into use, once all shards have described their environments the same way."""
        self._memory = memory
        self._size = size
        self._num_envs = num_envs
        self._can_replay = can_replay
        self._map()

    def begin(self, call: Call, slot: int) -> None:
        """Asks for a reset or a step, whose results go to a slot; `result` takes the answer."""
        self.asked, self._slot = call, slot
        if isinstance(call, ResetCall):
            self._recycle(call)
            self._episodes += int(call.mask.sum())
        self._ask(call)

    def result(self, outcome: Message | SimulatorFailure) -> dict[str, Any]:
        """The `infos` of the answer; where its process failed instead, of another one.

        Raises:
            SimulatorDied: it failed too often.
        """
        call = self.asked
        if call is None:
            raise RuntimeError("the result of a shard that was asked nothing")
        while True:
            try:
                if isinstance(outcome, SimulatorFailure):
                    return self._restart_and_retry(call, outcome)
                return self._read(call, outcome)
            except SimulatorFailure as failure:
                outcome = failure

    def query(self, call: str, slot: int) -> Message:
        """Asks for something that changes nothing, and waits for it; in a new process if need be.

        Args:
            call: `show`, the present observation again, `render`, or `expert`.
            slot: where an observation goes.
        """
        self._slot = slot
        while True:
            try:
                self.simulator.ask(call, self._launch.deadlines.step, slot=slot)
                return self._await()
            except SimulatorFailure as failure:
                self._restart(failure)

    def close(self) -> None:
        """Ends its process."""
        self.simulator.close()

    def _ask(self, call: Call) -> None:
        if isinstance(call, ResetCall):
            self.simulator.ask("reset", self._launch.deadlines.reset, slot=self._slot, **call.fields())
            return
        self._memory.actions[self.rows.start : self.rows.stop] = call.actions
        self.simulator.ask("step", self._launch.deadlines.step, slot=self._slot, form=self._form_number, **call.fields())

    def _await(self) -> Message:
        outcome = wait_for([self.simulator])[self.simulator]
        if isinstance(outcome, SimulatorFailure):
            raise outcome
        if "error" in outcome[0]:
            raise_error(self.simulator, outcome[0]["error"])
        return outcome

    def _read(self, call: Call, answer: Message) -> dict[str, Any]:
        """Reads an answer, and logs what was asked: only now, as a call without an answer must not be repeated."""
        fields, payload = answer
        if "error" in fields:
            raise_error(self.simulator, fields["error"])
        if isinstance(call, ResetCall):
            self._replay_log.add_reset(call)
            self.lost &= ~call.mask
            return unpack(fields["infos"], payload)
        result = self._result(answer)
        self._replay_log.add_step(call, result)
        return result.infos

    def _result(self, answer: Message) -> StepResult:
        self._form, self._form_number = answer[0].get("infos", self._form), answer[0]["form"]
        rows = slice(self.rows.start, self.rows.stop)
        arrays = self._memory.results[self._slot]
        # Copies: the slot is written again while the replay log still holds them.
        reward, terminated, truncated = (arrays[key][rows].copy() for key in ("reward", "terminated", "truncated"))
        return StepResult(reward, terminated, truncated, self._form, answer[1])

    def _map(self) -> None:
        self.simulator.ask("memory", self._launch.deadlines.start, size=self._size, num_envs=self._num_envs)
        self._await()

    def _start_another(self) -> bool:
        """Puts another process into the place of this one; says whether the running episodes go on in it.

        Raises:
            SimulatorFailure: the new one failed, too.
        """
        self.simulator.close()
        # `hello` is sent when a process is started; `_await` takes its answer.
        self.simulator = self._start()
        self._await()
        self._map()
        self._form, self._form_number = {}, 0  # the new process counts from the beginning
        if self._replay_log.is_empty:
            return True
        if self._can_replay and self._repeat():
            return True
        self._call_and_wait(self._replay_log.beginning_of(np.ones(len(self.rows), np.bool_)))
        return False

    def _repeat(self) -> bool:
        """Repeats the running episodes; says whether they came out the same."""
        result: StepResult | None = None
        for call in self._replay_log.calls():
            if result is not None and isinstance(call, StepCall):
                # An episode that has ended takes no step, not even one of those that were not meant for it (see `calls`).
                ended = result.done if call.active is None else result.done & call.active
                if ended.any():
                    self._call_and_wait(self._replay_log.beginning_of(ended))
            answer = self._call_and_wait(call)
            if isinstance(call, StepCall):
                result = self._result(answer)
        # The statistics of the last step sum up the earlier ones, so only this step is compared.
        before, rows = self._replay_log.last, self._replay_log.compared
        if before is None or result is None or before.agrees(result, rows):
            return True
        logger.warning("%s: its episodes came out differently when they were repeated", self.simulator.name)
        return False

    def _call_and_wait(self, call: Call) -> Message:
        self._ask(call)
        return self._await()

    def _restart_and_retry(self, call: Call, failure: SimulatorFailure) -> dict[str, Any]:
        """Starts another process, brings it to where the former one was, and asks again."""
        self._restart(failure)
        if self.lost.any() and not isinstance(call, ResetCall):
            return {}  # this step is not taken: `Processes` ends the lost episodes with it
        return self._read(call, self._call_and_wait(call))

    def _restart(self, failure: SimulatorFailure | None) -> None:
        """Another process in the state of this one, as far as that can be; tries as often as restarts are left."""
        while True:
            # A planned replacement costs none of the restarts.
            if failure is not None:
                self._budget.spend(failure)
                logger.warning("%s; it is started again", failure)
            try:
                self.lost |= not self._start_another()
                return
            except SimulatorFailure as another:
                failure = another

    def _recycle(self, call: ResetCall) -> None:
        """Replaces the process when it has run enough episodes, at a reset that lets it be done without a trace."""
        limit = self._launch.episodes
        if limit is None or self._episodes < limit or not (call.mask.all() or self._can_replay):
            return
        if call.mask.all():
            self._replay_log = ReplayLog(len(self.rows))  # nothing runs on, so nothing is repeated
        self._episodes = 0
        self._restart(None)
        self._budget.recycled += 1


class RestartBudget:
    """Restarts of failed processes, counted.

    Args:
        most: as many as are allowed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.spent = 0
        self.recycled = 0
        """Processes that were replaced because they had run enough episodes."""

    def spend(self, failure: SimulatorFailure) -> None:
        """Counts a restart.

        Raises:
            SimulatorDied: there were enough.
        """
        if self.spent >= self._most:
            remedy = f"Restarts before: {self.spent}. See why it fails, or raise the environment's 'restarts'."
            raise SimulatorDied("env", str(failure), remedy) from failure
        self.spent += 1
