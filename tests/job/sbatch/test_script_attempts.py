"""What a job script does between two attempts, played among programs that only take notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_rig import NOTE, Stage, Told, plan_of

from allranks.job.sbatch import render
from allranks.runtime.agent.agent_options import RequeuePolicy, read_options

SCONTROL = (
    NOTE
    + """case $1 in
  requeue) exit "${REFUSED:-0}" ;;
  show) if [[ $2 == job ]]; then echo "JobState=${STATE:-RUNNING} Restarts=${RESTARTS:-0} Requeue=1"; fi ;;
esac
"""
)
# The ranks leave on purpose when LEAVE is set; the agent answers with the next line of the file.
PYTHON = (
    NOTE
    + """env -0 >"$NOTES.env"
if [[ $1 == -c ]]; then exit "${NO_AGENT:-0}"; fi
if [[ $3 == attempt-end && ${NO_AGENT:-0} == 0 ]]; then
  touch "$4/end.json"; head -n 1 "$ANSWERS"; sed -i 1d "$ANSWERS"; exit
fi
if [[ $3 == attempt-start ]]; then
  if [[ ${START:-start} != start ]]; then touch "$4/end.json"; fi
  echo "${START:-start}"; exit
fi
if [[ $3 == rank || $3 == block-signals ]]; then while [[ $1 != -- ]]; do shift; done; shift; exec "$@"; fi
if [[ $1 == train.py && -n $LEAVE ]]; then echo "time is up" >"$ALLRANKS_ATTEMPT_DIR/interrupted"; fi
exit "${CODE:-0}"
"""
)
SBATCH = NOTE + 'env -0 >"$NOTES.sbatch"; exit_code=${NO_SBATCH:-0}; echo 31; exit "$exit_code"\n'


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    for name, text in {"scontrol": SCONTROL, "python": PYTHON, "sbatch": SBATCH}.items():
        stage.fake(name, text)
    stage.fake("squeue", "#!/bin/bash\necho 1800000000\n")
    stage.fake("sleep", NOTE)
    return stage


def run(stage: Stage, answers: str, fields: dict[str, Any], fresh: bool = True, **env: str) -> Told:
    (stage.folder / "answers").write_text(answers)
    plan = plan_of(**fields)
    text = render(plan, run_dir=str(stage.folder / "run"))
    return stage.run(text, plan, fresh, ANSWERS=str(stage.folder / "answers"), **env)


def trainings(told: Told) -> int:
    return sum(call[0] == "train.py" for call in told.of("python"))


ON = {"requeue": True}


def test_back_into_the_queue(stage: Stage) -> None:
    told = run(stage, "requeue 0 --requeue JobState=RUNNING\n", ON)
    assert (told.code, told.of("sbatch")) == (0, [])
    assert ("requeue", "7") in told.of("scontrol")
    words = told.of("python")[-1]
    assert words[:3] == ("-m", "allranks.runtime.agent", "attempt-end")
    assert words[5] == "--requeue"
    assert read_options(words[2:9]).policy == RequeuePolicy(
        requeue=True
    )  # its defaults are the agent's
    assert words[-3:] == ("--job", "JobState=RUNNING Restarts=0 Requeue=1", "--retry-after=0")


@pytest.mark.parametrize("how", [{"REFUSED": "1"}, {}])
def test_a_new_job_where_slurm_refuses(stage: Stage, how: dict[str, str]) -> None:
    answer = (
        "requeue 0 --requeue JobState=RUNNING\nresubmit 0 --exclude=n3,n4 JobState=RUNNING\n"
        if how
        else "resubmit 0 --exclude=n3,n4 JobState=RUNNING\n"
    )
    told = run(stage, answer, ON, SLURM_CONF="/etc/my.conf", MINE="kept", **how)
    assert told.code == 0, told.output
    (words,) = told.of("sbatch")
    assert words[:3] == ("--parsable", "--dependency=afterany:7", f"--chdir={stage.work}")
    assert words[3:] == ("--exclude=n3,n4", str(stage.folder / "run" / "job.sh"))
    assert (stage.folder / "run" / "resubmitted").read_text() == "31\n"
    env = (stage.folder / "notes.sbatch").read_text().split("\0")
    names = {item.partition("=")[0] for item in env}
    assert "MINE=kept" in env
    assert {name for name in names if name.startswith("SLURM")} == {"SLURM_CONF"}
    assert "ALLRANKS_DEADLINE" not in names


def test_a_job_that_slurm_has_put_back_itself_is_not_submitted_too(stage: Stage) -> None:
    told = run(
        stage, "requeue 0 --requeue JobState=RUNNING\nrequeued 0\n", ON, REFUSED="1", RESTARTS="1"
    )
    assert (told.code, told.of("sbatch")) == (0, [])
    assert told.of("python")[-1][-1] == "--refused=requeue"


@pytest.mark.parametrize(("answer", "code"), [("done 0", 0), ("stop 7", 7), ("requeued 0", 0)])
def test_the_end(stage: Stage, answer: str, code: int) -> None:
    told = run(stage, f"{answer}\n", {**ON, "restarts": 2})
    assert (told.code, trainings(told), told.of("sbatch")) == (code, 1, [])
    assert ("requeue", "7") not in told.of("scontrol")
    assert (stage.folder / "run" / "finished").exists() is (answer == "done 0")


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpirun"])
def test_crashed_ranks_start_again_in_an_attempt_of_their_own(stage: Stage, launcher: str) -> None:
    more = (
        {"launcher": launcher} if launcher != "mpirun" else {"launcher": launcher, "mpi": "openmpi"}
    )
    told = run(stage, "restart 1\nrestart 1\nstop 9\n", {"restarts": 2, **more}, CODE="9")
    assert told.code == 9, told.output
    attempts = stage.folder / "run" / "attempts"
    assert sorted(path.name for path in attempts.iterdir()) == ["1", "2", "3"]
    assert told.env["ALLRANKS_ATTEMPT_DIR"] == str(attempts / "3")


def test_a_finished_run_is_not_started_again(stage: Stage) -> None:
    for fields in (ON, {}):
        assert trainings(run(stage, "done 0\n", fields)) == 1
        again = run(stage, "done 0\n", fields, fresh=False)
        assert (again.code, trainings(again)) == (0, 0)
        assert "This run has finished already" in again.output


@pytest.mark.parametrize(
    ("env", "back", "code"),
    [
        ({"LEAVE": "1"}, True, 0),
        ({"LEAVE": "1", "STATE": "COMPLETING"}, False, 75),  # it was cancelled
        ({"CODE": "75"}, True, 0),
        ({"CODE": "9"}, False, 9),
        ({"STATE": "COMPLETING"}, False, 0),  # cancelled too, though its ranks ended well
        ({}, False, 0),
    ],
)
def test_without_allranks_bash_does_the_simple_part(
    stage: Stage, env: dict[str, str], back: bool, code: int
) -> None:
    told = run(stage, "", ON, NO_AGENT="1", **env)
    assert (("requeue", "7") in told.of("scontrol"), told.code) == (back, code)
    assert (stage.folder / "run" / "finished").exists() is (env == {})
    asked = [call for call in told.of("python") if call[:2] == ("-m", "allranks.runtime.agent")]
    assert asked == []  # it would only say that there is no such module


def test_a_script_that_may_not_go_on_tells_that_it_has_not_finished(stage: Stage) -> None:
    told = run(stage, "", {}, LEAVE="1")
    assert told.code == 75
    assert not (stage.folder / "run" / "finished").exists()


@pytest.mark.parametrize(
    ("answer", "code", "sent"), [("stop 75", 75, 0), ("resubmit --exclude=n8", 0, 1)]
)
def test_what_is_asked_before_a_later_attempt(
    stage: Stage, answer: str, code: int, sent: int
) -> None:
    (stage.folder / "run" / "attempts" / "1").mkdir(parents=True)
    told = run(stage, "", {**ON, "exclude": "n9"}, START=answer)
    assert (told.code, trainings(told), len(told.of("sbatch"))) == (code, 0, sent)
    assert told.of("python")[-1][-2:] == ("--exclude", "n9")


def test_a_job_knows_its_end_and_an_array_task_its_own_folder(stage: Stage) -> None:
    told = run(stage, "", {"array": "0-3"}, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="6")
    assert told.env["ALLRANKS_DEADLINE"] == "1800000000"
    assert told.env["ALLRANKS_RUN_DIR"] == str(stage.folder / "run/tasks/3")
    assert told.env["ALLRANKS_ATTEMPT_DIR"] == str(stage.folder / "run/attempts/1")
    answers = "requeue 0 --requeue JobState=RUNNING\nresubmit 0 --exclude=n3,n4 JobState=RUNNING\n"
    told = run(stage, answers, {"array": "0-3", **ON}, SLURM_ARRAY_TASK_ID="3",
               SLURM_ARRAY_JOB_ID="6", REFUSED="1", SLURM_JOB_END_TIME="1900000000")  # fmt: skip
    assert told.env["ALLRANKS_DEADLINE"] == "1900000000"
    assert ("requeue", "6_3") in told.of("scontrol")
    assert "--array=3" in told.of("sbatch")[0]


@pytest.mark.parametrize(("count", "back"), [("", True), ("98", True), ("99", False)])
def test_without_the_agent_the_exit_code_asks_to_go_on(
    stage: Stage, count: str, back: bool
) -> None:
    told = run(stage, "", {**ON, "agent": False}, CODE="75", SLURM_RESTART_COUNT=count)
    assert (("requeue", "7") in told.of("scontrol"), told.code) == (back, 75)


def test_a_script_that_was_printed_finds_its_folder_again(stage: Stage) -> None:
    (stage.folder / "answers").write_text("resubmit 0 --exclude=n3,n4 JobState=RUNNING\n")
    plan = plan_of(**ON)
    told = stage.run(render(plan), plan, ANSWERS=str(stage.folder / "answers"))
    folder = stage.work / "runs" / "train-7"
    assert told.of("sbatch")[0][-1] == str(folder / "job.sh")
    assert (folder / "job.sh").read_text() == render(plan)
    assert f"ALLRANKS_RESUME_DIR={folder}" in (stage.folder / "notes.sbatch").read_text().split(
        "\0"
    )


def test_a_script_that_was_printed_is_copied_once(stage: Stage) -> None:
    """Some versions of ``cp -n`` fail where the file is there already."""
    fails = '#!/bin/bash\nif [[ -e ${!#} ]]; then exit 1; fi\nexec /bin/cp "$@"\n'
    stage.fake("cp", fails)
    (stage.folder / "answers").write_text(
        "requeue 0 --requeue JobState=RUNNING\nrequeue 0 --requeue JobState=RUNNING\n"
    )
    plan = plan_of(**ON)
    for _ in range(2):
        told = stage.run(render(plan), plan, ANSWERS=str(stage.folder / "answers"))
        assert (told.code, trainings(told)) == (0, 1), told.output
