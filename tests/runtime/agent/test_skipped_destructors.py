"""Skipping the destructors of preloaded libraries skips nothing that a script can notice."""

from __future__ import annotations

import subprocess
import sys

BEFORE = """
import atexit, ctypes, os, sys
from allranks.runtime.agent.script_runner import skip_preloaded_destructors
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def at_c_exit(text):
    kept = ctypes.create_string_buffer(text)
    atexit.register(lambda kept=kept: None)
    pointer = ctypes.cast(libc.puts, ctypes.c_void_p)
    libc.__cxa_atexit(pointer, ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), None)
FIRST, LAST = b"of a preloaded library", b"of the script's library"
at_c_exit(FIRST)
"""
AFTER = """
at_c_exit(LAST)
atexit.register(print, "python's own")
left_open = open(sys.argv[1], "w")
left_open.write("never closed")
libc.printf(b"in C's buffer, ")
sys.exit(37)
"""


def _run(code: str, path: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def test_only_the_preloaded_handlers_are_skipped(tmp_path):
    done = _run(BEFORE + "assert skip_preloaded_destructors()\n" + AFTER, tmp_path / "file")
    assert done.returncode == 37, done.stderr
    assert done.stdout.splitlines() == ["in C's buffer, python's own", "of the script's library"]
    assert (tmp_path / "file").read_text() == "never closed"


def test_without_it_all_handlers_run(tmp_path):
    done = _run(BEFORE + AFTER, tmp_path / "file")
    assert done.stdout.splitlines()[-1] == "of a preloaded library"


def test_profilers_keep_their_handlers(tmp_path):
    code = BEFORE + "assert not skip_preloaded_destructors()\n" + AFTER
    done = _run(code, tmp_path / "file", CUDA_INJECTION64_PATH="/opt/profiler.so")
    assert done.returncode == 37, done.stderr
    assert "of a preloaded library" in done.stdout
