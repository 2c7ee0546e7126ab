"""What a real sbatch reads out of our directives: held jobs, asked back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from script_rig import script_of

pytestmark = pytest.mark.slurm

AWKWARD = [
    "plain", "two words", " led by a space", "trailed by one ", "two  spaces", "tab\there",
    "it's", "''", "'", '"', '""', 'say "hi"', "\"'\"'", "'\"", "a'b\"c",
    "\\", "\\\\", "a\\", "a\\ b", "\\n", "\\\"", "\\'", "\\#", "C:\\dir\\",
    "#", "a#b", "a #b", "# led", "\\ # \"", "nvcr.io#nvidia/x:1", "'#'", "\"#\"",
    "$HOME", "$(touch oops)", "`touch oops`", "${x}", "a;b", "a|b", "a&b", "<a>", "*", "[a-b]", "{a,b}", "~",
    "!", "a!b", "%", "%%", "100%", "=", "a=b", "--nodes=9", "-N9", ":", "a:b", "hetjob",
    "é", "日本語", "🙂", "a\u00a0b", "\u2028", "\x01",
]  # fmt: skip


@pytest.fixture
def held(sandbox: Any, tmp_path: Path) -> Any:
    """Submits a held job and answers with what ``scontrol show job`` says, line by line."""

    def submit(**fields: Any) -> str:
        file = tmp_path / "job.sh"
        file.write_text(script_of(**{"sbatch": {"hold": ""}, **fields}), encoding="utf-8")
        done = subprocess.run(
            ["sbatch", "--parsable", str(file)],
            env=sandbox.environ(), cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr

    def ask() -> dict[str, str]:
        said = sandbox.run("scontrol", "show", "job").stdout
        jobs = said.split("\nJobId=") if said.startswith("JobId=") else []
        return {job.removeprefix("JobId=").split(" ", 1)[0]: job for job in jobs}

    yield submit, ask
    sandbox.run("scancel", "--state=PENDING", "--me")


def value(job: str, name: str) -> str:
    """The value that stands last on its line."""
    line = next((line for line in job.split("\n") if f"{name}=" in line), f"{name}=(none)")
    return line.partition(f"{name}=")[2]


def test_comments_and_names_arrive_as_they_are(held: Any) -> None:
    submit, ask = held
    ids = {text: submit(comment=text, name=text) for text in AWKWARD}
    jobs = ask()
    read = {text: value(jobs[job], "Comment") if job in jobs else job for text, job in ids.items()}
    assert read == {text: text + " " for text in AWKWARD}  # scontrol ends that line with a space
    names = {text: value(jobs[job], "JobName") for text, job in ids.items()}
    assert names == {text: text for text in AWKWARD}


def test_output_patterns_arrive_as_they_are(held: Any, tmp_path: Path) -> None:
    submit, ask = held
    folders = ["plain", "two words", "it's", 'a"b', "a#b", "$HOME", "é"]
    ids = {name: submit(run_dir=f"/runs/{name}") for name in folders}
    jobs = ask()
    read = {name: value(jobs[job], "StdOut") if job in jobs else job for name, job in ids.items()}
    assert read == {name: f"/runs/{name}/slurm-{ids[name]}.out" for name in folders}


def test_a_percent_sign_in_the_run_folder_is_no_pattern(sandbox: Any, tmp_path: Path) -> None:
    """Only a job that runs tells: scontrol shows the pattern."""
    folder = tmp_path / "100%" / "50%j %%"
    folder.mkdir(parents=True)
    file = tmp_path / "job.sh"
    file.write_text(script_of(run_dir=str(folder), agent=False, launcher="python", script="true"))
    job = sandbox.run("sbatch", "--parsable", "--wait", str(file)).stdout.strip()
    assert [path.name for path in folder.iterdir()] == [f"slurm-{job}.out"]


def test_any_other_option_passes_through(held: Any) -> None:
    submit, ask = held
    job = submit(sbatch={"hold": "", "nice": "7", "contiguous": ""}, account="a b#c", requeue=False)
    shown = ask()[job]
    assert "Nice=7 " in shown
    assert "Contiguous=1 " in shown
    assert "Account=a b#c " in shown
    assert "Requeue=0 " in shown


def test_an_empty_text_is_no_directive(held: Any) -> None:
    submit, ask = held
    job = submit(comment="", partition="", qos="")
    assert job in ask()


def test_the_size_arrives(held: Any) -> None:
    submit, ask = held
    size = {"nodes": 2, "gpus_per_node": 2, "cpus_per_task": 2, "memory": "100M", "time": "90m"}
    job = submit(**size, signal="B:USR1@60", exclusive=True)
    shown = ask()[job]
    assert "NumNodes=2-2 NumCPUs=8 NumTasks=4 CPUs/Task=2 " in shown
    assert "TimeLimit=01:30:00 " in shown
    assert "gpu:2" in value(shown, "TresPerNode")
    assert "MinMemoryNode=100M" in shown
