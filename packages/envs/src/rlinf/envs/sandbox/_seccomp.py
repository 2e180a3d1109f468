"""The system calls that a program may make: a filter in BPF, as bytes, that the kernel runs before each call.

Whatever is not listed fails with EPERM, so that what a later kernel adds is refused as well. Loaded by path in the sandbox's own
processes, so it imports the standard library only.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""By `os.uname().machine`: the kernel's word for it, and the column of the tables below."""

_EVERYWHERE = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "close": (3, 57),
    "close_range": (436, 436), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291), "lseek": (8, 62),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "mincore": (27, 232), "brk": (12, 214), "msync": (26, 227), "futex": (202, 98), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "getitimer": (36, 102), "setitimer": (38, 103),
    "faccessat": (269, 48), "faccessat2": (439, 439), "pipe2": (293, 59), "dup": (32, 23), "dup3": (292, 24),
    "pselect6": (270, 72), "ppoll": (271, 73), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd2": (290, 19), "timerfd_create": (283, 85), "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165), "sysinfo": (99, 179),
    "uname": (63, 160), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgid": (121, 155), "getsid": (124, 156), "setsid": (112, 157), "setpgid": (109, 154),
    "openat": (257, 56), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "renameat": (264, 38), "renameat2": (316, 276), "mkdirat": (258, 34), "linkat": (265, 37), "unlinkat": (263, 35),
    "symlinkat": (266, 36), "readlinkat": (267, 78), "umask": (95, 166), "truncate": (76, 45), "ftruncate": (77, 46),
    "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83), "flock": (73, 32), "statfs": (137, 43),
    "fstatfs": (138, 44), "sendfile": (40, 71), "copy_file_range": (326, 285), "fadvise64": (221, 223), "exit": (60, 93),
    "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getpriority": (140, 141), "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "membarrier": (324, 283), "getrandom": (318, 278), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "getcpu": (309, 168), "restart_syscall": (219, 128), "timer_create": (222, 107), "timer_settime": (223, 110),
    "timer_gettime": (224, 108), "timer_delete": (226, 111), "timer_getoverrun": (225, 109), "capget": (125, 90),
    "shutdown": (48, 210), "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205), "recvfrom": (45, 207),
}  # fmt: skip
_X86_ONLY = {
    "stat": 4, "lstat": 6, "poll": 7, "access": 21, "pipe": 22, "select": 23, "dup2": 33, "pause": 34, "alarm": 37, "open": 2,
    "getdents": 78, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88,
    "readlink": 89, "getpgrp": 111, "arch_prctl": 158, "time": 201, "epoll_create": 213, "epoll_wait": 232, "eventfd": 284,
}  # fmt: skip
_ATTRIBUTES = {"fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88)}
_ATTRIBUTES_X86 = {"chmod": 90, "utime": 132, "utimes": 235}
"""Landlock has no say in these: they are left out where the files of others can be named."""
_CHECKED = {
    "ioctl": (16, 29), "fcntl": (72, 25), "prctl": (157, 167), "prlimit64": (302, 261), "socketpair": (53, 199),
    "sendto": (44, 206), "kill": (62, 129), "tgkill": (234, 131), "clone": (56, 220), "clone3": (435, 435),
}  # fmt: skip
_FORKS_X86 = (57, 58)
"""fork and vfork."""

_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)
"""Without F_SETOWN and F_SETSIG, which have the kernel signal any process of the same user."""
_PRCTLS = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA."""
_CLONE_REFUSED = 0x7E028000
"""All new namespaces, and CLONE_PARENT."""
_CLONE_THREAD = 0x10000

_LOAD, _EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
Instruction = tuple[int, int, int, int]


def program(machine: str, *, forks: bool, own_pid: int | None) -> bytes:
    """The filter, as an array of `struct sock_filter`.

    Args:
        machine: as `os.uname().machine`, one of `ARCHITECTURES`.
        forks: whether it may start processes; threads it always may.
        own_pid: the only process that it may signal, and then it may not change modes and times of files either: where other
            processes and files can be named. None where there are none.
    """
    word, column = ARCHITECTURES[machine]
    x86 = machine == "x86_64"
    allowed = [numbers[column] for numbers in _EVERYWHERE.values()]
    allowed += list(_X86_ONLY.values()) if x86 else []
    if own_pid is None:
        allowed += [numbers[column] for numbers in _ATTRIBUTES.values()] + (list(_ATTRIBUTES_X86.values()) if x86 else [])
    # Another architecture of the same machine, such as 32 bits, numbers its calls differently: there the process is killed.
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, word), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for number in allowed:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, body in _checks(forks=forks, own_pid=own_pid).items():
        code += [(_EQUAL, 0, len(body), _CHECKED[name][column]), *body]
    if x86:
        for number in _FORKS_X86:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW if forks else _ERRNO | errno.EAGAIN)]
    code.append(_refuse(errno.EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _checks(*, forks: bool, own_pid: int | None) -> dict[str, list[Instruction]]:
    """What is looked at in the arguments of a call; each ends with a verdict."""
    signals = [_allow()] if own_pid is None else _one_of(0, [own_pid])
    more = [_allow()] if forks else [(_ANY_BIT, 0, 1, _CLONE_THREAD), _allow(), _refuse(errno.EAGAIN)]
    return {
        "ioctl": _one_of(1, _IOCTLS),
        "fcntl": _one_of(1, _FCNTLS),
        "prctl": _one_of(0, _PRCTLS),
        # Of this process only: that of others could be starved.
        "prlimit64": _one_of(0, [0]),
        # What asyncio wakes itself with. A pair of datagram sockets could send to any named socket.
        "socketpair": [_load(0), (_EQUAL, 0, 3, 1), _load(1), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, 1), _refuse(errno.EPERM), _allow()],
        "sendto": [_load(4), (_EQUAL, 0, 2, 0), _load(4, high=True), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM), _allow()],
        "kill": signals,
        "tgkill": signals,
        "clone": [_load(0), (_ANY_BIT, 0, 1, _CLONE_REFUSED), _refuse(errno.EPERM), *more],
        # Its flags lie in memory that a filter can't read; the C library then calls `clone`.
        "clone3": [_refuse(errno.ENOSYS)],
    }


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    # Jumps over the tests that are left and the refusal behind them.
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_load(argument), *tests, _refuse(errno.EPERM), _allow()]


def _load(argument: int, *, high: bool = False) -> Instruction:
    """The lower or higher half of an argument, on a little-endian machine, as both are."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * high)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)
