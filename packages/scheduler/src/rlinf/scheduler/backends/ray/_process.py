"""The process of one worker, as the driver sees it: its calls, its failure, and its return."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from rlinf.scheduler.backends.ray._ray import ray  # isort: skip - sets what Ray reads when it is imported
from ray.exceptions import RayError

from rlinf.core.cluster.futures import SLICE_S
from rlinf.core.errors import RLinfError, WorkerError
from rlinf.core.protocols import GroupSpec
from rlinf.scheduler.backends.ray._call import LAST_WORDS_S, RayCall
from rlinf.scheduler.backends.ray.process import send_call
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.placement import ProcessPlan
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.transport import DRIVER, address
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.workers.calls import SHUT_DOWN, WorkerInfo, ended
from rlinf.scheduler.workers.logs import WORKERS, Tail
from rlinf.scheduler.workers.supervisor import Supervisor

SUSPICION_S = 1.5
"""How long after Ray has lost a call the control connection of a process may still hold, if it has failed."""


class ActorLauncher(Protocol):
    """Starts the process again and again, and finds out how each ended."""

    def start(self, plan: ProcessPlan, incarnation: int) -> Any:
        """A new actor in the place of the plan."""
        ...

    def exit_reason(self, process: RayProcess, said: str) -> str:
        """How it died: `the process died (it was killed by SIGKILL), pid 12`. Ray said `said`."""
        ...

    def failed_start(self, process: RayProcess) -> str:
        """How its process ended, if it is known to have; Ray may take a minute to notice one that had not started."""
        ...

    def kill(self, process: RayProcess) -> None:
        """Ends the process, even one that is stopped."""
        ...

    def condition(self, process: RayProcess) -> str:
        """What keeps a living process from going on, if that can be seen; "" if nothing does."""
        ...


class RayProcess:
    """One worker's process, through all its restarts.

    Args:
        spec: what it runs.
        group: its group.
        plan: its place.
        timeout_s: the default deadline of a call.
        supervisor: what to do when it fails.
        failures: those of the run.
        launcher: starts it.
    """

    def __init__(
        self,
        spec: GroupSpec[Any],
        group: str,
        plan: ProcessPlan,
        timeout_s: float,
        supervisor: Supervisor,
        failures: Failures,
        launcher: ActorLauncher,
    ) -> None:
        self.spec = spec
        """Another one of the same class may take its place until the worker is constructed."""
        self._plan = plan
        self._supervisor = supervisor
        self._launcher = launcher
        self._line = threading.RLock()
        """Held while calls are sent, so that they keep their order, and while the state changes."""
        self._state = "starting"
        """Then `up`; `down` from a failure to the next start, and `ended` after the last one."""
        self._restarted: list[float] = []
        self.incarnations: dict[int, int] = {}
        """Process id → which start of the worker that is."""
        self._killed = (-1, "")
        """The last start that `kill` has ended, and how."""
        self._construct: RayCall | None = None
        self._rendezvous = ""
        self.failures = failures
        self.timeout_s = timeout_s
        self.calls: dict[RayCall, None] = {}
        """Those that have not ended, in order."""
        self.tail = Tail()
        self.incarnation = 0
        self._info = WorkerInfo(group=group, rank=plan.rank, devices=plan.devices, threads=plan.threads, pid=0, node=plan.node)
        self.actor = launcher.start(plan, 0)

    @property
    def info(self) -> WorkerInfo:
        return self._info

    @property
    def restarts(self) -> int:
        return len(self._restarted)

    @property
    def gone(self) -> bool:
        """Whether its process has ended, and none takes its place."""
        return self._state == "ended"

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RayCall:
        """See `Process`; while the process is being restarted, the call waits for its return."""
        self.failures.check()
        call = RayCall(self, method, lambda actor: send_call(actor, self.spec.worker, method, args, kwargs))
        with self._line:
            if self._state == "ended":
                raise ended(call.label)
            self.calls[call] = None
            if self._state == "up":
                self._send(call)
        return call

    def meet(self) -> Future[tuple[int, str]]:
        """The process id of this start, and where the ranks of its group may meet, when it has started."""
        return self.actor.meet.remote().future()

    def import_class(self) -> None:
        """Lets the process import the worker's class ahead of its construction, which tells what goes wrong with it."""
        self.actor.import_class.remote(self.spec.worker)

    def await_start(self, future: Future[tuple[int, str]], deadline: float) -> tuple[int, str]:
        """What `meet` gives.

        Raises:
            RLinfError: what came before: the process died, or the run ended.
            TimeoutError: nothing, until the deadline.
            RayError: Ray could not start it.
        """
        with waits.blocking(Wait(DRIVER, self._info.label, "it to start")):
            while True:
                self.failures.check()
                if not future.done() and (how := self._launcher.failed_start(self)):
                    # The search for how it ended may have found that Ray itself has.
                    self.failures.check()
                    problem = f"its process died before it had started ({how})"
                    raise WorkerError(self._info.group, self._info.rank, "__init__", problem)
                left = max(0.0, deadline - time.monotonic())
                try:
                    return future.result(min(left, SLICE_S))
                except TimeoutError:
                    if left == 0.0:
                        raise

    def construct(self, pid: int, rendezvous: str) -> RayCall:
        """Builds the worker in the process, which runs."""
        spec, self._rendezvous = self.spec, rendezvous
        self._info = replace(self._info, pid=pid)
        self.incarnations[pid] = self.incarnation
        call = RayCall(
            self,
            "__init__",
            lambda actor: actor.construct.remote(spec.worker, spec.args, dict(spec.kwargs), rendezvous),
            quiet=True,
        )
        self._construct = call
        call.send(self.actor, self.incarnation, again=False)
        return call

    def up(self) -> None:
        """The worker is built: it takes calls from now on."""
        with self._line:
            self._state, self._construct = "up", None
            # In their order, and under the lock, so that no later call overtakes them.
            for call in list(self.calls):
                self._send(call)

    def end(self) -> None:
        """Kills the process for good."""
        with self._line:
            self._state = "ended"
            ray.kill(self.actor)

    def shutdown(self) -> None:
        """Kills the process for good, and ends its calls."""
        if self._launcher.condition(self):  # Ray would wait for a process that is stopped
            self._launcher.kill(self)
        self.end()
        for call in list(self.calls):
            call.forgive()
            call.end(error=WorkerError(self._info.group, self._info.rank, call.method, SHUT_DOWN))

    def condition(self) -> str:
        """Why it may not go on, as far as it can be known here: "" if it runs."""
        if self._restarted and self._state in ("down", "starting"):
            return "its process is being started again"
        return self._launcher.condition(self)

    def miss(self, incarnation: int, said: str) -> None:
        """Ray has lost a call: the control connection shows whether the process has failed. Ray may be the only one who knows."""

        def suspect() -> None:
            self.handle_exit(incarnation, said)

        timer = threading.Timer(SUSPICION_S, suspect)
        timer.daemon = True
        timer.start()

    def kill(self, how: str) -> None:
        """Ends this process; what comes of it is as after any other failure, but that `how` says how it ended."""
        with self._line:
            if self._state in ("up", "starting"):
                self._killed = (self.incarnation, how)
                self._launcher.kill(self)

    def handle_exit(self, incarnation: int, said: str = "") -> None:
        """Finds out how a process ended, and draws the consequences; takes a while, in a thread of its own."""
        with self._line:
            # Ray and the control connection both tell of an end, and may tell late: the second one changes nothing.
            if incarnation != self.incarnation or self._state not in ("up", "starting") or self.failures.over:
                return
            construct, self._state = self._construct, "down"
        pending_calls = [construct] if construct is not None else list(self.calls)
        # Answers that the process gave before its end may still be under way.
        deadline = time.monotonic() + LAST_WORDS_S
        while not all(call.ended or call.lost for call in pending_calls) and time.monotonic() < deadline:
            time.sleep(0.01)
        error = self._exit_error(next((call.lost for call in pending_calls if call.lost), said))
        ray.kill(self.actor)  # in case that only its connection broke
        if construct is not None:
            construct.end(error=error)
        else:
            self._return(error)

    def _exit_error(self, said: str) -> WorkerError:
        method = "__init__" if self._construct is not None else next((call.method for call in list(self.calls)), "")
        incarnation, how = self._killed
        problem = how if incarnation == self.incarnation else self._launcher.exit_reason(self, said)
        return WorkerError(self._info.group, self._info.rank, method, problem, remote_traceback=self.tail.text())

    def _return(self, error: WorkerError) -> None:
        """Starts the process again while its supervisor allows it."""
        while not self.failures.over:
            delay = self._supervisor.delay(self._restarted, time.monotonic())
            if delay is None:
                self._state = "ended"
                self.failures.end(_spent(error, self.restarts))
                return
            self._restarted.append(time.monotonic())
            self._warn(f"{error.problem}; restart {self.restarts} in {delay:g} s; what its own queues held is lost")
            self._give_up(error)
            with self.failures.changed:
                self.failures.changed.wait_for(lambda: self.failures.over, delay)
            again = self._restart()
            if again is None:
                return
            error = again

    def _give_up(self, error: WorkerError) -> None:
        """Ends the calls that may not run twice."""
        for call in list(self.calls):
            if not call.reissuable:
                again = f"{call.method}() may not run twice by itself: its caller begins it once more, or the run ends"
                problem = f"{error.problem}; it is started again. {again}"
                call.end(error=WorkerError(error.group, error.rank, call.method, problem, remote_traceback=error.remote_traceback))

    def _restart(self) -> WorkerError | None:
        """One more start; what ended it if it did before the worker was built."""
        with self._line:
            if self._state == "ended" or self.failures.over:
                return None
            self.incarnation += 1
            self._state = "starting"
            self.actor = self._launcher.start(self._plan, self.incarnation)
        try:
            pid, _ = self.await_start(self.meet(), time.monotonic() + self.timeout_s)
            call = self.construct(pid, self._rendezvous)
            # A wait of nobody, so that no wait graph shows it.
            ended = self.failures.wait_until(lambda: call.ended or self.failures.over, Wait("", "", ""), self.timeout_s)
            if self.failures.over:
                return None
            if not ended:
                raise TimeoutError
            call.outcome()
        except WorkerError as error:
            return self._failed_start(error)
        except RLinfError:  # the run has ended
            return None
        except (RayError, TimeoutError) as error:
            first = str(error).strip().partition("\n")[0] or f"not done after {self.timeout_s:g} s"
            problem = f"its process did not start again: {first}"
            return self._failed_start(WorkerError(self._info.group, self._info.rank, "__init__", problem))
        self.up()
        self._warn(f"started again, pid {pid}")
        return None

    def _failed_start(self, error: WorkerError) -> WorkerError:
        with self._line:
            self._construct = None
            ray.kill(self.actor)
            if self._state != "ended":
                self._state = "down"
        return error

    def _send(self, call: RayCall) -> None:
        try:
            call.send(self.actor, self.incarnation, again=self._supervisor.reissues(self.spec.worker, call.method))
        except BaseException:
            self.calls.pop(call, None)
            raise

    def _warn(self, text: str) -> None:
        logging.getLogger(f"{WORKERS}.{address(self._info.group, self._info.rank)}").warning("%s", text)


def _spent(error: WorkerError, restarts: int) -> WorkerError:
    """The failure after the last restart."""
    if not restarts:
        return error
    problem = f"{error.problem}; it has been started again {restarts} times, and its supervisor allows no more"
    return WorkerError(error.group, error.rank, error.method, problem, remote_traceback=error.remote_traceback)
