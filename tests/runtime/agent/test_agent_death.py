"""However it ends, it ends soon, with the right code, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from agent_rig import Rig

from command_rig import until

IGNORES_TERM = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"ready{os.environ['RANK']}", "w")
    size = int(os.environ["WORLD_SIZE"])
    while len([f for f in os.listdir(".") if f.startswith("ready")]) < size:
        time.sleep(0.01)
"""


def ready(rig: Rig, count: int) -> bool:
    return until(lambda: len(list(rig.folder.glob("ready*"))) >= count)


def test_one_death_ends_the_others_that_ignore_term(rig: Rig, mode: str) -> None:
    path = rig.script(
        IGNORES_TERM + "    if os.environ['RANK'] == '1': sys.exit(5)\n    time.sleep(60)\n"
    )
    began = time.monotonic()
    result = rig.ranks(mode, 3, path, ALLRANKS_GRACE="0.5")
    assert result.returncode == 5
    assert time.monotonic() - began < 8
    failures = sorted(p.name for p in (rig.attempt / "failures").iterdir())
    assert failures == ["rank-00001.json"]
    assert not rig.alive()


def test_a_rank_killed_by_a_signal(rig: Rig, mode: str) -> None:
    path = rig.script(
        "import os, time\nprint('last words')\n"
        "os.environ['RANK'] == '0' and os.kill(os.getpid(), 11)\ntime.sleep(60)"
    )
    result = rig.ranks(mode, 2, path)
    assert result.returncode == 139
    assert "first error: rank 0 (local rank 0) on" in result.stderr
    assert "killed by SIGSEGV (exit code 139)" in result.stderr
    record = json.loads((rig.attempt / "failures/rank-00000.json").read_text())
    assert (record["signal"], record["exit_code"]) == (11, 139)
    assert record["traceback"] == "last words"


def test_a_stop_that_reaches_the_ranks_before_the_agent_is_no_failure(rig: Rig, mode: str) -> None:
    """Slurm signals every process of a step, in any order."""
    path = rig.script("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    agent = rig.start_ranks(mode, 2, path)
    logs = [rig.attempt / "ranks" / f"rank-{rank:05d}.log" for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text().strip() for log in logs))
    for pid in (int(rig.said(0)[0]), int(rig.said(1)[0]), agent.pid):
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
    agent.communicate(timeout=30)
    assert agent.returncode == 143
    assert not list((rig.attempt / "failures").glob("*"))


WORKERS = """
    import multiprocessing, os, subprocess, time
    def work():
        time.sleep(60)
    if __name__ == "__main__":
        for method in ("fork", "spawn"):
            multiprocessing.get_context(method).Process(target=work).start()
        subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"])
        subprocess.Popen(["setsid", "sleep", "61"])
        open(f"ready{os.environ['RANK']}", "w")
        time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_agent_ends_everything(rig: Rig, mode: str, how: int) -> None:
    agent = rig.start_ranks(mode, 2, rig.script(WORKERS), ALLRANKS_GRACE="1")
    assert ready(rig, 2)
    agent.send_signal(how)
    agent.communicate(timeout=10)
    assert agent.returncode == 128 + (signal.SIGINT if how == signal.SIGINT else signal.SIGTERM)
    until(lambda: not rig.alive(), 3, rig.alive)
    assert not (rig.attempt / "failures").exists()


def test_kill_9_of_the_agent_leaves_nothing(rig: Rig, mode: str) -> None:
    text = WORKERS.replace('subprocess.Popen(["setsid", "sleep", "61"])', "pass")
    agent = rig.start_ranks(mode, 2, rig.script(text))
    assert ready(rig, 2)
    assert len(rig.alive()) > 8
    agent.kill()
    agent.wait()
    until(lambda: not rig.alive(), 3, rig.alive)


def test_sweep_ends_what_left_its_session(rig: Rig) -> None:
    from allranks.runtime.agent.orphans import sweep

    agent = rig.start_ranks("exec", 2, rig.script(WORKERS))
    assert ready(rig, 2)
    assert len(sweep(rig.session)) >= 13
    agent.wait(timeout=5)
    until(lambda: not rig.alive(), 3)
    assert sweep("") == []


def test_a_second_signal_kills(rig: Rig, mode: str) -> None:
    ignores = (
        IGNORES_TERM
        + "    signal.signal(signal.SIGINT, signal.SIG_IGN); open('ignores', 'w'); time.sleep(60)\n"
    )
    agent = rig.start_ranks(mode, 1, rig.script(ignores), ALLRANKS_GRACE="50")
    until((rig.folder / "ignores").exists)
    agent.send_signal(signal.SIGINT)
    agent.send_signal(signal.SIGINT)
    time.sleep(1.2)
    assert agent.poll() is None  # two at once are one
    agent.terminate()
    time.sleep(0.3)
    assert agent.poll() is None  # schedulers say it more than once, and ranks may be saving
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=5) == 137


def test_ctrl_c_in_a_terminal_reaches_a_rank_once(rig: Rig, mode: str) -> None:
    path = rig.script(
        """
        import os, sys, time
        hits = 0
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                open(f"ready{os.environ['RANK']}", "w").close()
                time.sleep(0.1)
            except KeyboardInterrupt:
                hits += 1
                end = time.monotonic() + 0.5
        print("hits", hits)
        """
    )
    for count in (1, 2):
        for file in rig.folder.glob("ready*"):
            file.unlink()
        words = ["ranks", "--nprocs", str(count), "--mode", mode, "--", path]
        out = in_terminal(rig, words, lambda c=count: ready(rig, c), b"\x03")
        assert out.count(b"hits 1\r\n") == count, out


def in_terminal(rig: Rig, words: list[str], condition, keys: bytes) -> bytes:
    """Run an agent as the foreground job of a pseudo-terminal and type into it."""
    from agent_rig import AGENT

    pid, fd = os.forkpty()
    if pid == 0:
        os.chdir(rig.folder)
        os.execvpe(AGENT[0], [*AGENT, *words], rig.env)
    assert condition()
    os.write(fd, keys)
    out = b""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    os.close(fd)
    os.waitpid(pid, 0)
    return out


def test_a_single_rank_reads_the_terminal(rig: Rig, mode: str) -> None:
    path = rig.script("open('ready0', 'w'); print('got', input('name? '))")
    out = in_terminal(
        rig, ["ranks", "--nprocs", "1", "--mode", mode, "--", path], lambda: ready(rig, 1), b"ada\n"
    )
    assert b"name? " in out
    assert b"got ada" in out


def test_user_signals_are_passed_on_once(rig: Rig, mode: str) -> None:
    path = rig.script(
        """
        import os, signal, time
        for s in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(s, lambda n, f: os.write(1, f"got {signal.Signals(n).name}\\n".encode()))
        open(f"ready{os.environ['RANK']}", "w")
        end = time.monotonic() + 1
        while time.monotonic() < end: time.sleep(0.05)
        """
    )
    agent = rig.start_ranks(mode, 2, path)
    assert ready(rig, 2)
    agent.send_signal(signal.SIGUSR1)
    agent.send_signal(signal.SIGUSR2)
    out, _ = agent.communicate(timeout=10)
    assert agent.returncode == 0
    assert sorted(out.splitlines()) == [f"[{r}] got SIGUSR{n}" for r in (0, 1) for n in (1, 2)]


def test_a_clean_end_on_term_is_success(rig: Rig, mode: str) -> None:
    path = rig.script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
        open(f"ready{os.environ['RANK']}", "w")
        time.sleep(60)
        """
    )
    agent = rig.start_ranks(mode, 2, path)
    assert ready(rig, 2)
    agent.terminate()
    agent.communicate(timeout=10)
    assert agent.returncode == 0


def test_a_background_child_does_not_keep_the_agent(rig: Rig, mode: str) -> None:
    path = rig.script("import subprocess; subprocess.Popen(['sleep', '60']); print('done')")
    began = time.monotonic()
    result = rig.ranks(mode, 1, path)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert time.monotonic() - began < 5
    assert not rig.alive()


def test_the_reader_that_goes_away(rig: Rig, mode: str) -> None:
    path = rig.script("for i in range(200000): print(i)\nopen('ended', 'w')")
    agent = rig.start_ranks(mode, 1, path)
    assert agent.stdout
    agent.stdout.readline()
    agent.stdout.close()
    assert agent.wait(timeout=20) == 0
    assert (rig.folder / "ended").exists()
    assert rig.said(0)[-1] == "199999"


def test_a_reader_that_stands_still_does_not_block_the_end(rig: Rig) -> None:
    path = rig.script("import os\nopen('ready0','w')\nwhile True: print('x' * 1000)")
    agent = rig.start_ranks("exec", 1, path)
    assert ready(rig, 1)
    time.sleep(0.5)
    agent.terminate()
    assert agent.wait(timeout=12) == 143


def test_a_command_that_is_not_there(rig: Rig) -> None:
    result = rig.ranks("exec", 1, "no-such-program")
    assert result.returncode == 127
    assert "allranks: cannot run 'no-such-program': No such file or directory" in result.stderr


def test_no_zombies_of_the_agent(rig: Rig) -> None:
    rig.ranks("fork", 2, rig.script("print(1)"))
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert rig.session not in listed
