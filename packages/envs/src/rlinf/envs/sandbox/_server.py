"""The fork server: an interpreter that has confined itself, and forks once more for each program.

    python -I [-S] _server.py FOLDER_OF_THE_CONNECTION SETTING        # the setting in JSON

    server ─► container ─► monitor ─► program      namespaces: the monitor is process 1 of its own, and all of them end with it
    server ─► monitor ─► program                   below
    server = monitor ─► program                    in bubblewrap, for one program

A program arrives as open files, which the server itself never reads: what one program was given is in no process that another
one is forked from. The monitor alone talks to whoever asked, over a socket of that program's own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import resource
import secrets
import select
import signal
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from rlinf.core.process import connection, supervisor
    from rlinf.envs.sandbox import _kernel, _program
else:
    sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), sys.argv[1]]
    import _kernel
    import _program
    import connection
    import supervisor

    del sys.path[:2]

WARM: Final = (
    "abc", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv", "ctypes",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers",
    "operator", "os", "pathlib", "pprint", "queue", "random", "re", "secrets", "statistics", "string", "struct", "subprocess",
    "sys", "tempfile", "textwrap", "threading", "time", "traceback", "types", "typing", "unittest",
)  # fmt: skip
"""What programs import most, so that they find it imported."""
_FILES: Final = 5
"""What comes with each request: the program, its three standard streams, and the socket of its monitor."""
_OTHERS: Final = 2
"""Processes beside the program's that its user has in its namespace."""
_FIRST_LOOK_S: Final = 0.1
_LONGEST_LOOK_S: Final = 1.0
_INSIDE: Final = 1000
"""The user's number in the namespace of a program."""
_SCRATCH: Final = "/scratch"


def main() -> None:
    """Confines itself, says so, and serves programs until nobody asks any more."""
    setting: dict[str, Any] = json.loads(sys.argv[2])
    parent = connection.Connection.to_parent()
    try:
        server = Server(setting, parent)
    except (OSError, ImportError, RuntimeError) as error:
        parent.send({"refused": str(error)})
        return
    parent.send({"ready": True})
    try:
        while server.serve():
            pass
    except ConnectionError:  # nobody asks any more
        return


class Server:
    """What all programs of this process have in common.

    Raises:
        OSError: the machine does not allow what the level needs; the message says which step.
    """

    def __init__(self, setting: dict[str, Any], parent: connection.Connection) -> None:
        self.setting, self.parent = setting, parent
        self.proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC) if os.path.isdir("/proc/self") else -1
        _kernel.adopt_orphans()
        self.namespaces = setting["level"] == "namespaces" and not setting["bubblewrap"]
        if self.namespaces:
            self._enter()
        elif setting["user"]:
            self._choose_user()
        if setting["level"] == "landlock" and _kernel.landlock_abi() < _kernel.LANDLOCK_ABI:
            found = f"expected version {_kernel.LANDLOCK_ABI} (Linux 6.2), found {_kernel.landlock_abi()}"
            raise OSError(f"the kernel's Landlock: {found}")
        if setting["level"] != "namespaces":
            # What a server left that was killed.
            _empty(self._folder)
        for name in [*WARM, *setting["preload"]]:
            importlib.import_module(name)
        for name in ("_kernel", "_program", "_seccomp", "connection", "supervisor"):
            sys.modules.pop(name, None)
        setting["held"] = self._held()
        gc.collect()
        gc.disable()
        # What is forked from here on shares these objects' memory, which a collection would write to.
        gc.freeze()

    def serve(self) -> bool:
        """Runs one program; whether there may be others."""
        files = self.parent.receive_descriptors(_FILES)
        request, _ = self.parent.wait()
        if self.setting["bubblewrap"]:
            self._monitor(request, files, _SCRATCH)
        child = os.fork()
        if child == 0:
            self._contain(request, files)
        for file in files:
            os.close(file)
        os.waitpid(child, 0)
        _end_children()
        if not self.namespaces:
            _empty(self._folder)
        self.parent.send({"done": True})
        return True

    @property
    def _folder(self) -> str:
        return os.path.join(self.setting["scratch"], "run")

    def _contain(self, request: dict[str, Any], files: list[int]) -> NoReturn:
        """In the child of the server: becomes the monitor, or with namespaces its parent."""
        try:
            if not self.namespaces:
                folder = self._folder
                os.makedirs(folder, mode=0o700, exist_ok=True)
                if self.setting["user"]:
                    os.chown(folder, self.setting["user"], self.setting["user"])
                self._monitor(request, files, folder)
            self._leave()
            child = os.fork()
            if child == 0:
                _kernel.end_with_parent(signal.SIGKILL)
                self._monitor(request, files, _SCRATCH)
            for file in files:
                os.close(file)
            os.waitpid(child, 0)
        except BaseException as error:  # noqa: BLE001 - told to whoever asked; the server goes on
            _tell(files[-1], {"refused": f"{type(error).__name__}: {error}"})
        os._exit(0)

    def _enter(self) -> None:
        """Goes where there is no network, and of the file system only what the interpreter needs."""
        flags = _kernel.NEW_NS | _kernel.NEW_NET | _kernel.NEW_IPC | _kernel.NEW_UTS
        user, group = os.getuid(), os.getgid()
        if self.setting["user"]:
            _kernel.unshare(flags)
        else:
            _kernel.unshare(flags | _kernel.NEW_USER)
            _kernel.map_user(self.proc, _INSIDE, user, group)
        # Otherwise what is mounted here would appear in the namespace of the machine, too.
        _kernel.mount("none", "/", "", _kernel.MS_REC | _kernel.MS_PRIVATE)
        root = self.setting["scratch"]
        _kernel.mount("none", root, "tmpfs", _kernel.MS_NOSUID, "size=1m,mode=755")
        for folder in self.setting["readable"]:
            _show(root, folder)
        os.mkdir(f"{root}/dev")
        for device in _program.DEVICES:
            os.close(os.open(root + device, os.O_CREAT | os.O_WRONLY))
            _kernel.mount(device, root + device, "", _kernel.MS_BIND)
        os.mkdir(root + _SCRATCH)
        # It is there if packages are below it; then temporary files go where a program starts, which is the same folder.
        with contextlib.suppress(FileExistsError):
            os.symlink(_SCRATCH, f"{root}/tmp")  # noqa: S108
        _kernel.enter_root(root)
        _kernel.protect_mount("/", recursive=False)

    def _leave(self) -> None:
        """Goes on as nobody, in a namespace of processes and a scratch folder that end with the program."""
        own = self.setting["user"]
        if own:
            os.setgroups([])
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
        user, group = os.getuid(), os.getgid()
        # A change of user makes the files under /proc another one's.
        _kernel.set_dumpable(True)
        _kernel.unshare(_kernel.NEW_USER | _kernel.NEW_NS | _kernel.NEW_PID)
        _kernel.map_user(self.proc, _INSIDE, user, group)
        _kernel.end_with_parent(signal.SIGKILL)
        options = f"size={self.setting['scratch_mb']}m,nr_inodes=4096,mode=700"
        _kernel.mount("none", _SCRATCH, "tmpfs", _kernel.MS_NOSUID | _kernel.MS_NODEV, options)
        os.close(self.proc)
        self.parent.close()

    def _monitor(self, request: dict[str, Any], files: list[int], folder: str) -> NoReturn:
        """Starts the program, waits for its end, and says how it ended."""
        *given, report = files
        _kernel.set_dumpable(False)
        # Process 1 gets no signal of its own namespace that it does not handle.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        alone = self.setting["level"] == "namespaces"
        if alone:
            most = request["processes"] if request["processes"] > 1 else _program.THREADS
            resource.setrlimit(resource.RLIMIT_NPROC, (most + _OTHERS, most + _OTHERS))
        note = mmap.mmap(-1, mmap.PAGESIZE)
        reading, refusals = os.pipe()
        began = time.monotonic()
        program = os.fork()
        if program == 0:
            _program.become_program(request, self.setting, folder, given, refusals, note)
        for file in (*given, refusals):
            os.close(file)
        with os.fdopen(reading, "rb") as pipe:
            refused = pipe.read().decode(errors="replace")
        if refused:
            _tell(report, {"refused": refused})
            os._exit(0)
        # Tells whoever asked that the program has begun: from here on it must not be run again, whatever happens to this process.
        os.write(report, b"\n")
        status, crowded = _wait(program, report, alone=alone)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        about = _program.PROCESSES if crowded else note[0:1]
        seconds = {"wall_s": time.monotonic() - began, "cpu_s": used.ru_utime + used.ru_stime}
        _tell(report, {"status": status, "about": about.strip(b"\0").decode(errors="replace"), **seconds})
        os._exit(0)

    def _choose_user(self) -> None:
        """Has programs run as another user; as this one, where that can't read the interpreter but Landlock guards the files.

        Raises:
            OSError: nothing would keep them from this user's files.
        """
        folders = {path for folder in self.setting["readable"] for path in _upwards(os.path.realpath(folder))}
        closed = [path for path in folders if not os.stat(path).st_mode & stat.S_IXOTH]
        if closed and self.setting["level"] != "landlock":
            raise OSError(f"programs run as another user, who can't read '{min(closed)}', where this Python is")
        if closed:
            self.setting["user"] = 0
        os.chmod(self.setting["scratch"], 0o711)  # noqa: S103 - so that it leads to the folder of a program

    def _held(self) -> int:
        """Bytes of address space that this process has taken."""
        if self.proc >= 0:
            with os.fdopen(os.open("self/statm", os.O_RDONLY, dir_fd=self.proc), "rb") as statm:
                return int(statm.read().split()[0]) * mmap.PAGESIZE
        # Without /proc: the lowest limit under which one page more can be had.
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        low, high = 0, 1 << 44
        while high - low > 1 << 20:
            middle = (low + high) // 2
            resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
            try:
                mmap.mmap(-1, mmap.PAGESIZE).close()
                high = middle
            except (OSError, MemoryError):
                low = middle
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        return high


def _upwards(path: str) -> list[str]:
    """A path and all folders above it."""
    return [path] if path == "/" else [path, *_upwards(os.path.dirname(path))]


def _show(root: str, folder: str) -> None:
    """Makes a folder of the machine readable under the same path below a new root."""
    target = root + folder
    if os.path.exists(target):  # within one that is shown already
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(folder):
        os.symlink(os.readlink(folder), target)
        return
    os.mkdir(target)
    _kernel.mount(folder, target, "", _kernel.MS_BIND | _kernel.MS_REC)
    _kernel.protect_mount(target, recursive=True)


def _wait(program: int, report: int, *, alone: bool) -> tuple[int, bool]:
    """The program's status, -n for signal n, and whether it had as many processes as it may when that was looked at.

    Ends it when whoever asked says so, or is gone.
    """
    poll = select.poll()
    poll.register(os.pidfd_open(program), select.POLLIN)
    poll.register(report, select.POLLIN | select.POLLHUP)
    pause, crowded = _FIRST_LOOK_S, False
    while not (ready := poll.poll(pause * 1000)):
        pause = min(2 * pause, _LONGEST_LOOK_S)
        crowded = crowded or (alone and _is_crowded())
        # Until an orphan is forgotten it counts as a process.
        supervisor.reap_orphans(program)
    crowded = crowded or (alone and _is_crowded())
    if any(file == report for file, _ in ready):
        os.kill(program, signal.SIGKILL)
    code = os.waitpid(program, 0)[1]
    if alone and os.getpid() == 1:
        _kill_all()
    elif not alone:
        _end_children()
    return os.waitstatus_to_exitcode(code), crowded


def _is_crowded() -> bool:
    """Whether no process more can be started."""
    try:
        child = os.fork()
    except BlockingIOError:
        return True
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return False


def _kill_all() -> None:
    """In process 1: ends all others of its namespace, and waits for them."""
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _end_children() -> None:
    """Ends what is left below this process; where programs start no processes, there is nothing."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                with open(f"/proc/self/task/{os.getpid()}/children") as file:
                    for pid in file.read().split():
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.001)
        except (ChildProcessError, FileNotFoundError):
            return


def _tell(report: int, fields: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(report, json.dumps(fields).encode())


def _empty(folder: str) -> None:
    """Removes a folder, however deep and with whatever modes a program has left it."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    os.fchmod(top, 0o700)
    while names := os.listdir(top):
        for name in names:
            try:
                os.unlink(name, dir_fd=top)
            except OSError:
                _lift(top, name)
    os.close(top)
    os.rmdir(folder)


def _lift(top: int, name: str) -> None:
    """Moves what a folder holds one level up, and removes it."""
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    for entry in os.listdir(inner):
        # A folder can be moved by who may write to it; a link is not followed.
        if stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
            os.chmod(entry, 0o700, dir_fd=inner)
        os.rename(entry, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    os.close(inner)
    os.rmdir(name, dir_fd=top)


if __name__ == "__main__":
    main()
