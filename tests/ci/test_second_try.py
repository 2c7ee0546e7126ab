"""What ``--second-try`` and ``--random-order`` do, on small projects run by pytest itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_rig import ROOT

Pytest = Callable[..., "subprocess.CompletedProcess[str]"]

FLAKY = """
from pathlib import Path

def test_good():
    pass

def test_flaky():
    mark = Path(__file__).with_name("tried")
    if not mark.exists():
        mark.touch()
        raise ValueError("the first try")
"""


@pytest.fixture
def project(tmp_path: Path, clean_env: dict[str, str]) -> Pytest:
    """Write the tests of a project and run them."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\n")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['second_try', 'random_order']\n")

    def run(*options: str, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "xdist",
            "-p",
            "no:cacheprovider",
            *options,
        ]
        env = {k: v for k, v in clean_env.items() if not k.startswith("PYTEST_")}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
            "1"  # importing the others takes longer than the tests
        )
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    return run


both_ways = pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["serial", "xdist"])


@both_ways
def test_a_collection_error_is_red_and_nothing_is_tried_again(
    project: Pytest, workers: list[str]
) -> None:
    done = project(
        "--second-try", *workers, test_flaky=FLAKY, test_broken="import no_such_module\n"
    )
    assert done.returncode not in (0, 5), done.stdout
    assert "second try of" not in done.stdout
    assert "no_such_module" in done.stdout


@both_ways
def test_a_flaky_test_is_listed_with_its_first_traceback(
    project: Pytest, workers: list[str]
) -> None:
    done = project("--second-try", *workers, test_flaky=FLAKY)
    assert done.returncode == 0, done.stdout
    end = done.stdout[done.stdout.index("FLAKY: failed") :]
    assert "ValueError: the first try" in end
    assert "FLAKY test_flaky.py::test_flaky" in end
    assert "1 passed, 1 flaky" in end.splitlines()[-1]


@both_ways
def test_a_test_that_fails_twice_is_red(project: Pytest, workers: list[str]) -> None:
    bad = "def test_bad():\n    assert False, 'always'\n"
    done = project("--second-try", *workers, test_bad=bad, test_flaky=FLAKY)
    assert done.returncode == 1, done.stdout
    assert "FAILED test_bad.py::test_bad" in done.stdout
    assert "second try of 2 tests" in done.stdout
    assert "1 failed, 1 passed, 1 flaky" in done.stdout.splitlines()[-1]


def test_a_fixture_that_fails_once_is_flaky(project: Pytest) -> None:
    text = FLAKY.replace("def test_flaky", "import pytest\n@pytest.fixture\ndef thing")
    done = project("--second-try", test_it=text + "\ndef test_it(thing):\n    pass\n")
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_it.py::test_it" in done.stdout


def test_a_crash_of_a_worker_is_tried_again(project: Pytest) -> None:
    text = FLAKY.replace('raise ValueError("the first try")', "__import__('os')._exit(3)")
    done = project("--second-try", "-n", "2", test_it=text)
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_it.py::test_flaky" in done.stdout


def test_many_failures_are_no_chance(project: Pytest) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(30))\ndef test_it(n):\n    assert n < 0\n"
    done = project("--second-try", test_many=text)
    assert done.returncode == 1
    assert "no second try: 30 tests failed" in done.stdout


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("import pytest\ndef test_it():\n    pytest.skip('not here')\n", []),
        ("def test_it():\n    pass\n", ["-k", "nothing"]),
    ],
    ids=["all skipped", "all deselected"],
)
def test_a_session_without_a_test_is_red(project: Pytest, text: str, options: list[str]) -> None:
    done = project("--second-try", *options, test_it=text)
    assert done.returncode == 5, done.stdout
    assert "FAILED: no test ran" in done.stdout


def test_stopping_at_the_first_failure_tries_nothing_again(project: Pytest) -> None:
    done = project("--second-try", "-x", test_flaky=FLAKY)
    assert done.returncode not in (0, 5), done.stdout
    assert "second try of" not in done.stdout


def _order(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if "PASSED" in line]


def test_random_order_prints_a_seed_that_gives_the_same_order(project: Pytest) -> None:
    text = "".join(f"def test_{n}():\n    pass\n" for n in range(20))
    first = project("--random-order", "-v", test_a=text, test_b=text).stdout
    (seed,) = [line.split()[-1] for line in first.splitlines() if line.startswith("random order")]
    order = _order(first)
    assert len(order) == 40
    assert order != sorted(order, key=lambda name: (name[:9], int(name.rpartition("_")[2])))
    assert order == _order(project("--random-seed", seed, "-v").stdout)


def test_workers_agree_on_a_random_order(project: Pytest) -> None:
    text = "".join(f"def test_{n}():\n    pass\n" for n in range(20))
    done = project("--random-order", "-n", "2", test_a=text, test_b=text)
    assert "40 passed" in done.stdout, done.stdout
