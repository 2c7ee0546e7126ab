"""The parts of a build: processes that end with all they started, locks, and failures that explain."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from framework_fakes import CPU_TORCH, program, target

from allranks.cli.frameworks import PlainLines
from allranks.errors import AllranksError, MissingDependencyError
from allranks.integrations.frameworks import wheel_cache
from allranks.integrations.frameworks.build_commands import (
    defer_signals,
    exit_on_signals,
    run_logged,
)
from allranks.integrations.frameworks.build_failure import (
    build_error,
    download_error,
    error_lines,
    likely_cause,
    require_compiler,
)
from allranks.integrations.frameworks.horovod_build import BuildFolder, fetch
from allranks.integrations.frameworks.horovod_install import log_file
from allranks.integrations.frameworks.horovod_plan import SDIST, HorovodPlan
from command_rig import ROOT, until


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "allranks"


def test_an_interruption_ends_grandchildren_too(tmp_path: Path) -> None:
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        raise KeyboardInterrupt

    text = "import os, subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    with (tmp_path / "log").open("w") as log, pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", f"{text}; time.sleep(60)"], log, os.environ, None, hear)
    until(lambda: not _alive(int(heard[0])))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_the_log_has_the_command_and_its_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        code = run_logged(["sh", "-c", "echo one; echo two >&2; exit 3"], log, os.environ)
    assert code == 3
    assert (tmp_path / "log").read_text() == "$ sh -c 'echo one; echo two >&2; exit 3'\none\ntwo\n"


def test_term_goes_through_the_code_that_cleans_up() -> None:
    with pytest.raises(SystemExit) as end, exit_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143


def test_ctrl_c_waits_for_the_end_of_an_installation() -> None:
    done = []

    def install() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        install()
    assert done


def test_a_second_one_is_told_who_is_at_work() -> None:
    told: list[str] = []

    def second() -> None:
        try:
            with wheel_cache.cache_lock("a", "building the same wheel"):
                told.append("entered")
        except AllranksError as error:
            told.append(str(error))

    with wheel_cache.cache_lock("a", "building"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert f"(pid {os.getpid()}) is building the same wheel" in told[0]
    second()
    assert told[1] == "entered"


def test_wheels_are_found_by_what_they_were_built_of(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    assert wheel_cache.find_wheel("key") is None
    kept = wheel_cache.store_wheel("key", wheel)
    assert wheel_cache.find_wheel("key") == kept
    assert kept.read_bytes() == b"wheel"
    assert list(kept.parent.iterdir()) == [kept]
    assert wheel_cache.find_wheel("other") is None


@pytest.mark.parametrize("folder", ["/proc/nope", "/dev/null"])
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    wheel = tmp_path / "a.whl"
    wheel.touch()
    ways = (
        lambda: wheel_cache.store_wheel("key", wheel),
        lambda: log_file().__enter__(),
        lambda: wheel_cache.cache_lock("a", "building").__enter__(),
    )
    for way in ways:
        with pytest.raises(AllranksError, match=r"cannot be written \(.*\nSet XDG_CACHE_HOME to"):
            way()


def test_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(wheel_cache.fcntl, "flock", refuse)
    with (
        pytest.raises(AllranksError, match=r"cannot be locked \(No locks available\)"),
        wheel_cache.cache_lock("a", "building"),
    ):
        pass


LOG = """\
[ 12%] Building CXX object common.cc.o
/src/a.cc:1:10: fatal error: mpi.h: No such file or directory
make[2]: *** [common.cc.o] Error 1
subprocess.CalledProcessError: Command '['cmake']' error: returned 2
/src/a.cc:1:10: fatal error: mpi.h: No such file or directory
"""


def test_the_compilers_own_words_each_once() -> None:
    line = "/src/a.cc:1:10: fatal error: mpi.h: No such file or directory"
    assert error_lines(LOG) == [line]
    assert error_lines("\n".join(f"a.cc:{n}: error: x{n}" for n in range(20)))[0].endswith("x14")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (LOG, "MPI's headers do not work: .*libopenmpi-dev.*--no-mpi"),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "setuptools is too new"),
        ("fatal error: Python.h: No such file or directory", "Python's headers are missing"),
        ("CMake Error: CMAKE_CXX_COMPILER not set", "No C\\+\\+ compiler"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "MAKEFLAGS=-j1"),
        ("x.cc:1: fatal error: error writing to /tmp/x.s: No space left on device", "TMPDIR"),
        ("CMake Error in a:\n  Imported target MPI::MPI_CXX\n  is wrong", "MPI's headers"),
        ("-- Found MPI_CXX: /usr/lib/libmpi.so\n" + "\n" * 9 + "a.cc:1: error: other", "^$"),
    ],
)
def test_a_likely_cause(text: str, meaning: str) -> None:
    assert re.search(meaning, likely_cause(text))


def test_a_failed_build_names_its_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        log.write(LOG)
        text = str(build_error(log, "Horovod could not be built."))
    assert text.splitlines()[0] == "Horovod could not be built."
    assert text.splitlines()[-1] == f"The whole log: {tmp_path / 'log'}"


def test_no_network_says_how_to_go_on(tmp_path: Path, cache: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        log.write("ERROR: No matching distribution found for horovod==0.28.1\n")
        error = download_error(log, SDIST, "horovod==0.28.1")
    assert error.exit_code == 4
    assert "No matching distribution" in str(error)
    assert str(cache / "wheels") in str(error)


def test_no_compiler_is_told_before_minutes_are_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX", raising=False)
    there = target(str(tmp_path / "bin" / "python"), about={"headers": False})
    with pytest.raises(MissingDependencyError, match=r"g\+\+ and make and Python.h \(in /usr"):
        require_compiler(there)
    for name in ("g++", "make"):
        program(tmp_path / "bin", name, "")
    with pytest.raises(MissingDependencyError, match=r"but Python.h .*\nInstall it: "):
        require_compiler(there)
    require_compiler(target(there.python))


def test_an_archive_that_is_not_horovods_is_refused(tmp_path: Path, cache: Path) -> None:
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / SDIST).write_bytes(b"something else")
    plan = HorovodPlan(target(torch=CPU_TORCH), "2.13.0", None, None, None)
    with (tmp_path / "log").open("w") as log:
        shop = BuildFolder(tmp_path, plan, log)
        with pytest.raises(MissingDependencyError, match="is not Horovod's own archive"):
            fetch(shop)


def test_plain_lines_of_a_long_stage(capsys: pytest.CaptureFixture[str]) -> None:
    tell = PlainLines()
    tell("configuring", None)
    for percent in range(101):
        tell("compiling", percent)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "configuring"
    assert lines[1:] == [f"compiling {percent}%" for percent in range(0, 101, 10)]


def _venv(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "framework-venv", *words],
        env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_framework_venvs_script(tmp_path: Path) -> None:
    assert _venv("numpy", tmp_path / "x").returncode == 2
    cannot = _venv("transformers", tmp_path / "x", PYTHON="/bin/false")
    assert cannot.returncode == 77
    assert cannot.stdout.count("\n") == 1
    assert "venv failed" in cannot.stdout
