"""The command: what it says, how it ends, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from command_rig import Allranks, until
from view_rig import make_run


@contextmanager
def started(folder: Path, env: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", "web", "--no-open", *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_program_starts_it_asks_and_ends_it(tmp_path: Path, clean_env: dict[str, str]) -> None:
    run = make_run(tmp_path / "runs", "shown", windows=3)
    with started(tmp_path, clean_env, "--json") as process:
        told = json.loads(line(process))
        assert set(told) == {"url", "port", "token"}
        headers = {"Authorization": f"Bearer {told['token']}"}
        base = f"http://127.0.0.1:{told['port']}"
        found = httpx.get(f"{base}/api/runs", headers=headers).json()
        assert [row["id"] for row in found["runs"]] == [run.id]
        assert httpx.get(f"{base}/api/runs").status_code == 401
        with httpx.Client() as browser:  # a connection that stays open does not hold up the end
            assert browser.get(told["url"], follow_redirects=True).status_code == 200
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


def test_what_it_says_to_people(tmp_path: Path, clean_env: dict[str, str]) -> None:
    env = clean_env | {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "USER": "me"}
    with started(tmp_path, env, "--port", "0", ".") as process:
        url = line(process).strip()
        assert url.startswith("http://127.0.0.1:")
        assert "?token=" in url
        port = url.split(":")[2].partition("/")[0]
        assert f"ssh -L {port}:127.0.0.1:{port} me@" in line(process)
        assert line(process) == "Stop it with Ctrl-C.\n"


def test_one_run_is_shown_at_once(tmp_path: Path, clean_env: dict[str, str]) -> None:
    run = make_run(tmp_path / "runs", "shown", windows=2)
    with started(tmp_path, clean_env, "--port", "0", str(run.path)) as process:
        assert line(process).strip().endswith(f"#/run/{run.id}")
    with started(tmp_path, clean_env, "--port", "0", "runs") as process:
        assert "#" not in line(process)  # a folder: the list of its runs


def test_the_browser_is_started_without_the_token(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    """Everyone can read the words of a process; the file that they name only its owner."""
    (tmp_path / "temporary").mkdir()
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$@" >"$0.new"\nmv "$0.new" "$0.words"\n')
    browser.chmod(0o755)
    env = clean_env | {
        "BROWSER": str(browser),
        "DISPLAY": ":0",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    words = [sys.executable, "-m", "allranks", "web", "--port", "0", "."]
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        url = line(process).strip()
        told = tmp_path / "browser.words"
        until(told.exists)
        place = told.read_text().strip()
        assert url.partition("token=")[2] not in place
        page = Path(place.removeprefix("file://"))
        assert url in page.read_text()
        assert page.stat().st_mode & 0o077 == 0
        assert page.parent.stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not page.parent.exists()
    finally:
        process.kill()
        process.communicate()


def test_a_name_of_this_machine_is_printed_as_the_number_it_listens_on(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    with started(tmp_path, clean_env, "--json", "--host", "localhost") as process:
        assert json.loads(line(process))["url"].startswith("http://127.0.0.1:")


def test_a_port_that_is_taken(
    tmp_path: Path, clean_env: dict[str, str], allranks: Allranks
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = allranks("web", "--port", str(port))
    assert done.returncode == 2
    assert f"Port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert "leave --port out" in done.stderr
    with (
        started(tmp_path, clean_env, "--json") as one,
        started(tmp_path, clean_env, "--json") as two,
    ):
        assert json.loads(line(one))["port"] != json.loads(line(two))["port"]


def test_only_this_machine(allranks: Allranks) -> None:
    for host in ("0.0.0.0", "example.org"):
        done = allranks("web", "--host", host)
        assert done.returncode == 2
        assert "for this machine only" in done.stderr
        assert "ssh -L" in done.stderr


def test_a_typo_is_told_before_anything_listens(tmp_path: Path, allranks: Allranks) -> None:
    make_run(tmp_path / "runs", "training", windows=2)
    wrong = allranks("web", "trainning")
    assert wrong.returncode == 2
    assert "Did you mean training" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_command_starts_without_the_server(clean_env: dict[str, str]) -> None:
    code = "import allranks.cli.web, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_env, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"starlette", "uvicorn", "asyncio", "http", "logging", "rich"}


def test_everything_that_the_page_needs_is_in_the_package() -> None:
    import allranks.observe.web

    static = Path(allranks.observe.web.__file__).parent / "static"
    page = (static / "index.html").read_text()
    for name in ("vendor/uplot/LICENSE", "vendor/uplot/uPlot.esm.js", "js/main.js", "css/base.css"):
        assert (static / name).stat().st_size > 500, name
    for part in page.split('"'):
        if part.startswith("/static/"):
            assert (static / part.removeprefix("/static/")).is_file(), part
    for module in static.glob("js/**/*.js"):
        for found in module.read_text().split('from "')[1:]:
            wanted = (module.parent / found.partition('"')[0]).resolve()
            assert wanted.is_file(), f"{module.name} imports {wanted}"
        text = module.read_text()
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text
