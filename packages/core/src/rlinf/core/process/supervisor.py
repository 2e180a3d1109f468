"""The parent of a program, run as a script: it ends what the program has started, whoever ends first, and can say how it ended.

    python -ISE supervisor.py STATUS WATCHED GRACE attached|detached PROGRAM [ARGUMENT …]

STATUS is a file for `exited 3` or `killed 9`, with `oom` behind it if the kernel ran out of memory meanwhile; "" for none. WATCHED
are process ids: when one of them ends, the program gets GRACE seconds to end, then it is killed, even if it is stopped. Orphans of
the program become children of this process, in whatever session they are, and are killed at the end.

- `attached`: for `ChildProcess`. The program gets a SIGTERM when one of the watched ends, or when this process gets one, and this
  process ends as the program did.
- `detached`: for a program that a service starts and whose process group the service kills. This process leaves that group, watches
  its parent, too, and expects the program to notice by itself.

It imports the standard library only and starts no thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_S = 10.0
"""How often orphans that have ended are reaped."""
_NOT_FOUND = 127
"""A shell's exit status for a program that can't be started."""


def command_line(
    command: Sequence[str], *, watched: Sequence[int], grace_s: float, status: str = "", detached: bool = False
) -> list[str]:
    """The command that runs another one under a supervisor; see above."""
    mode = "detached" if detached else "attached"
    # Isolated and without `site`, so that it starts fast and finds no modules of the user's.
    return [sys.executable, "-ISE", __file__, status, ",".join(map(str, watched)), str(grace_s), mode, *command]


def main(status: str, watched: list[int], grace_s: float, mode: str, command: list[str]) -> None:
    """Runs the command to its end."""
    if mode == "attached":
        if os.getppid() not in watched:  # the parent has ended before this began
            return
        _exit_alike(_supervise(status, watched, grace_s, command, attached=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Before the fork: the process that stays in the service's group, and ends when the service kills that; and the service.
    watched = [os.getpid(), os.getppid(), *watched]
    second = os.fork()
    if second:
        os.waitpid(second, 0)
        return
    os.setsid()
    _supervise(status, watched, grace_s, command, attached=False)


def _supervise(status: str, watched: list[int], grace_s: float, command: list[str], *, attached: bool) -> int:
    """Returns the program's wait status."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, me = _oom_kills(), os.getpid()
    asked = _wake_up_on_sigterm() if attached else -1
    child = os.fork()
    if child == 0:
        # What is ignored stays so in the program that replaces this one.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if not attached:
            os.setpgid(0, 0)
        # Safe here, as this process has one thread only. If it is killed, so is the program.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            # If the parent has ended before the call above, no signal will come.
            if os.getppid() == me:
                os.execvp(command[0], command)  # noqa: S606
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        # Without the handlers of the parent, of which this is a fork.
        os._exit(_NOT_FOUND)
    _wait(child, watched, grace_s, asked)
    _, code = os.waitpid(child, 0)
    text = f"killed {os.WTERMSIG(code)}" if os.WIFSIGNALED(code) else f"exited {os.WEXITSTATUS(code)}"
    if status:
        _write(status, text + (" oom" if _oom_kills() > before else ""))
    _end_children()
    return code


def _wake_up_on_sigterm() -> int:
    """A descriptor that can be read from after a SIGTERM, so that waiting for processes ends."""
    read, write = os.pipe()
    # Python refuses a wakeup descriptor that may block.
    os.set_blocking(write, False)
    signal.signal(signal.SIGTERM, _ignore)  # with SIG_IGN, nothing would be written
    signal.set_wakeup_fd(write)
    return read


def _ignore(number: int, frame: object) -> None:
    """Does nothing."""


def _wait(child: int, watched: list[int], grace_s: float, asked: int) -> None:
    """Returns when the program has ended, which is seen to if one of the watched has, or a SIGTERM came."""
    poll = select.poll()
    # It can be read from when the process has ended, and never means another one, as an id may.
    mine = os.pidfd_open(child)
    poll.register(mine, select.POLLIN)
    if asked >= 0:
        poll.register(asked, select.POLLIN)
    for other in watched:
        try:
            poll.register(os.pidfd_open(other), select.POLLIN)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)
    while not (ended := [descriptor for descriptor, _ in poll.poll(REAP_S * 1000)]):
        reap_orphans(child)
    if mine in ended:
        return
    if asked >= 0:
        # This process is of the group, too, and ignores it.
        os.killpg(0, signal.SIGTERM)
    select.select([mine], [], [], grace_s)
    os.kill(child, signal.SIGKILL)  # not reaped yet, so it is no other process


def reap_orphans(child: int) -> None:
    """Forgets orphans that have ended, up to the program itself."""
    while True:
        # Only looked at: the program itself must not be reaped before its status is read.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid == child:
            return
        os.waitpid(ended.si_pid, 0)


def _end_children() -> None:
    """Kills all that the program has left; what is killed leaves its own children to this process."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        # The list has those that have ended and were not reaped, too, so that it would never get empty.
        while children:
            try:
                children = [] if os.waitpid(-1, os.WNOHANG)[0] == 0 else children
            except ChildProcessError:
                return
        time.sleep(0.01)


def _oom_kills() -> int:
    """How many processes the kernel has killed in this control group because memory ran out; 0 if it does not say."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = dict(line.strip().split(":", 2)[1:] for line in file)
        # Version 1 of control groups has a line for each controller, version 2 has one line without a name. In a container, the
        # files of its own group may stand at the top.
        if "memory" in groups:
            folders = [f"/sys/fs/cgroup/memory{groups['memory']}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
        else:
            folders = [f"/sys/fs/cgroup{groups.get('', '')}/memory.events", "/sys/fs/cgroup/memory.events"]
        path = next(path for path in folders if os.path.exists(path))
        with open(path) as file:
            return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError):
        return 0


def _write(path: str, text: str) -> None:
    """A file that is there as a whole or not at all; a run that has ended has no folder for it."""
    try:
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)
    except OSError:
        pass


def _exit_alike(code: int) -> None:
    """Ends as the program did, by the same signal or with the same status."""
    if os.WIFSIGNALED(code):
        # A core file of this process would say nothing of the program.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(code)
        # How SIGKILL is handled can't be set.
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(code))


if __name__ == "__main__":
    main(sys.argv[1], [int(pid) for pid in sys.argv[2].split(",") if pid], float(sys.argv[3]), sys.argv[4], sys.argv[5:])
