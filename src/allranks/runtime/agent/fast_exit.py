"""A forked rank ends without taking the preloaded libraries apart.

The C++ destructors of torch unregister its operators one by one, a tenth of a start-up, for memory
that the kernel frees at once. At exit C runs what was registered last first. So our entry, made right
after the fork, comes after Python's own end and after the handlers of every library that the script
itself loaded (HDF5, MPI), and before those of the preloaded ones, which it skips.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_INJECTED = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""Profilers and checkers write their reports at exit and were loaded before us."""


def skip_preloaded_destructors(env: Mapping[str, str] = os.environ) -> bool:
    """Register the quick end; False where the C library has no such thing or must not be skipped."""
    if any(env.get(name) for name in _INJECTED):
        return False
    libc = ctypes.CDLL(None)
    try:
        on_exit, at_exit, leave, flush = libc.on_exit, libc.__cxa_atexit, libc._exit, libc.fflush
    except AttributeError:  # not glibc
        return False
    on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    at_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    # on_exit hands the exit status to the function: _exit(status). fflush(NULL) comes before it.
    on_exit(ctypes.cast(leave, ctypes.c_void_p), None)
    at_exit(ctypes.cast(flush, ctypes.c_void_p), None, None)
    return True
