"""A rank runs its script as plain python would, forked or not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from agent_rig import Rig


def python(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=rig.folder,
        env=rig.env,
        check=False,
    )


def test_what_a_script_sees(rig: Rig, mode: str) -> None:
    rig.script("X = 1", "beside.py")
    rig.script(
        """
        import os, sys, beside
        print(sys.argv, sys.path[0], __file__, __name__, __spec__, __package__, __doc__)
        print(sorted(k for k in globals() if k != "__cached__"), sys.modules["__main__"].X)
        print(os.path.basename(__loader__.path), sys.orig_argv[1:])
        """.replace("import os, sys, beside", "import os, sys, beside; X = beside.X"),
    )
    words = ("train.py", "--lr", "1 e", "--nprocs", "--")
    assert rig.ranks(mode, 1, *words).returncode == 0
    assert rig.said(0) == python(rig, *words).stdout.splitlines()


def test_a_module_by_name(rig: Rig, mode: str) -> None:
    (rig.folder / "pkg").mkdir()
    (rig.folder / "pkg/__init__.py").touch()
    (rig.folder / "pkg/__main__.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __package__, __spec__.name, __file__)\n"
    )
    assert rig.ranks(mode, 1, "-m", "pkg", "a").returncode == 0
    assert rig.said(0) == python(rig, "-m", "pkg", "a").stdout.splitlines()


def test_a_module_that_is_not_there(rig: Rig, mode: str) -> None:
    result = rig.ranks(mode, 1, "-m", "no_such_module")
    assert result.returncode == 1
    assert "No module named no_such_module" in result.stderr


ENDS = {
    "value": "raise ValueError('a\\nb')",
    "chained": "try: 1/0\nexcept Exception as e: raise KeyError('x') from e",
    "nested": "def f(n): return f(n-1) if n else {}['k']\nf(3)",
    "syntax": "x = (",
    "bad import": "import beside_broken",
    "exit 7": "import sys; sys.exit(7)",
    "exit text": "import sys; sys.exit('no data')",
    "exit none": "import sys; sys.exit()",
    "exit true": "raise SystemExit(True)",
    "interrupt": "raise KeyboardInterrupt",
    "hook": "import sys; sys.excepthook = lambda *a: print('HOOK', a[0]); 1/0",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('end', end='')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hard exit": "import os; print('last', flush=True); os._exit(9)",
}


@pytest.mark.parametrize("end", ENDS)
def test_ends_as_python_does(rig: Rig, mode: str, end: str) -> None:
    rig.script("x = = 1", "beside_broken.py")
    path = rig.script(ENDS[end])
    plain = python(rig, path)
    result = rig.run("ranks", "--nprocs", "1", "--mode", mode, "--no-summary", "--", path)
    expected = plain.returncode if plain.returncode >= 0 else 128 - plain.returncode
    assert result.returncode == expected
    assert result.stdout == plain.stdout
    lines = [line for line in result.stderr.splitlines() if not line.startswith("allranks: rank 0")]
    assert lines == plain.stderr.splitlines()


def test_a_script_that_is_not_there(rig: Rig, mode: str) -> None:
    result = rig.ranks(mode, 1, "nothing.py")
    assert result.returncode == 2
    assert "can't open file" in result.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(rig: Rig, mode: str, method: str) -> None:
    path = rig.script(
        """
        import multiprocessing as mp, os
        def square(x): return x * x + int(os.environ["RANK"])
        if __name__ == "__main__":
            with mp.get_context("METHOD").Pool(2) as pool:
                print(pool.map(square, range(3)))
        """.replace("METHOD", method)
    )
    result = rig.ranks(mode, 2, path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] [0, 1, 4]", "[1] [1, 2, 5]"]


def test_forked_ranks_draw_different_numbers(rig: Rig) -> None:
    path = rig.script("import random; print(random.random())")
    run = rig.run("ranks", "--nprocs", "2", "--mode", "fork", "--preload", "random", "--", path)
    assert run.returncode == 0
    assert rig.said(0) != rig.said(1)


@pytest.mark.parametrize(
    ("command", "extra", "why"),
    [
        (("echo", "hi"), {}, "echo is not a Python script"),
        (("-c.py",), {"ALLRANKS_FORK": "0"}, "ALLRANKS_FORK=0"),
    ],
)
def test_falls_back_to_exec(rig: Rig, command: tuple[str], extra: dict[str, str], why: str) -> None:
    rig.script("print('hi')", "-c.py")
    result = rig.ranks("fork", 2, *([str(rig.folder / "-c.py")] if extra else command), **extra)
    assert result.returncode == 0
    assert result.stderr == f"allranks: ranks are started one by one, not forked: {why}\n"
    assert sorted(result.stdout.splitlines()) == ["[0] hi", "[1] hi"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()",
         "Python thread"),
        ("import _thread, time; _thread.start_new_thread(time.sleep, (9,))", "left a thread"),
        ("1/0", "slow cannot be imported here (ZeroDivisionError)"),
    ],
)  # fmt: skip
def test_a_preload_that_forbids_the_fork(rig: Rig, text: str, why: str) -> None:
    rig.script(text, "slow.py")
    path = rig.script("print('hi')")
    result = rig.run("ranks", "--nprocs", "1", "--mode", "fork", "--preload", "slow", "--", path)
    assert result.returncode == 0
    assert why in result.stderr
    assert result.stdout == "hi\n"


def test_a_fork_that_names_its_interpreter(rig: Rig) -> None:
    path = rig.script("import os; print(os.getpid() != os.getpgid(os.getppid()))")
    result = rig.ranks("fork", 1, sys.executable, "-u", path)
    assert (result.returncode, result.stderr) == (0, "")
