"""How a rank ended and what went wrong, in one line each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from allranks.runs.attempt import Failure
from allranks.runs.exit_reasons import describe_exit, error_line

FRAMES = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    trainer.fit(data)
"""
CUDA = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
CUDA_FOOT = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below \
might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, NCCL version 2.27"
)
NCCL_FOOT = """
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 'out of memory'
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 7, in <module>
  |     trainer.fit(data)
  | ExceptionGroup: outer (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "train.py", line 9, in load
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "train.py", line 11, in read
      |     raise ValueError("no such shard")
      | ValueError: no such shard
      +------------------------------------
    +---------------- 2 ----------------
    | TypeError: second
    +------------------------------------
"""
WORKER = """RuntimeError: Caught ZeroDivisionError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
ZeroDivisionError: division by zero
"""
CUT = WORKER[: WORKER.index("ZeroDivisionError: ")]
LATER = "Exception ignored in: <function It.__del__ at 0x7f>\n" + FRAMES + "AssertionError: later\n"
THREAD = "Exception in thread Thread-1 (f):\n" + FRAMES + "OSError: aside\n"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "train.py", line 7 in <module>
Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
TERMINATE = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: uncorrectable ECC error encountered
Exception raised from c10_cuda_check_implementation (most recent call first):
frame #0: c10::Error::Error + 0x80 (0x7f in libc10.so)
"""


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        (FRAMES + "ValueError: bad\n", "ValueError: bad"),
        (FRAMES + "KeyboardInterrupt", "KeyboardInterrupt"),
        (FRAMES + CUDA + CUDA_FOOT, CUDA),
        (FRAMES + NCCL + NCCL_FOOT, NCCL + "; Cuda failure 'out of memory'"),
        (FRAMES + "ValueError: bad\na note: file 3", "ValueError: bad"),
        (FRAMES + "RuntimeError: loading Net:\n\tMissing key", "RuntimeError: loading Net: Missing key"),
        (FRAMES + "Failed: \n=====\ntrain.py FAILED", "Failed: train.py FAILED"),
        (FRAMES + WORKER, "ZeroDivisionError: division by zero"),
        (FRAMES + CUT, "RuntimeError: Caught ZeroDivisionError in DataLoader worker process 0."),
        (FRAMES + "ValueError: real\n" + LATER, "ValueError: real"),
        (FRAMES + "ValueError: real\n" + THREAD + LATER, "ValueError: real"),
        (FRAMES + "ValueError: real\n" + THREAD + CHAINED + FRAMES + "E: x\n", "ValueError: real"),
        (THREAD + FRAMES + "ValueError: real\n", "ValueError: real"),
        (LATER + THREAD + LATER, "OSError: aside"),
        (THREAD + CHAINED + FRAMES + "E: x\n" + LATER, "E: x"),
        (LATER, "AssertionError: later"),
        (FRAMES + "OSError: gone\n\nThe above exception was …:\n\n" + FRAMES + "E: last", "E: last"),
        (GROUP, "ExceptionGroup: outer (2 sub-exceptions): ValueError: no such shard"),
        (GROUP + "\nDuring handling …:\n\n" + FRAMES + "KeyError: 'x'", "KeyError: 'x'"),
        ("".join(f"[rank3]: {each}\n" for each in (FRAMES + "E: x").splitlines()), "E: x"),
        (FRAMES, ""),
        (CRASH, "Fatal Python error: Segmentation fault"),
        (TERMINATE, "CUDA error: uncorrectable ECC error encountered"),
        ("usage: train.py\ntrain.py: error: no --lr\n\n", "train.py: error: no --lr"),
        ("  only indented", "only indented"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_error_is_the_exception_itself(traceback: str, line: str) -> None:
    assert Failure(0, traceback=traceback).error == line


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("try:\n    {}['a']\nexcept KeyError as e:\n    raise OSError('b') from e", "OSError: b"),
        ("raise ValueError('first\\n  second\\nthird')", "ValueError: first"),
        ("def (", "SyntaxError: invalid syntax"),
        ("assert not 1", "AssertionError"),
    ],
)
def test_what_python_itself_writes(script: str, line: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert error_line(done.stderr) == line


def test_a_dump_is_cut() -> None:
    assert len(error_line(FRAMES + "ValueError: " + "x" * 100_000)) == 400


@pytest.mark.parametrize(
    ("code", "signal", "text"),
    [
        (3, "", "exit code 3"),
        (None, None, "no exit code is known"),
        (137, "9", "killed by SIGKILL, perhaps out of memory (exit code 137)"),
        (None, "SIGKILL", "killed by SIGKILL, perhaps out of memory"),
        (139, 11, "killed by SIGSEGV (exit code 139)"),
        (128 + 40, "40", "killed by signal 40 (exit code 168)"),
    ],
)
def test_ends_in_words(code: int | None, signal: str | int | None, text: str) -> None:
    assert describe_exit(code, signal) == text
