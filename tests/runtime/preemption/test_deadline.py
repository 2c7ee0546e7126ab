"""When to stop: the end of the job, signals, and how early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.errors import Interrupted, UsageError
from allranks.runs.attempt_history import attempts_of, task_history
from allranks.runs.progress_file import AttemptProgress
from allranks.runtime.preemption import deadline as module
from allranks.runtime.preemption.deadline import Deadline
from allranks.runtime.preemption.job_end_time import find_job_end
from allranks.runtime.preemption.progress_writer import StepCounter
from allranks.runtime.preemption.signal_flags import STOP_SIGNALS

NOW = 1_800_000_000


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No outer job, one Deadline for each test, and the handlers put back."""
    for name in [each for each in os.environ if each.startswith(("SLURM", "ALLRANKS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(module, "_shared", None)
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def job(**more: str) -> dict[str, str]:
    end, start = str(NOW + 3600), str(NOW)
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": end, "SLURM_JOB_START_TIME": start} | more


def test_the_end_is_told_by_the_environment() -> None:
    assert find_job_end({}) is None
    end = find_job_end(job())
    assert end is not None
    assert (end.time, end.length, end.description) == (
        NOW + 3600,
        3600,
        "the end of job 7 (time limit)",
    )
    named = find_job_end(job(ALLRANKS_DEADLINE=str(NOW + 60)))
    assert named is not None
    assert (named.time, named.job_id) == (NOW + 60, "")
    scripts = find_job_end(job(ALLRANKS_DEADLINE=str(NOW + 3600)))
    assert scripts == end, "the job script says what Slurm says: it may be asked again"
    with pytest.raises(UsageError, match="ALLRANKS_DEADLINE=soon is not a time"):
        find_job_end({"ALLRANKS_DEADLINE": "soon"})


def squeue(folder: Path, says: str) -> dict[str, str]:
    """A cluster whose squeue says this."""
    (folder / "squeue").write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / "squeue").chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{folder}:{os.environ['PATH']}"}


def test_slurm_is_asked_where_the_environment_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = time.localtime(NOW)
    env = squeue(tmp_path, time.strftime("%Y-%m-%dT%H:%M:%S", soon))
    monkeypatch.setenv("PATH", env["PATH"])
    end = find_job_end(env)
    assert end is not None
    assert end.time == NOW
    assert find_job_end(env, may_ask=False) is None, "one rank asks for all"
    squeue(tmp_path, "NONE")
    assert find_job_end(env) is None, "a job without a limit"


def test_a_limit_that_was_extended_is_asked_for_before_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = int(time.time()) + 7200
    env = squeue(tmp_path, time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(later)))
    known = {"SLURM_JOB_END_TIME": str(int(time.time()) + 10)}
    started = {"SLURM_JOB_START_TIME": str(int(time.time()) - 3600)}
    for name, value in {**env, **known, **started}.items():
        monkeypatch.setenv(name, value)
    found = Deadline()
    assert found.seconds_left is not None
    assert found.seconds_left < 12
    assert not found.wants_to_stop(rank=0)
    assert found.end_time == later


def test_the_lead_fits_the_job_and_its_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in job().items():
        monkeypatch.setenv(name, value)
    found = Deadline()
    assert found.lead_time() == 30 + 2
    found.save_seconds = 20
    assert found.lead_time(gap=5) == 30 + 40 + 5
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(NOW + 60))
    assert Deadline().lead_time() == 15 + 2, "a quarter of a job of one minute"


def test_the_end_of_the_job_makes_a_loop_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALLRANKS_DEADLINE", str(time.time() + 0.5))
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(tmp_path))
    stop = module.deadline()
    assert module.deadline() is stop
    saved: list[int] = []

    def loop() -> None:
        for step in range(100_000):
            time.sleep(0.001)
            if stop.should_stop(step):
                with stop.time_save(step):
                    saved.append(step)
                stop.exit(step)

    with pytest.raises(Interrupted) as left:
        loop()
    assert left.value.code == 0, "a job script looks after the rest"
    told = (tmp_path / "interrupted").read_text()
    assert told.startswith(f"saved step {saved[0]}, ")
    assert "before the end set by ALLRANKS_DEADLINE; the next attempt resumes" in told
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["outcome"], progress["saved_step"]) == ("interrupted", saved[0])
    assert progress["first_step"] == 0


def epochs(stop: Deadline, first: int, length: int = 20) -> None:
    """A loop that counts each epoch from 0 and saves at the end of each; a signal in the third."""
    for epoch in range(100):
        for step in range(0 if epoch else first, length):
            time.sleep(0.001)
            if (epoch, step) == (2, 5):
                os.kill(os.getpid(), signal.SIGUSR1)
            if step == length - 1:
                stop.record_save(step)
            if stop.should_stop(step):
                stop.exit(step)


def life(run: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Deadline:
    """A process of another attempt."""
    (run / "attempts" / str(number)).mkdir(parents=True)
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(run / "attempts" / str(number)))
    monkeypatch.setattr(module, "_shared", None)
    return module.deadline()


def test_a_loop_that_counts_each_epoch_from_0_leaves_and_moves_forward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        stop = life(tmp_path, number, monkeypatch)
        with pytest.raises(Interrupted):
            epochs(stop, first=7)
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
    entries = task_history(attempts_of(tmp_path))
    assert [entry.made_progress for entry in entries] == [True, True, True]
    first, second = entries[:2]
    assert first.kept_step is not None
    assert first.kept_step >= 45, "two epochs and five steps"
    assert second.first_step is not None
    assert second.first_step >= first.kept_step, "counted on"


def test_a_save_before_near_in_a_new_epoch_is_counted_on() -> None:
    count = StepCounter()
    assert [count.count(step) for step in (8, 8, 9)] == [8, 8, 9], "batches of one step"
    assert [count.count_saved(9), count.count_saved(0), count.count(0)] == [9, 10, 10]
    assert [count.count(1), count.count_saved(1), count.last] == [11, 11, 11]


def test_one_step_an_attempt_moves_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        began = time.time()
        stop = life(tmp_path, step, monkeypatch)
        time.sleep(0.05)  # the step
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.should_stop(step)
        with pytest.raises(Interrupted):
            stop.exit(step)
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        progress = AttemptProgress.read(tmp_path / "attempts" / str(step))
        assert progress is not None
        assert (progress.first_step, progress.saved_step) == (step - 1, step)
        assert began <= (progress.began or 0) <= time.time() - 0.05, "before its first step"
    assert [entry.made_progress for entry in task_history(attempts_of(tmp_path))] == [
        True,
        True,
        True,
    ]


@pytest.mark.torch
def test_ranks_that_are_not_connected_yet_are_refused(clean_env: dict[str, str]) -> None:
    code = "import torch, allranks\nallranks.deadline().should_stop(1)"
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, env=clean_env | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert "should_stop() was called on rank 1 of 2 before torch.distributed was" in done.stderr
    assert "Call allranks.init()" in done.stderr


def test_two_lines_do_with_a_hook(capsys: pytest.CaptureFixture[str]) -> None:
    stop = module.deadline()
    saved: list[int] = []
    stop.on_stop(saved.append)

    def loop() -> None:
        for step in range(100_000):
            if step == 5:
                os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.002)
            stop.should_stop(step)

    with pytest.raises(Interrupted) as left:
        loop()
    assert left.value.code == 75, "nobody else looks after the rest"
    assert (
        str(left.value) == f"saved step {saved[0]} on SIGUSR2; the next attempt resumes from there"
    )
    assert capsys.readouterr().out == f"allranks: {left.value}\n"


def test_a_handler_that_was_there_is_called_too() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    stop = module.deadline()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGUSR1]
    assert stop.signals.received == "SIGUSR1"
    assert stop.should_stop(1)


def test_a_fit_gives_term_back_unless_a_loop_asked_for_it() -> None:
    watched = module.shared_deadline()
    watched.watch_signals()
    watched.signals.restore_term()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL, "a warning kills nobody"
    module.deadline()
    watched.signals.restore_term()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_a_copy_of_the_process_can_be_terminated_and_warned() -> None:
    module.deadline()
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.1)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_only_the_main_thread_may_watch() -> None:
    code = (
        "import allranks, threading\n"
        "def call():\n"
        "    try: allranks.deadline()\n"
        "    except allranks.AllranksError as error: print(error)\n"
        "t = threading.Thread(target=call); t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "only the main thread may" in done.stdout
