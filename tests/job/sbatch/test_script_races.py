"""What happens to a job script at the worst moment: the end, a cancellation, a Slurm that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_stub import CANCELLED, LEAVE, RUNNING, TIME_IS_UP, Stub

FORBIDDEN = "RUNNING Reason=None Requeue=0 Restarts=0"
ENDING = TIME_IS_UP.replace("Requeue=1", "Requeue=0")
TERM = 'kill -TERM "$JOB"'
REFUSE = "exit 1"


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def test_the_usual_end(stub: Stub) -> None:
    played = stub.play()
    assert played.code == 0, played.output
    assert (played.count("scontrol requeue 7"), played.count("sbatch")) == (1, 0)
    assert stub.end()["next"] == "requeue"
    assert played.output.count("The job is requeued") == 1


def test_the_end_of_the_job_while_it_is_decided_submits_one_job(stub: Stub) -> None:
    stub.write("state", FORBIDDEN)
    stub.once("show-node", f"{stub.state(ENDING)}; {TERM}")
    played = stub.play()
    assert played.code == 0, played.output
    assert played.count("sbatch") == 1
    assert stub.end()["next"] == "resubmit"


def test_the_end_of_the_job_while_a_new_one_is_submitted_submits_one_job(stub: Stub) -> None:
    stub.write("state", FORBIDDEN)
    stub.once("sbatch", f"{stub.state(ENDING)}; {TERM}")
    played = stub.play()
    assert (played.code, played.count("sbatch")) == (0, 1), played.output


@pytest.mark.parametrize("restarts", [0, 2])
def test_the_end_of_the_job_while_the_nodes_meet_submits_one_job(stub: Stub, restarts: int) -> None:
    """Of the first attempt, and of one whose ranks are started again."""
    stub.write("state", FORBIDDEN)
    end = f"{stub.state(ENDING)}; {TERM}"
    crash = f"cat >\"$STUB/hook-show-hostnames\" <<<'{end}'; exit 1"
    if restarts:
        stub.write("ranks", crash)
    else:
        stub.hook("show-hostnames", end)
    played = stub.play(nodes=2, restarts=restarts)
    assert played.code == 0, played.output
    assert played.count("sbatch") == 1
    assert played.count("srun --kill") == (1 if restarts else 0)  # not in a job that ends


def test_the_end_of_the_job_that_finds_the_ranks_at_work(stub: Stub) -> None:
    stub.write("ranks", f"{stub.state(TIME_IS_UP)}; {TERM}; /usr/bin/sleep 1; exit 143")
    played = stub.play()
    assert (played.code, played.count("scontrol requeue 7")) == (0, 1), played.output
    assert stub.end()["outcome"] == "timed out"


@pytest.mark.parametrize("moment", ["show-node", "show-job"])
def test_what_is_cancelled_while_it_is_decided_stays_cancelled(stub: Stub, moment: str) -> None:
    change = f"{stub.state(CANCELLED)}; {TERM}"
    if moment == "show-node":
        stub.once(moment, change)
    else:  # the second look, just before the job would go back
        stub.once(moment, f"echo '{change}' >\"$STUB/hook-show-job\"")
    played = stub.play()
    assert (played.count("scontrol requeue"), played.count("sbatch")) == (0, 0), played.output
    assert (played.code, stub.end()["next"], stub.end()["outcome"]) == (143, "stop", "cancelled")


@pytest.mark.parametrize(("state", "sent"), [(RUNNING, "7"), (FORBIDDEN, "31")])
def test_the_word_of_allranks_cancel_holds_though_slurm_took_the_job_back(
    stub: Stub, state: str, sent: str
) -> None:
    stub.write("state", state)
    stub.hook("requeue" if sent == "7" else "sbatch", 'touch "$STUB/run/cancelled"')
    played = stub.play()
    assert played.calls[-1] == f"scancel {sent}", played.output
    again = stub.play()
    assert again.code == 143
    assert "This run was cancelled. Resume it with: allranks resume run" in again.output
    assert not (stub.run / "attempts" / "2").exists()


def test_a_slurm_that_is_away_for_a_while_is_waited_for(stub: Stub) -> None:
    """Its whole controller: nothing is asked of a job whose state is not known."""
    stub.hook("show-job", REFUSE)
    stub.hook("sleep", 'if [[ $1 == 20 ]]; then rm "$STUB/hook-show-job"; fi')
    played = stub.play()
    assert played.code == 0, played.output
    assert [call for call in played.calls if call.startswith("sleep")][-1] == "sleep 20"
    assert (played.count("scontrol requeue"), played.count("sbatch")) == (1, 0)
    assert stub.end()["next"] == "requeue"


def test_a_slurm_that_never_answers_is_told_in_the_record(stub: Stub) -> None:
    for command in ("requeue", "sbatch"):
        stub.hook(command, REFUSE)
    played = stub.play()
    assert played.code == 75, played.output
    end = stub.end()
    assert (end["next"], end["exit_code"]) == ("stop", 75)
    assert end["reason"].endswith("Slurm did not requeue it. Resume it with: allranks resume run")
    assert played.output.count(end["reason"]) == 1
    assert not (stub.run / "resubmitted").exists()


def test_a_list_of_nodes_that_slurm_does_not_take_is_left_out(stub: Stub) -> None:
    stub.run.mkdir()
    (stub.run / "excluded").write_text("gone\n")
    stub.write("state", FORBIDDEN)
    stub.hook("sbatch", f'if [[ "$*" == *--exclude* ]]; then {REFUSE}; fi')
    played = stub.play()
    assert (played.code, played.count("sbatch")) == (0, 2), played.output
    assert (stub.run / "resubmitted").read_text() == "31\n"


@pytest.mark.parametrize("fields", [{}, {"restarts": 2}, {"requeue": False, "restarts": 2}])
def test_what_fails_before_the_launch_is_an_end_too(stub: Stub, fields: dict[str, object]) -> None:
    stub.hook("show-hostnames", REFUSE)
    played = stub.play(nodes=2, **fields)
    assert (played.code, played.count("srun")) == (1, 0), played.output
    end = stub.end()
    assert (end["exit_code"], end["outcome"], end["next"]) == (1, "failed", "stop")
    assert "before its ranks were started" in end["reason"]


def test_a_script_that_is_ended_while_its_ranks_run_was_cancelled(stub: Stub) -> None:
    """Of a script without --requeue, which does not listen to TERM: bash still tells its end."""
    stub.write("ranks", f"{TERM}; /usr/bin/sleep 0.3; exit 1")
    played = stub.play(requeue=False, restarts=2)
    assert (played.code, played.count("srun")) == (-15, 1), played.output  # bash dies of it then
    assert (stub.end()["outcome"], stub.end()["next"]) == ("cancelled", "stop")


def test_the_server_of_horovod_does_not_hide_the_end_of_a_script(stub: Stub) -> None:
    """It is ended at the exit of the script, which records its own end there too."""
    stub.write("ranks", f"{TERM}; /usr/bin/sleep 0.3; exit 1")
    stub.play(requeue=False, restarts=2, launcher="horovod")
    assert (stub.end()["outcome"], stub.end()["next"]) == ("cancelled", "stop")


def test_an_environment_that_fails_is_an_end_too(stub: Stub) -> None:
    played = stub.play(setup_commands=["false"])
    assert (played.code, stub.end()["exit_code"]) == (1, 1), played.output
    assert "allranks.runtime.agent" not in played.output


def test_before_the_launch_the_loss_of_a_node_leads_back_into_the_queue(stub: Stub) -> None:
    stub.hook("show-node", "echo NodeName=n2 State=DOWN*; exit")
    stub.hook("show-hostnames", REFUSE)
    played = stub.play(nodes=2)
    assert (played.code, played.count("scontrol requeue")) == (0, 1), played.output
    assert stub.end()["outcome"] == "node lost"


def test_crashes_end_at_the_limit_of_attempts(stub: Stub) -> None:
    stub.write("ranks", "exit 1")
    played = stub.play(restarts=50, max_attempts=3)
    assert (played.code, played.count("srun")) == (1, 3), played.output
    assert "--max-attempts is 3" in stub.end(3)["reason"]


def test_times_are_asked_for_as_the_agent_reads_them(stub: Stub) -> None:
    """A user's own format would make a preemption look like a cancellation."""
    stub.write("ranks", f"{stub.state(CANCELLED)} PreemptTime=$(date +%FT%T); {LEAVE}")
    stub.hook(
        "show-job", '[[ $SLURM_TIME_FORMAT == standard ]] || sed -i s/Preempt/No/ "$STUB/state"'
    )
    assert stub.play().count("scontrol requeue") == 1
    assert stub.end()["outcome"] == "preempted"
