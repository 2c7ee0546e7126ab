"""Run a script in a forked rank as ``python script.py`` or ``python -m module`` would.

What a script can notice is the same: ``__main__``, ``sys.argv``, ``sys.path[0]``, tracebacks that
begin at its own first line, exit codes, atexit handlers and threads (the interpreter ends in the
normal way). Only the destructors of preloaded libraries are skipped at the end.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

_INJECTED = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""Profilers and checkers write their reports at exit and were loaded before us."""


def run(words: Sequence[str]) -> object:
    """Run ``script.py …`` or ``-m module …``; returns the argument for ``sys.exit``."""
    fresh_state()
    sys.orig_argv = [sys.executable, *words]
    try:
        code, main = (
            _module(words[1], words[2:]) if words[0] == "-m" else _script(words[0], words[1:])
        )
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
    except SystemExit as end:
        return end.code
    except BaseException as error:  # noqa: BLE001 - the top of a program: everything ends here
        return _uncaught(error)
    return None


def fresh_state() -> None:
    """Undo what forked ranks share and separately started ones would not."""
    # Line by line as with PYTHONUNBUFFERED, but with one write per line.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if "torch" in sys.modules:
        skip_preloaded_destructors()
    # ``random`` reseeds itself after a fork. numpy does not: all ranks would draw the same numbers.
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def skip_preloaded_destructors(env: Mapping[str, str] = os.environ) -> bool:
    """End this process without the exit handlers of preloaded libraries; False where that must not be.

    The C++ destructors of torch unregister its operators one by one, a tenth of a start-up, for memory
    that the kernel frees at once. At exit C runs what was registered last first. So our entry, made
    right after the fork, comes after Python's own end and after the handlers of every library that the
    script itself loaded (HDF5, MPI), and before those of the preloaded ones, which it skips.
    """
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


def _script(path: str, arguments: Sequence[str]) -> tuple[types.CodeType, types.ModuleType]:
    full = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, python does not
    sys.argv = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # from 3.11 on
        sys.path[0] = str(Path(path).resolve().parent)
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        problem = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {full!r}: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    code = compile(source, full, "exec", dont_inherit=True)
    loader = importlib.machinery.SourceFileLoader("__main__", full)
    return code, _main(full, loader=loader, package=None, spec=None)


def _module(name: str, arguments: Sequence[str]) -> tuple[types.CodeType, types.ModuleType]:
    sys.argv = ["-m", *arguments]
    spec = _find(name)
    loader = cast(Any, spec.loader)
    code = loader.get_code(spec.name)
    if code is None:
        _refuse(f"No code object available for {name}")
    sys.argv[0] = str(spec.origin)
    return code, _main(str(spec.origin), loader=loader, package=spec.parent, spec=spec)


def _find(name: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        _refuse(f"Error while finding module specification for {name!r} ({error!r})")
    if spec is None:
        _refuse(f"No module named {name}")
    return spec


def _refuse(message: str) -> NoReturn:
    print(f"{sys.executable}: {message}", file=sys.stderr)
    raise SystemExit(1)


def _main(file: str, loader: object, package: str | None, spec: object) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=file,
        __cached__=None,
        __loader__=loader,
        __package__=package,
        __spec__=spec,
        __builtins__=builtins,
        __annotations__={},
    )
    return main


def _uncaught(error: BaseException) -> object:
    # The first frames are ours; a SyntaxError of the script itself has no other and shows none.
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen importlib")):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        _die_of_interrupt()
    return 1


def _die_of_interrupt() -> None:
    """Python ends by the signal itself, so that a shell loop around it stops too."""
    import atexit
    import threading

    cast(Any, threading)._shutdown()
    cast(Any, atexit)._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
