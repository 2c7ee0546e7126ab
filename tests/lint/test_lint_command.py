"""The command: what it prints, what it fixes, its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from allranks.cli.lint import lint
from allranks.errors import UsageError

LATE = "#!/bin/bash\n#SBATCH --nodes=1\nmodule load x\n#SBATCH --time=10\nsrun python train.py\n"
WORKDIR = "#!/bin/bash\n#SBATCH --workdir=/tmp\nsrun python train.py\n"
CLEAN = "#!/bin/bash\n#SBATCH --nodes=1\nsrun python train.py\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALLRANKS_SITE", "")
    return tmp_path


def _run(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(lint, ["--no-shellcheck", *args], input=text, standalone_mode=False)


def test_a_finding_has_its_line_a_caret_and_what_to_type(folder: Path) -> None:
    (folder / "job.sh").write_text(LATE)
    result = _run("job.sh")
    assert result.return_value == 1
    assert result.output.splitlines()[:3] == [
        "job.sh:4:1: warning AR001 sbatch does not read this directive",
        "    4 | #SBATCH --time=10",
        "      | ^^^^^^^^^^^^^^^^^",
    ]
    assert "fix: Move it above line 3." in result.output
    assert result.output.splitlines()[-1] == "1 file: 1 warning. --fix can fix 1."
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize(
    ("text", "severity", "code"),
    [(CLEAN, "note", 0), (LATE, "warning", 1), (LATE, "error", 0), (LATE, "note", 1)],
)
def test_the_exit_code_follows_the_severity(
    folder: Path, text: str, severity: str, code: int
) -> None:
    (folder / "job.sh").write_text(text)
    assert _run("--severity", severity, "job.sh").return_value == code


def test_rules_are_chosen_by_id_name_or_beginning(folder: Path) -> None:
    (folder / "job.sh").write_text(LATE)
    for choice in ("AR001", "late-directive", "AR0"):
        assert "AR001" in _run("--select", choice, "job.sh").output
        assert "AR001" not in _run("--ignore", choice, "job.sh").output
    result = _run("--select", "late-directiv", "job.sh")
    assert isinstance(result.exception, UsageError)
    assert "Did you mean 'late-directive'?" in str(result.exception)


@pytest.mark.parametrize(
    "script",
    [
        LATE.replace("--time=10", "--time=10 # allranks: ignore=AR001"),
        LATE.replace("#SBATCH --time", "# allranks: ignore=AR001\n#SBATCH --time"),
        LATE.replace("--time=10", "--time=10 # allranks: ignore"),
        LATE + "# allranks: ignore-file=late-directive\n",
        LATE + "# allranks: ignore-file\n",
    ],
)
def test_a_comment_switches_a_rule_off(folder: Path, script: str) -> None:
    (folder / "job.sh").write_text(script)
    assert "AR001" not in _run("job.sh").output


def test_a_comment_above_a_long_command(folder: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -N 2\n{}srun \\\n  --cpu_bind=none \\\n  python train.py\n"
    (folder / "job.sh").write_text(text.format(""))
    assert "AR008" in _run("job.sh").output
    (folder / "job.sh").write_text(text.format("# allranks: ignore=AR008\n"))
    assert "AR008" not in _run("job.sh").output


@pytest.mark.parametrize(
    "script",
    [
        LATE.replace("--time=10", "--time=10 # allranks: ignore=AR002"),
        LATE.replace("--nodes=1", "--nodes=1 # allranks: ignore=AR001"),
    ],
)
def test_a_comment_elsewhere_does_not(folder: Path, script: str) -> None:
    (folder / "job.sh").write_text(script)
    assert "AR001" in _run("job.sh").output


def test_fix_writes_what_is_safe_and_shows_it(folder: Path) -> None:
    (folder / "job.sh").write_text(LATE)
    shown = _run("--diff", "job.sh").output
    assert "+#SBATCH --time=10" in shown
    assert (folder / "job.sh").read_text() == LATE
    result = _run("--fix", "job.sh")
    assert result.return_value == 0
    assert "+#SBATCH --time=10" in result.output
    assert (folder / "job.sh").read_text() == (
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=10\nmodule load x\nsrun python train.py\n"
    )
    assert _run("--fix", "job.sh").output == "1 file: nothing found.\n"


def test_fixes_of_several_rules_come_together(folder: Path) -> None:
    (folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --workdir=/tmp\n#SBATCH -N=2\nsrun --cpu_bind=none python train.py\n"
    )
    _run("--fix", "job.sh")
    assert (folder / "job.sh").read_text() == (
        "#!/bin/bash\n#SBATCH --chdir=/tmp\n#SBATCH -N 2\nsrun --cpu-bind=none python train.py\n"
    )


def test_standard_input(folder: Path) -> None:
    result = _run("-", text=LATE)
    assert result.output.startswith("<stdin>:4:1: warning AR001")


def test_a_folder_holds_the_job_scripts_below_it(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "a.sbatch").write_text(LATE)
    (folder / "jobs" / "setup.sh").write_text("echo no job\n")
    (folder / "jobs" / "train.py").write_text("#SBATCH\n")
    assert _run("jobs").output.splitlines()[-1].startswith("1 file: 1 warning.")


def test_no_such_file(folder: Path) -> None:
    assert str(_run("no.sh").exception) == "There is no file no.sh."


def test_json(folder: Path) -> None:
    (folder / "job.sh").write_text(WORKDIR)
    (found,) = json.loads(_run("--json", "job.sh").output)
    assert found["rule"] == "AR008"
    assert (found["line"], found["column"], found["end_line"], found["end_column"]) == (2, 9, 2, 23)
    assert found["fix"] == [
        {"line": 2, "column": 9, "end_line": 2, "end_column": 18, "text": "--chdir"}
    ]


def test_sarif(folder: Path) -> None:
    (folder / "job.sh").write_text(WORKDIR)
    run = json.loads(_run("--sarif", "job.sh").output)["runs"][0]
    (result,) = run["results"]
    assert result["ruleId"] == "AR008"
    assert result["level"] == "warning"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 2
    assert "AR008" in {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_github(folder: Path) -> None:
    (folder / "job.sh").write_text(WORKDIR)
    line = _run("--github", "job.sh").output
    assert line.startswith("::warning file=job.sh,line=2,col=9,title=AR008 Slurm has renamed")


def test_rules_are_listed_and_shown(folder: Path) -> None:
    listed = _run("--rules").output
    assert "AR001  warning  sbatch does not read this directive" in listed
    page = _run("--rules", "--select", "AR001").output
    assert "Bad:" in page
    assert "Good:" in page


def test_a_site_is_checked(folder: Path) -> None:
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH -p nope\n#SBATCH -G 1\nsrun python t.py\n")
    output = _run("--site", "grete", "job.sh").output
    assert "AR901" in output
    assert "no partition 'nope'" in output


def test_a_job_that_a_script_submits_is_read(folder: Path) -> None:
    (folder / "submit.sh").write_text(
        "#!/bin/bash\nfor n in 2 4; do\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\n"
        "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=\\$H:1 train.py\nEOF\ndone\n"
    )
    output = _run("submit.sh").output
    assert "submit.sh:8:" in output
    assert "AR102" in output


def test_what_the_submitting_script_fills_in_is_left_alone(folder: Path) -> None:
    (folder / "submit.sh").write_text(
        "#!/bin/bash\nhours=$1\nfor m in a b; do\nsbatch <<EOT\n#!/bin/bash\n#SBATCH --job-name=$m\n"
        "#SBATCH --time=$hours:00:00\n#SBATCH --mem=$((hours * 10))G\n#SBATCH -c $((8 * hours))\n"
        "#SBATCH --output=out/${m}_$hours/%j.txt\n#SBATCH --nodes=$2 --gpus=$3\n"
        "srun python train.py --model $m --id \\$SLURM_JOB_ID\nEOT\ndone\n"
    )
    assert _run("submit.sh").output == "1 file: nothing found.\n"


def test_shellcheck_is_merged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "shellcheck"
    program.parent.mkdir()
    record = '[{"line": 3, "endLine": 3, "column": 1, "endColumn": 5, "level": "error", "code": 9999, "message": "no"}]'
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{record}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (folder / "job.sh").write_text(CLEAN)
    output = CliRunner().invoke(lint, ["job.sh"], standalone_mode=False).output
    assert "job.sh:3:1: warning SC9999 shellcheck" in output


def test_files_beside_the_script_are_read(folder: Path) -> None:
    (folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4\nsrun python train.py\n"
    )
    (folder / "train.py").write_text("import torch\nprint(torch.ones(1))\n")
    assert "AR808" in _run("job.sh").output


def test_a_hundred_scripts_take_a_second_or_two(folder: Path) -> None:
    import time

    for number in range(100):
        (folder / f"job{number}.sh").write_text(LATE + "export A=1\n" * 20)
    begin = time.monotonic()
    _run("--ignore", "AR501", ".")
    assert time.monotonic() - begin < 10  # a busy machine; alone it is one
