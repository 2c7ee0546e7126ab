"""What the ranks print: log files, console, progress bars."""

from __future__ import annotations

import json
import os
import re
import time

from agent_rig import AGENT, Rig

from allranks.runtime.agent.rank_output import LONGEST_LINE, LineBuffer

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z [oe] ")


def test_log_lines(rig: Rig, mode: str) -> None:
    path = rig.script(
        "import sys; print('one'); print('two', file=sys.stderr); print('three', end='')"
    )
    result = rig.ranks(mode, 2, path)
    for rank in (0, 1):
        assert all(LINE.match(line) for line in rig.log(rank))
        assert rig.said(rank) == ["one", "three"]
        assert rig.said(rank, "e") == ["two"]
    assert sorted(result.stdout.splitlines()) == ["[0] one", "[0] three", "[1] one", "[1] three"]


def test_one_rank_passes_as_it_is(rig: Rig, mode: str) -> None:
    path = rig.script("import sys; sys.stdout.buffer.write(b'a\\r\\xffb\\n\\x00c')")
    rig.env["ALLRANKS_ATTEMPT_DIR"] = ""
    process = rig.start("ranks", "--nprocs", "1", "--mode", mode, "--", path)
    assert process.stdout
    assert process.stdout.buffer.read() == b"a\r\xffb\n\x00c"
    assert process.wait() == 0


def test_bytes_that_are_no_text(rig: Rig, mode: str) -> None:
    path = rig.script(
        "from os import write as w; w(1, b'\\xff\\xc3'); w(1, b'\\x28 \\xc3'); w(1, b'\\xa4\\n')"
    )
    assert rig.ranks(mode, 2, path).returncode == 0
    assert rig.said(0) == ["��( ä"]


def test_progress_bars_leave_their_last_state(rig: Rig, mode: str) -> None:
    path = rig.script(
        """
        import sys, time
        for i in range(5):
            sys.stderr.write(f"\\rbar {i}/5"); sys.stderr.flush(); time.sleep(0.01)
        sys.stderr.write("\\n")
        for i in range(3):
            sys.stderr.write(f"step {i}\\r"); sys.stderr.flush(); time.sleep(0.01)
        """
    )
    result = rig.ranks(mode, 2, path)
    assert rig.said(0, "e") == ["bar 4/5", "step 2"]
    assert sorted(result.stderr.splitlines()) == sorted(
        f"[{r}] {t}" for r in (0, 1) for t in ("bar 4/5", "step 2")
    )


def test_lines_in_any_pieces() -> None:
    text = "a\nbär\r\n\rx 1\rx 2\n\nend".encode()
    for size in range(1, len(text) + 1):
        lines = LineBuffer()
        out = b"".join(lines.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert (out + lines.close()).decode() == "a\nbär\nx 2\n\nend\n"


def test_a_line_without_end_is_cut() -> None:
    lines = LineBuffer()
    out = b"".join(lines.feed(b"x" * 65536) for _ in range(40)) + lines.close()
    assert out.count(b"x") == 40 * 65536
    assert max(map(len, out.split(b"\n"))) <= LONGEST_LINE + 65536


def test_many_lines_fast_and_complete(rig: Rig, mode: str) -> None:
    path = rig.script(
        "import sys\n"
        "for i in range(100): sys.stdout.write(''.join(f'line {i} {j}\\n' for j in range(1000)))\n"
        "sys.stdout.flush(); import os; os._exit(3)"
    )
    began = time.monotonic()
    result = rig.ranks(mode, 2, path)
    assert result.returncode == 3
    assert time.monotonic() - began < 15
    first = json.loads((rig.attempt / "failures").glob("*.json").__next__().read_text())["rank"]
    assert rig.said(first)[-1] == "line 99 999"
    assert len(rig.log(first)) == 100_000


def test_show_and_prefix(rig: Rig) -> None:
    path = rig.script("import os; print('rank', os.environ['RANK'])")
    words = ["ranks", "--nprocs", "3", "--mode", "fork"]
    shown = rig.run(*words, "--show", "0,2", "--", path).stdout
    assert sorted(shown.splitlines()) == ["[0] rank 0", "[2] rank 2"]
    assert rig.said(1) == ["rank 1"]
    assert rig.run(*words, "--show", "1", "--prefix", "never", "--", path).stdout == "rank 1\n"
    coloured = rig.run(*words, "--show", "1", "--", path, FORCE_COLOR="1", NO_COLOR="").stdout
    assert coloured == "\x1b[33m[1]\x1b[0m rank 1\n"
    assert rig.run(*words, "--show", "x", "--", path).returncode == 2


def test_bars_on_a_terminal_do_not_eat_lines(rig: Rig) -> None:
    path = rig.script(
        """
        import os, sys, time
        for i in range(20):
            if os.environ["RANK"] == "0":
                sys.stderr.write(f"\\rbar {i}"); sys.stderr.flush()
            else:
                print("line", i)
            time.sleep(0.01)
        """
    )
    pid, fd = os.forkpty()
    if pid == 0:
        words = ["ranks", "--nprocs", "2", "--mode", "exec", "--", "python", path]
        os.execvpe(AGENT[0], [*AGENT, *words], {**rig.env, "TERM": "xterm"})
    out = b""
    while True:
        try:
            out += os.read(fd, 65536)
        except OSError:
            break
    os.close(fd)
    os.waitpid(pid, 0)
    screen = [line.rpartition(b"\x1b[K")[2].strip() for line in out.split(b"\n")]
    assert [line for line in screen if b"line" in line] == [b"[1] line %d" % i for i in range(20)]
    assert b"[0] bar 19" in screen
    assert b"\r\x1b[K[0] bar" in out


def test_files_of_the_attempt(rig: Rig, mode: str) -> None:
    path = rig.script("import os; print(os.environ['OMP_NUM_THREADS'])")
    rig.env["WANDB_API_KEY"] = "abc"
    assert rig.ranks(mode, 2, path).returncode == 0
    facts = json.loads((rig.attempt / "ranks/rank-00001.json").read_text())
    assert {k: facts[k] for k in ("rank", "local_rank", "node_rank", "world_size")} == {
        "rank": 1, "local_rank": 1, "node_rank": 0, "world_size": 2,
    }  # fmt: skip
    assert set(facts) >= {"host", "pid", "cpus", "devices", "start", "launcher"}
    environment = (rig.attempt / "environment.txt").read_text().splitlines()
    assert "RANK=0" in environment
    assert "WANDB_API_KEY=[redacted]" in environment
    cpus = len(os.sched_getaffinity(0))
    assert rig.said(0) == [str(max(cpus // 2, 1))]


def test_a_folder_that_cannot_be_written(rig: Rig) -> None:
    rig.env["ALLRANKS_ATTEMPT_DIR"] = "/proc/nowhere"
    result = rig.ranks("fork", 1, rig.script("print('on')"))
    assert (result.returncode, result.stdout) == (0, "on\n")
    assert "allranks: cannot write the log /proc/nowhere/ranks/rank-00000.log" in result.stderr


def test_the_summary_is_the_last_thing(rig: Rig, mode: str) -> None:
    path = rig.script(
        """
        import os, time
        if os.environ["RANK"] == "1":
            raise RuntimeError("boom")
        time.sleep(30)
        """
    )
    result = rig.ranks(mode, 2, path)
    block = result.stderr[result.stderr.index("first error:") :].splitlines()
    assert re.match(
        r"first error: rank 1 \(local rank 1\) on \S+, exit code 1, \d+ s after start", block[0]
    )
    assert block[1] == "Traceback (most recent call last):"
    assert block[-2:] == ["RuntimeError: boom", f"log: {rig.attempt}/ranks/rank-00001.log"]
    again = rig.run("summary", str(rig.attempt))
    assert (again.returncode, again.stderr.splitlines()) == (0, block)
    assert again.stdout == ""
    assert rig.run("summary", str(rig.attempt), "143").stdout == "1\n"
