"""The client against pretended commands: refusals, time limits, what is asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.cluster.slurm.commands import cluster_version, run_slurm
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.jobs import cancel, job_status
from allranks.cluster.slurm.submission import read_job_id, submit
from allranks.cluster.slurm.submit_environment import clean_environment, query_environment
from allranks.errors import MissingDependencyError, SlurmError, UsageError

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a shell script in the place of a Slurm command."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return make


def test_absent_command_says_what_to_do() -> None:
    with pytest.raises(MissingDependencyError, match="login node"):
        run_slurm(["no-such-squeue"])


def test_absent_folder_is_not_an_absent_command(fake: Fake) -> None:
    fake("sbatch", "echo 1")
    with pytest.raises(SlurmError, match="folder /nowhere is not there"):
        submit("x.sh", cwd="/nowhere")


def test_no_answer_in_time(fake: Fake) -> None:
    fake("squeue", "exec sleep 30")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"did not answer 'squeue' within 0\.2 s"):
        job_status("1", timeout=0.2)
    assert time.monotonic() - began < 5


def test_controller_down(fake: Fake) -> None:
    fake(
        "squeue",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\n"
        "exit 1",
    )
    with pytest.raises(SlurmError, match=r"slurmctld\) does not answer(.|\n)*connect failure"):
        job_status("1")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Invalid account or account/partition combination specified", "account is not yours"),
        ("invalid partition specified: x\nsbatch: error: Invalid partition name", "sinfo -s"),
        ("Invalid qos specification", "QOS does not exist"),
        ("Job violates accounting/QOS policy (job submit limit, user's size)", "over a limit"),
        ("Requested node configuration is not available", "No node of the partition"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "more time"),
        ("unrecognized option '--qwer'", "does not know that option"),
        ("Something new", "Slurm refused the job."),
    ],
)
def test_refusals_in_words_with_slurms_own(fake: Fake, line: str, words: str) -> None:
    fake("sbatch", f'cat >&2 <<"E"\nsbatch: error: {line}\nE\nexit 1')
    with pytest.raises(SlurmError) as caught:
        submit("x.sh")
    assert words in str(caught.value)
    assert line.splitlines()[0] in str(caught.value)


def test_submission_without_an_answer_warns_of_a_second(fake: Fake) -> None:
    fake("sbatch", "exec sleep 30")
    with pytest.raises(SlurmError, match="may have arrived all the same"):
        submit("x.sh", timeout=0.2)


@pytest.mark.parametrize(
    ("output", "job_id"),
    [("123\n", "123"), ("123;cluster", "123"), ("Welcome!\n123", "123")],
)
def test_parsable_ids(output: str, job_id: str) -> None:
    assert read_job_id(output) == job_id


def test_no_id() -> None:
    with pytest.raises(SlurmError, match="no job id"):
        read_job_id("hello")


def test_unknown_job_without_accounting(fake: Fake) -> None:
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    status = job_status("77")["77"]
    assert status.state is JobState.UNKNOWN
    assert not status.state.ended


def test_array_purged_task_by_task_is_completed_from_accounting(fake: Fake) -> None:
    fake("squeue", "echo '4_2|18|COMPLETED|None|0|5|6|10:00|0|n|p|u|x|'")
    fake("sacct", "echo '4_1|17|FAILED|None|3:0|5|6|10:00|n|p|u|x'")
    status = job_status("4")["4"]
    assert (status.state, status.exit_code, len(status.tasks)) == (JobState.FAILED, 3, 2)


def test_thousands_of_ids_in_few_calls(fake: Fake, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    fake(
        "squeue",
        f"echo call >> {log}\n"
        'while [ "$1" != -j ]; do shift; done\n'
        "echo $2 | tr , '\\n' | sed 's/.*/&|&|RUNNING|None|0|5|6|10:00|0|n|p|u|x|/'",
    )
    found = job_status(str(n) for n in range(1, 2001))
    assert len(found) == 2000
    assert {status.state for status in found.values()} == {JobState.RUNNING}
    assert log.read_text().count("call") == 4


@pytest.mark.parametrize("bad", ["abc", "-f", "1;2", "", "12_[1-3]"])
def test_only_ids_reach_a_command(bad: str) -> None:
    with pytest.raises(UsageError, match="not a Slurm job id"):
        cancel([bad])


def test_cancel_and_signal(fake: Fake, tmp_path: Path) -> None:
    fake("scancel", f'echo "$@" >> {tmp_path}/said')
    cancel(["1", "2_3"])
    cancel("4", "USR1", batch=True)
    assert (tmp_path / "said").read_text() == "1 2_3\n--signal=USR1 --batch 4\n"


def test_cancel_of_an_ended_job_is_no_error(fake: Fake) -> None:
    fake(
        "scancel", "echo 'scancel: error: Kill job error: Job/step already completing' >&2; exit 1"
    )
    cancel("4")
    fake("scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1")
    with pytest.raises(SlurmError, match="permission denied"):
        cancel("4")


def test_version_of_the_controller(fake: Fake) -> None:
    fake("scontrol", "printf 'ClusterName = x\\nSLURM_VERSION           = 24.11.5-1\\n'")
    assert cluster_version() == (24, 11, 5)


OUTER = {
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_CLUSTERS": "big",
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURMD_NODENAME": "n1",
    "SRUN_CPUS_PER_TASK": "2",
    "SBATCH_ACCOUNT": "a",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_MCA_btl": "tcp",
    "OMPI_MCA_orte_ess_jobid": "1",
    "RANK": "0",
    "MASTER_ADDR": "n1",
    "TORCHELASTIC_RUN_ID": "x",
    "ALLRANKS_LAUNCH_ID": "s",
    "ALLRANKS_RUNS": "/r",
    "CUDA_VISIBLE_DEVICES": "0",
    "OMP_NUM_THREADS": "1",
    "HOME": "/h",
    "NCCL_DEBUG": "INFO",
}
KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "OMPI_MCA_btl", "ALLRANKS_RUNS", "HOME", "NCCL_DEBUG"}


def test_clean_environment_inside_a_job() -> None:
    assert set(clean_environment(OUTER)) == KEPT


def test_clean_environment_in_a_shell_keeps_what_the_user_set() -> None:
    shell = {name: value for name, value in OUTER.items() if name != "SLURM_JOB_ID"}
    own = {"SBATCH_ACCOUNT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
    assert set(clean_environment(shell)) == KEPT | own


def test_questions_are_shielded_from_the_users_formats() -> None:
    asked = query_environment({"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "A": "b"})
    assert asked == {"A": "b", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def test_environment_of_the_process_is_left_alone() -> None:
    before = dict(os.environ)
    clean_environment(os.environ)
    assert dict(os.environ) == before
