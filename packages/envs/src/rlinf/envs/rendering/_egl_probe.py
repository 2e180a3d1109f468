"""Exits with 0 if EGL has a device that can be initialised, asked as MuJoCo itself will; the library alone says nothing.

Run as a program, with the library's name; see `mujoco_rendering`.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_DEVICE_PLATFORM = 0x313F  # EGL_PLATFORM_DEVICE_EXT
_MAX_DEVICES = 16


def works(library: str) -> bool:
    """Whether it has such a device."""
    egl: Any = ctypes.CDLL(library)
    # Undeclared, ctypes takes a result for an int and cuts a pointer to 32 bits.
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    egl.eglInitialize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    query, display = (egl.eglGetProcAddress(name) for name in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT"))
    # Both are extensions, which an old EGL may lack.
    if not (query and display):
        return False
    devices, count = (ctypes.c_void_p * _MAX_DEVICES)(), ctypes.c_int()
    ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(query)(
        _MAX_DEVICES, devices, ctypes.byref(count)
    )
    open_display = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)(display)
    displays = (open_display(_DEVICE_PLATFORM, device, None) for device in devices[: count.value])
    return any(found and egl.eglInitialize(found, None, None) for found in displays)


if __name__ == "__main__":
    sys.exit(0 if works(sys.argv[1]) else 1)
