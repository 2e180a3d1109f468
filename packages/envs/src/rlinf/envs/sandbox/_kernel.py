"""What the sandbox asks of the Linux kernel, by `ctypes`: namespaces, mounts, Landlock, capabilities, the filter of system calls.

Loaded by path in the sandbox's own processes, so it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
LANDLOCK_ABI = 3
"""From which version on truncating a file counts as writing it: Linux 6.2."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# System calls this new have the same number on both machines.
_MOUNT_SETATTR, _LANDLOCK = 442, (444, 445, 446)
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _SET_PDEATHSIG, _SET_SUBREAPER = 4, 22, 38, 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_WORD = ctypes.c_ulong


def _expect(result: int, doing: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: object, doing: str) -> int:
    return _expect(_libc.syscall(ctypes.c_long(number), *arguments), doing)


def _prctl(option: int, value: int, doing: str) -> None:
    # All are words: with fewer or narrower ones, the kernel may see what a register happened to hold.
    _expect(_libc.prctl(ctypes.c_int(option), _WORD(value), _WORD(0), _WORD(0), _WORD(0)), doing)


def unshare(flags: int) -> None:
    """Leaves namespaces for new ones; a new one of processes is for the next child."""
    _expect(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts something, with the flags and options of the system call of that name."""
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), _WORD(flags), options.encode())
    _expect(done, f"mount {source} at {target}")


def protect_mount(path: str, *, recursive: bool) -> None:
    """Makes a mount read-only, without devices and set-user-id; what its other options are stays."""
    # `struct mount_attr`: it sets RDONLY, NOSUID and NODEV, and clears nothing.
    attributes = struct.pack("=QQQQ", 1 | 2 | 4, 0, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(len(attributes))
    _syscall(_MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), path.encode(), flags, attributes, size, doing=f"protect {path}")


def enter_root(path: str) -> None:
    """Makes a mounted folder the root, and lets go of the old one."""
    os.chdir(path)
    # With one folder as both arguments the old root lies on top of the new one, where it can be unmounted; see pivot_root(2).
    _syscall(_PIVOT_ROOT[os.uname().machine], b".", b".", doing="pivot_root")
    _expect(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "umount2")
    os.chdir("/")


def map_user(proc: int, inside: int, user: int, group: int) -> None:
    """Gives one user and one group of the namespace above names in this process's new user namespace.

    Args:
        proc: a descriptor of a folder `/proc` in which this process stands.
        inside: the name of both in here.
        user: the user's name above.
        group: the group's.
    """
    # In this order: a process without rights may write `gid_map` only once `setgroups` is denied.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def landlock_abi() -> int:
    """The version of Landlock that the kernel offers; 0 without."""
    # The flag 1 asks for the version in place of a set of rules.
    return max(0, int(_libc.syscall(ctypes.c_long(_LANDLOCK[0]), None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def landlock(readable: list[str], writable: str, devices: list[str]) -> None:
    """From now on, no other files: some folders to read, one to write, and some devices."""
    abi = landlock_abi()
    # All rights of version 3, and that to control devices, which came with version 5; what is not named here stays allowed.
    handled = (1 << 15) - 1 | (1 << 15 if abi >= 5 else 0)
    # The bits: 0 executes, 1 writes a file, 2 reads it, 3 lists a folder. In the scratch folder all is allowed but the first.
    rules = [(path, 0b1100) for path in readable] + [(path, 0b0110) for path in devices] + [(writable, handled & ~1)]
    attributes = struct.pack("=Q", handled)
    size = ctypes.c_size_t(len(attributes))
    ruleset = _syscall(_LANDLOCK[0], attributes, size, ctypes.c_uint(0), doing="landlock_create_ruleset")
    for path, rights in rules:
        if not os.path.exists(path):
            continue
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights & handled, file)
        _syscall(_LANDLOCK[1], ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0), doing=f"landlock {path}")
        os.close(file)
    _syscall(_LANDLOCK[2], ctypes.c_int(ruleset), ctypes.c_uint(0), doing="landlock_restrict_self")
    os.close(ruleset)


def drop_capabilities() -> None:
    """Gives up all capabilities, and any way to get some."""
    _prctl(_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    # Version 3 of the call, for this process, with three empty sets in two halves of 32 bits.
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _expect(_libc.capset(header, none), "capset")


def seccomp(filter_program: bytes) -> None:
    """From now on, the filter decides about each system call of this process and its children."""

    class Program(ctypes.Structure):
        """`struct sock_fprog`."""

        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    program = Program(len(filter_program) // 8, filter_program)
    done = _libc.prctl(ctypes.c_int(_SET_SECCOMP), _WORD(2), ctypes.byref(program), _WORD(0), _WORD(0))
    _expect(done, "seccomp")


def set_dumpable(value: bool) -> None:
    """Whether other processes of the same user may look into this one."""
    _prctl(_SET_DUMPABLE, int(value), "dumpable")


def end_with_parent(signal_number: int) -> None:
    """Has the kernel signal this process when its parent ends."""
    _prctl(_SET_PDEATHSIG, signal_number, "parent death signal")


def adopt_orphans() -> None:
    """Has orphaned descendants become children of this process."""
    _prctl(_SET_SUBREAPER, 1, "child subreaper")


def close_from(first: int) -> None:
    """Closes all descriptors from a number on."""
    # 436 is close_range, which came with Linux 5.9.
    if _libc.syscall(ctypes.c_long(436), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)) < 0:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
