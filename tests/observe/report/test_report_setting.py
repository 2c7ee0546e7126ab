"""Which task, how it ended, how to run it again: what a report says around its numbers."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from report_rig import facts, life

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_usage import Usage, joined
from allranks.errors import UsageError
from allranks.observe.report.advice import advise
from allranks.observe.report.external_job import external_job_facts
from allranks.observe.report.report_files import Report, report_job, report_run, save_report
from allranks.observe.report.report_tables import request_title
from allranks.observe.report.verdict import array_summary, tiles, verdict
from allranks.observe.view.diagnostics import diagnostics
from allranks.runs import Run
from allranks.runs.run_records import environment
from command_rig import Allranks, until
from view_rig import make_array, make_run


@pytest.fixture
def sweep(tmp_path: Path) -> Run:
    ends = {"0": "finished", "1": "failed", "2": "finished", "3": "timed out"}
    folder = tmp_path / "runs" / "sweep"
    folder.mkdir(parents=True)
    return make_array(folder, ends)


def test_of_an_array_it_says_which_task_it_is(sweep: Run) -> None:
    report = report_run(sweep)
    told = json.loads(report.text("json"))
    assert told["task"] == "3"
    assert told["tasks"] == {"0": "completed", "1": "failed", "2": "completed", "3": "timeout"}
    line = "Task 3 of a job array, 4 tasks so far; failed: 1; timeout: 3. Of another: allranks report sweep --task 1"
    assert array_summary(report.facts) == line
    assert line in report.text("html")
    assert line in report.text("markdown")
    assert report.default_path() == sweep.path / "tasks" / "3" / "report.html"
    assert array_summary(facts()) == ""


def test_the_command_takes_a_task(
    allranks: Allranks, sweep: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = allranks("report", "sweep", "--task", "1", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sweep: failed\n  Task 1 of a job array")
    assert "--task 3" in done.stdout
    assert (sweep.path / "tasks" / "1" / "report.html").exists()
    wrong = allranks("report", "sweep", "--task", "77")
    assert wrong.returncode == 2
    assert "sweep has no task 77" in wrong.stderr
    monkeypatch.chdir(tmp_path)
    assert report_job("4711_1").facts.task == "1"


def test_of_a_job_array_of_others_the_failed_tasks_are_named() -> None:
    states = [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED, JobState.FAILED]
    parts = [
        Usage(f"505_{place}", state=state, exit_code=int(state is JobState.FAILED), seconds=60.0)
        for place, state in enumerate(states)
    ]
    found = external_job_facts(joined("505", parts))
    assert array_summary(found) == "4 tasks; failed: 1 and 3. Of one: allranks report --job 505_1"
    [advice] = advise(found)
    assert advice.text == "Tasks 1 and 3 of 4 failed after 60 s with exit code 1."
    assert not any("505_0" in each for each in found.limitations)


def test_a_run_that_was_killed_is_told_so(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "allranks", "run", "--nprocs", "1", "train.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=_plain_env(tmp_path)
    )
    try:
        assert process.stdout is not None
        assert any("begun" in line for line in process.stdout)
        [folder] = (tmp_path / "runs").glob("train-*")
        until((folder / "versions.json").exists)
    finally:
        process.kill()
        process.wait()
    report = report_run(Run.open(folder))
    assert report.facts.killed
    [advice] = [each for each in report.advice if each.id == "failed"]
    assert advice.text.startswith("It was killed from outside")
    assert advice.command == f"allranks logs {folder.name}"
    assert [each.help for each in diagnostics(Run.open(folder))] == [advice.command]
    assert "begun" in allranks("logs", folder.name).stdout
    assert report.facts.versions["Python"] == ".".join(map(str, sys.version_info[:3]))


def _plain_env(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return kept | {"XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}


def test_how_long_a_killed_run_lived_is_not_known_better() -> None:
    killed = facts(state="failed", exit_code=None, seconds=35.0, attempts=[life(outcome="killed")])
    assert tiles(killed)[0].about == "after 35 s or more"
    assert verdict(killed, advise(killed)) == "It was killed: look at the advice first."
    assert "35 s after it began or later" in advise(killed)[0].text


def test_a_run_that_plain_python_started_has_its_versions(tmp_path: Path) -> None:
    text = "from allranks.train.trainer_run import make_folder; make_folder('runs', 'plain')"
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, env=_plain_env(tmp_path))
    [folder] = (tmp_path / "runs").glob("plain-*")
    assert json.loads((folder / "versions.json").read_text())["packages"]["click"]


def test_the_ways_to_run_it_again_are_two(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=2, job_id="12")
    report = report_run(run)
    there = "cd /home/you/project"
    assert report.facts.original_command == [there, "allranks submit train.py"]
    assert report.facts.exact_command == [there, f"allranks submit --config {run.path}/job.toml"]
    first, second = report.text("markdown").split("Or exactly as it was planned:")
    assert "job.toml" not in first
    assert "allranks submit --config" in second
    assert "<p>Or exactly as it was planned:</p>" in report.text("html")


def test_a_point_of_a_study_is_not_the_study(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=2)
    about = json.loads((run.path / "run.json").read_text())
    about["command"] = ["allranks", "scale", "--resume", "study"]
    (run.path / "run.json").write_text(json.dumps(about))
    report = report_run(Run.open(run.path))
    assert report.facts.original_command == []
    assert "allranks run --config" in report.text("markdown")
    for form in ("html", "markdown"):
        assert "scale --resume" not in report.text(form)
        assert "Or exactly" not in report.text(form)


def test_what_is_no_regular_file_is_written_into(tmp_path: Path) -> None:
    report = Report(facts(), [])
    (tmp_path / "real.md").write_text("old")
    (tmp_path / "link.md").symlink_to("real.md")
    save_report(report, "markdown", str(tmp_path / "link.md"))
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "real.md").read_text().startswith("# train")
    os.mkfifo(tmp_path / "pipe")
    heard: list[str] = []
    reader = threading.Thread(
        target=lambda: heard.append((tmp_path / "pipe").read_text()), daemon=True
    )
    reader.start()
    save_report(report, "markdown", str(tmp_path / "pipe"))
    reader.join(10)
    assert heard
    assert heard[0].startswith("# train")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("output", ["", "FOLDER"])
def test_what_others_put_into_a_folder_is_replaced(output: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=2)
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    report = report_run(run)
    (run.path / "report.md").symlink_to(mine)
    os.mkfifo(run.path / "report.html")
    for form, name in (("markdown", "report.md"), ("html", "report.html")):
        path = save_report(report, form, output and str(run.path))
        assert path == run.path / name
        assert stat.S_ISREG(path.lstat().st_mode)
        assert path.read_text() == report.text(form)
    assert mine.read_text() == "mine"


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="Too many levels of symbolic links"):
        save_report(Report(facts(), []), "markdown", str(tmp_path / "a"))
    (tmp_path / "new.md").symlink_to("made.md")
    save_report(Report(facts(), []), "markdown", str(tmp_path / "new.md"))
    assert (tmp_path / "made.md").read_text().startswith("# train")


@pytest.mark.timeout(60)
def test_an_environment_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=2)
    path = run.path / "attempts" / "1" / "environment.txt"
    path.unlink()
    os.mkfifo(path)
    assert report_run(run).facts.environment == {}
    assert environment(path.parent) == {}


def test_on_this_machine_nothing_is_asked_for(tmp_path: Path) -> None:
    report = report_run(make_run(tmp_path, windows=2))
    assert "Had and used" in report.text("html")
    assert "Requested" not in report.text("markdown")
    assert request_title(facts(scheduler="slurm")) == "Requested"


def test_numbers_that_make_no_sense_are_survived(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=5)
    plan = json.loads((run.path / "plan.json").read_text())
    plan["shape"] |= {
        "gpus_per_node": "9" * 5000,
        "memory_mib": 10**400,
        "nodes": [],
        "world_size": "x",
    }
    (run.path / "plan.json").write_text(json.dumps(plan))
    node = run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl"
    about, rest = node.read_text().split("\n", 1)
    node.write_text(json.dumps(json.loads(about) | {"cpus": "x", "cpus_total": []}) + "\n" + rest)
    for form in ("html", "markdown", "json"):
        assert report_run(run).text(form)
