"""The live view in a real terminal: it shows, obeys its keys, and leaves no trace."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from terminal_rig import PROMPT, Terminal
from view_rig import grow, make_run

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
FAST = "--every 0.3"


@pytest.fixture
def terminal(tmp_path: Path, clean_env: dict[str, str]) -> Iterator[Terminal]:
    with Terminal(tmp_path, clean_env) as made:
        yield made


def test_it_shows_a_run_and_obeys_its_keys(tmp_path: Path, terminal: Terminal) -> None:
    run = make_run(tmp_path / "runs", ranks=16, slow_rank=13, finished=False)
    before = terminal.ask("stty -a")
    terminal.type("echo what stood there")
    terminal.top(str(run.path), FAST)
    text = terminal.shows(run.id, "running", "step 500/", "loss ", "samples/s", "q quit")
    assert "straggler: the others wait for rank 13" in text
    assert terminal.flag("alternate_on") == "1"
    assert terminal.flag("cursor_flag") == "0"
    grow(run, 3)
    terminal.shows("step 530/")
    terminal.press("s")
    terminal.shows("in order", "straggler +")
    terminal.press("s", "End")
    terminal.shows("of 16", "-16 of 16")
    terminal.press("n")
    terminal.shows("NODE", "straggler: rank 13")
    for key in ("Escape", "q"):  # any key closes the help, these too
        terminal.press("?")
        terminal.shows("this help")
        terminal.press(key)
        terminal.wait(lambda text: "this help" not in text and "q quit" in text)
    terminal.press("?")
    terminal.shows("this help")
    terminal.press("x", "r", "p")
    terminal.shows("PAUSED", "RANK")
    grow(run, 1)
    terminal.press("p")
    terminal.shows("step 540/")
    terminal.press("q")
    terminal.wait(lambda text: "what stood there" in text and "q quit" not in text)
    assert terminal.flag("alternate_on") == "0"
    assert terminal.flag("cursor_flag") == "1"
    assert terminal.ask("stty -a") == before


def test_it_follows_the_size_of_the_window(tmp_path: Path, terminal: Terminal) -> None:
    run = make_run(tmp_path / "runs", ranks=16, gpus_per_node=8)
    terminal.top(str(run.path), FAST)
    terminal.shows(run.id, "completed", "ranks 1-", "of 16")
    terminal.resize(120, 50)
    text = terminal.shows("COMPUTE", "WAIT")
    assert "of 16" not in text
    terminal.resize(40, 10)
    text = terminal.shows("q quit", "of 16")
    lines = text.splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith("train-")
    terminal.press("q")
    terminal.wait(lambda text: "q quit" not in text)


@pytest.mark.parametrize(("ending", "code"), [("C-c", 0), ("TERM", 143)])
def test_however_it_ends_the_terminal_is_as_before(
    tmp_path: Path, terminal: Terminal, ending: str, code: int
) -> None:
    run = make_run(tmp_path / "runs", finished=False)
    before = terminal.ask("stty -a")
    terminal.top(str(run.path))
    terminal.shows("q quit", run.id)
    if ending == "TERM":
        os.kill(_child(terminal), signal.SIGTERM)
    else:
        terminal.press(ending)
    terminal.wait(lambda text: "q quit" not in text and text.rstrip().endswith(PROMPT))
    assert terminal.flag("cursor_flag") == "1"
    terminal.type('echo "code=$?."')
    terminal.shows(f"code={code}.")
    assert terminal.ask("stty -a") == before


def test_it_can_be_stopped_and_go_on(tmp_path: Path, terminal: Terminal) -> None:
    run = make_run(tmp_path / "runs", finished=False)
    before = terminal.ask("stty -a")
    terminal.top(str(run.path), FAST)
    terminal.shows("q quit", run.id)
    terminal.press("C-z")
    terminal.shows("Stopped")
    assert terminal.flag("cursor_flag") == "1"
    assert terminal.ask("stty -a") == before
    terminal.type("fg")
    terminal.shows("q quit", run.id)
    terminal.press("n")
    terminal.shows("NODE")
    assert terminal.flag("cursor_flag") == "0"
    terminal.press("q")
    terminal.wait(lambda text: "q quit" not in text)
    assert terminal.ask("stty -a") == before


def test_a_slurm_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    run = make_run(tmp_path / "runs", finished=False, job_id="4711")
    slow = tmp_path / "bin" / "squeue"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    slow.chmod(0o755)
    env = {**clean_env, "PATH": f"{slow.parent}{os.pathsep}{clean_env['PATH']}"}
    with Terminal(tmp_path, env) as terminal:
        terminal.top(str(run.path), FAST)
        terminal.shows("Slurm has not answered yet", "step 500/")
        grow(run)
        terminal.shows("step 510/")
        terminal.press("n")
        terminal.shows("NODE")
        terminal.press("q")
        terminal.wait(lambda text: text.rstrip().endswith(PROMPT))


def _child(terminal: Terminal) -> int:
    shell = int(terminal.flag("pane_pid"))
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return int(children[-1])
