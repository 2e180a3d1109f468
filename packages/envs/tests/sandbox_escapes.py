"""Programs that try to reach what is outside of a sandbox, and print ESCAPED where they do."""

ESCAPES = {
    "an inherited descriptor": ("rlimits", """
        import os
        for file in range(3, 4096):
            try:
                os.fstat(file)
            except OSError:
                continue
            print("ESCAPED", file)
        """),
    "the environment of its parent": ("rlimits", """
        import os
        if "RLINF_TEST_SECRET" in os.environ:
            print("ESCAPED")
        """),
    "a thread or process more": ("rlimits", """
        import os
        if os.fork() == 0:
            print("ESCAPED", flush=True)
            os._exit(0)
        os.wait()
        """),
    "a connection over loopback": ("seccomp", """
        import socket
        socket.create_connection(("127.0.0.1", {port})).close()
        print("ESCAPED")
        """),
    "a connection to a named socket": ("seccomp", """
        import socket
        with socket.socket(socket.AF_UNIX) as opened:
            opened.connect("{folder}/s")
            print("ESCAPED")
        """),
    "a connection to an abstract socket": ("seccomp", """
        import socket
        with socket.socket(socket.AF_UNIX) as opened:
            opened.connect("\\0{abstract}")
            print("ESCAPED")
        """),
    "a socket by ctypes": ("seccomp", """
        import ctypes, os
        libc = ctypes.CDLL(None)
        if libc.socket(2, 1, 0) >= 0 or libc.socket(1, 2, 0) >= 0 or libc.socket(16, 3, 0) >= 0:
            print("ESCAPED")
        """),
    "a pair of datagram sockets": ("seccomp", """
        import socket
        socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        print("ESCAPED")
        """),
    "another program": ("rlimits", """
        import subprocess
        print(subprocess.run(["echo", "ESCAPED"], capture_output=True, text=True, check=True).stdout)
        """),
    "another program in its place": ("seccomp", """
        import os
        os.execv("/bin/echo", ["echo", "ESCAPED"])
        """),
    "tracing a process": ("seccomp", """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(0x4206, {victim}, None, None) == 0:  # PTRACE_SEIZE
            print("ESCAPED")
        """),
    "the memory of a process": ("landlock", """
        with open("/proc/{victim}/mem", "rb") as memory, open("/proc/{victim}/maps") as maps:
            memory.seek(int(maps.readline().split("-")[0], 16))
            memory.read(1)
            print("ESCAPED")
        """),
    "the environment of a process": ("landlock", """
        with open("/proc/{victim}/environ") as file:
            print("ESCAPED" if "hidden" in file.read() else "")
        """),
    "the list of processes": ("landlock", """
        import os
        print("ESCAPED", os.listdir("/proc"))
        """),
    "signalling a process": ("seccomp", """
        import os
        os.kill({victim}, 0)
        print("ESCAPED")
        """),
    "signals by the owner of a pipe": ("seccomp", """
        import fcntl, os
        reading, writing = os.pipe()
        fcntl.fcntl(reading, 8, {victim})  # F_SETOWN
        print("ESCAPED")
        """),
    "limits of a process": ("seccomp", """
        import resource
        resource.prlimit({victim}, resource.RLIMIT_CORE)
        print("ESCAPED")
        """),
    "namespaces of its own": ("seccomp", """
        import ctypes
        if ctypes.CDLL(None).unshare(0x10000000) == 0:
            print("ESCAPED")
        """),
    "memory without a limit": ("seccomp", """
        import os
        os.memfd_create("x")
        print("ESCAPED")
        """),
    "reading /etc/passwd": ("landlock", """
        print("ESCAPED" if open("/etc/passwd").read() else "")
        """),
    "listing the root and the home folder": ("landlock", """
        import os, pathlib, pwd
        if {{"etc", "home"}} <= set(os.listdir("/")):
            print("ESCAPED")
        """),
    "reading a file of its user's": ("landlock", """
        print("ESCAPED" if open("{folder}/secret").read() else "")
        """),
    "a link out of the scratch folder": ("landlock", """
        import os
        os.symlink("{folder}/secret", "link")
        print("ESCAPED" if open("link").read() else "")
        os.unlink("link")
        """),
    "writing outside": ("landlock", """
        import os
        open("{folder}/open/x", "w").close()
        os.unlink("{folder}/open/x")
        print("ESCAPED")
        """),
    "a folder outside": ("landlock", """
        import os
        os.mkdir("{folder}/open/x")
        os.rmdir("{folder}/open/x")
        print("ESCAPED")
        """),
    "emptying a file outside": ("landlock", """
        import os
        os.truncate("{folder}/secret", 6)
        print("ESCAPED")
        """),
    "modes of files outside": ("landlock", """
        import os
        os.chmod("{folder}/secret", 0o600)
        print("ESCAPED")
        """),
    "writing to the interpreter": ("landlock", """
        import os, tempfile
        folder = "{folder}/open" if os.path.isdir("{folder}") else os.path.dirname(os.__file__)
        with tempfile.TemporaryFile(dir=folder):
            print("ESCAPED")
        """),
    "a device": ("landlock", """
        import os
        for name in os.listdir("/dev"):
            if name not in ("null", "zero", "random", "urandom"):
                os.stat("/dev/" + name)
                os.open("/dev/" + name, os.O_PATH)
                print("ESCAPED")
        """),
}  # fmt: skip
"""By name: the level from which on it is refused, and the program, with places to fill in."""
