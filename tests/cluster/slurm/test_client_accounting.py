"""What a job used, from pretended answers of every kind: old and new, half and none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.cluster.slurm.accounting import FIELDS, NEWER, job_usage
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_usage import (
    count,
    gpu_type,
    gpus,
    requested_type,
    size,
    spent_seconds,
    tres,
)
from allranks.cluster.slurm.scontrol_usage import fields
from allranks.errors import SlurmError, UsageError

Fake = Callable[[str, str], None]
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
OFF = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
SHOWN = (
    "JobId=12 JobName=my job x=1 UserId=ann(1000) Account=(null) JobState=RUNNING ExitCode=0:0 "
    "RunTime=1-00:00:10 TimeLimit=2-00:00:00 SubmitTime=1000 StartTime=1060 EndTime=9999 Partition=main "
    "NodeList=node[1-2] NumNodes=2 NumCPUs=16 NumTasks=4 CPUs/Task=4 "
    "TRES=cpu=16,mem=64G,node=2,billing=16,gres/gpu=8 TresPerNode=gres:gpu:a100:4 "
    "Command=/home/ann/my job.sh WorkDir=/home/ann"
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)

    def make(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    make("scontrol", FORGOTTEN)
    return make


def rows(*changes: dict[str, str], known: tuple[str, ...] = (*FIELDS, *NEWER)) -> str:
    """A shell command that prints these rows as sacct does."""
    usual = dict.fromkeys(known, "") | {
        "JobID": "12", "JobIDRaw": "12", "JobName": "train", "User": "ann", "State": "COMPLETED",
        "ExitCode": "0:0", "Submit": "1000", "Start": "1060", "End": "4660", "ElapsedRaw": "3600",
        "Timelimit": "02:00:00", "NodeList": "node1", "NNodes": "1", "NCPUS": "8", "TotalCPU": "02:00:00",
        "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=65536M,node=1",
    }  # fmt: skip
    lines = ["\x1f".join({**usual, **each}[name] for name in known) for each in changes]
    return "cat <<'END'\n" + "\n".join(lines) + "\nEND"


STEP = {
    "JobID": "12.0", "JobIDRaw": "12.0", "NTasks": "2", "MaxRSS": "1048576K", "MaxRSSNode": "node1",
    "TRESUsageInTot": "cpu=00:20:00,gres/gpumem=39G,gres/gpuutil=120", "ConsumedEnergyRaw": "3600000",
}  # fmt: skip
BATCH = {
    "JobID": "12.batch", "NTasks": "1", "MaxRSS": "1024K", "AllocTRES": "cpu=8,node=1", "TotalCPU": "00:00:00",
}  # fmt: skip


def test_all_of_a_job(fake: Fake) -> None:
    fake("sacct", rows({}, BATCH, STEP))
    usage = job_usage("12")
    assert usage is not None
    assert (usage.name, usage.user, usage.state, usage.exit_code) == (
        "train", "ann", JobState.COMPLETED, 0,
    )  # fmt: skip
    assert (usage.cpus, usage.gpus, usage.gpu_type, usage.memory) == (8, 2, "a100", 64 * 2**30)
    assert (usage.seconds, usage.time_limit, usage.waited) == (3600, 7200, 60)
    assert usage.busy_cpus == pytest.approx(2.0)
    assert usage.gpu_use == pytest.approx(0.6)
    assert usage.energy == 3.6e6
    assert usage.largest is not None
    assert usage.largest.step_id == "12.0"
    # Two tasks as large as the largest, and the script beside them.
    assert usage.node_memory == 2 * 2**30 + 2**20


def test_a_running_job_has_used_nothing_that_is_known(fake: Fake) -> None:
    fake("sacct", rows({"State": "RUNNING", "End": "Unknown", "TotalCPU": "00:00:00"}))
    usage = job_usage("12")
    assert usage is not None
    assert (usage.state, usage.cpu_seconds, usage.busy_cpus, usage.end) == (
        JobState.RUNNING, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("total", "sampled", "busy"),
    [
        ("02:00:00", "00:20:00", 2.0),
        ("00:00:01", "04:00:00", 4.0),  # ranks that nobody waited for are in the samples alone
        ("00:00:00", "00:00:00", None),
        ("00:00:30", "", None),  # next to nothing in an hour: it is not counted here
        ("", "", None),
    ],
)
def test_cpu_time_is_the_most_that_was_seen(
    fake: Fake, total: str, sampled: str, busy: float | None
) -> None:
    use = f"cpu={sampled}" if sampled else ""
    fake("sacct", rows({"TotalCPU": total}, STEP | {"TotalCPU": total, "TRESUsageInTot": use}))
    usage = job_usage("12")
    assert usage is not None
    assert usage.busy_cpus == (None if busy is None else pytest.approx(busy))


def test_fields_that_an_old_sacct_does_not_know_are_left_out(fake: Fake) -> None:
    old = rows({"AllocTRES": ""}, known=FIELDS)
    fake(
        "sacct",
        'case "$*" in *SubmitLine*) echo \'sacct: error: Invalid field requested: "SubmitLine"\' >&2;'
        f" exit 1;; esac\n{old}",
    )
    usage = job_usage("12")
    assert usage is not None
    assert usage.cpus == 8
    assert usage.command == ""


def test_names_and_commands_may_hold_anything(fake: Fake) -> None:
    fake("sacct", rows({"JobName": "a|b", "SubmitLine": "sbatch --wrap one\ntwo | three"}, STEP))
    usage = job_usage("12")
    assert usage is not None
    assert (usage.name, usage.command) == ("a|b", "sbatch --wrap one\ntwo | three")
    assert len(usage.steps) == 1


def test_steps_one_after_the_other_do_not_add_up(fake: Fake) -> None:
    first = STEP | {"Start": "1060", "End": "2000"}
    second = STEP | {"JobID": "12.1", "Start": "2000", "End": "3000"}
    fake("sacct", rows({}, first, second))
    usage = job_usage("12")
    assert usage is not None
    assert usage.node_memory == 2 * 2**30


def test_an_array_is_what_one_of_its_tasks_is(fake: Fake) -> None:
    tasks = [{"JobID": f"12_{n}", "JobIDRaw": str(20 + n), "ElapsedRaw": str(n)} for n in (1, 2)]
    tasks += [{"JobID": "12_[3-4]", "JobIDRaw": "12", "State": "PENDING"}]
    fake("sacct", rows(*tasks, STEP | {"JobID": "12_2.0"}))
    whole = job_usage("12")
    assert whole is not None
    assert (whole.cpus, whole.seconds, whole.total_seconds, len(whole.parts)) == (8, 2, 3, 2)
    assert whole.node_memory == 2 * 2**30
    one = job_usage("12_2")
    assert one is not None
    assert (one.job_id, one.seconds) == ("12_2", 2)
    by_number = job_usage("21")
    assert by_number is not None
    assert by_number.job_id == "12_1"


def test_the_parts_of_a_heterogeneous_job_add_up(fake: Fake) -> None:
    fake("sacct", rows({"JobID": "12+0"}, {"JobID": "12+1", "JobIDRaw": "13", "ElapsedRaw": "60"}))
    whole = job_usage("12")
    assert whole is not None
    assert (whole.cpus, whole.nodes, whole.gpus, whole.seconds) == (16, 2, 4, 3600)
    part = job_usage("12+1")
    assert part is not None
    assert (part.job_id, part.cpus) == ("12+1", 8)


def test_without_accounting_what_slurm_remembers(fake: Fake) -> None:
    fake("sacct", OFF)
    fake("scontrol", f"cat <<'END'\n{SHOWN}\nEND")
    usage = job_usage("12")
    assert usage is not None
    assert (usage.source, usage.name, usage.user, usage.account) == (
        "scontrol", "my job x=1", "ann", "",
    )  # fmt: skip
    assert (usage.nodes, usage.cpus, usage.tasks, usage.cpus_per_task) == (2, 16, 4, 4)
    assert (usage.gpus, usage.gpu_type, usage.memory) == (8, "a100", 64 * 2**30)
    assert (usage.time_limit, usage.seconds) == (172800, 86410)
    assert (usage.cpu_seconds, usage.node_memory, usage.gpu_use) == (None, None, None)


def test_a_job_that_nobody_knows_is_none(fake: Fake) -> None:
    fake("sacct", "true")
    assert job_usage("77") is None
    fake("sacct", OFF)
    assert job_usage("77") is None


def test_accounting_that_does_not_answer_is_said(fake: Fake) -> None:
    fake("sacct", "echo 'sacct: error: slurmdbd: something else' >&2; exit 1")
    with pytest.raises(SlurmError, match="something else"):
        job_usage("77")


def test_a_slurm_that_hangs_is_asked_once(fake: Fake, tmp_path: Path) -> None:
    fake("sacct", "exec sleep 20")
    fake("scontrol", f"touch {tmp_path}/asked; exec sleep 20")
    with pytest.raises(SlurmError, match=r"did not answer 'sacct' within 0\.2 s"):
        job_usage("12", timeout=0.2)
    assert not (tmp_path / "asked").exists()


def test_accounting_is_enough_while_the_controller_is_down(fake: Fake) -> None:
    fake("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    fake("sacct", rows({}, STEP))
    usage = job_usage("12")
    assert usage is not None
    assert usage.cpus == 8
    fake("sacct", OFF)
    with pytest.raises(SlurmError, match="does not answer"):
        job_usage("12")


@pytest.mark.parametrize("bad", ["x", "12; rm", "-j", ""])
def test_only_ids_are_asked_for(bad: str) -> None:
    with pytest.raises(UsageError, match="not a Slurm job id"):
        job_usage(bad)


def test_numbers_as_slurm_writes_them() -> None:
    assert [size(text) for text in ("1K", "1.5G", "600Mn", "4Gc", "100", "", "?")] == [
        1024, 1610612736, 629145600, 4 * 2**30, 100, None, None,
    ]  # fmt: skip
    assert [spent_seconds(text) for text in ("00:12.891", "1-02:03:04", "10:00:00", "", "x")] == [
        12.891, 93784.0, 36000.0, None, None,
    ]  # fmt: skip
    assert (count("8"), count("1.2K"), count("")) == (8.0, 1200.0, None)


def test_gpus_in_lists_of_resources() -> None:
    typed = tres("cpu=8,gres/gpu:a100=2,gres/gpu:h200=1,mem=4G")
    assert (gpus(typed), gpu_type(typed)) == (3, "a100,h200")
    assert (gpus(tres("cpu=1")), gpu_type({})) == (0, "")
    requests = ("gres:gpu:a100:2", "gres/gpu:h200=1", "gres:gpu:4", "gpu", "")
    assert [requested_type(text) for text in requests] == ["a100", "h200", "", "", ""]


def test_values_of_scontrol_may_hold_blanks() -> None:
    assert fields("JobId=1 JobName=a b=c Partition=x") == {
        "JobId": "1", "JobName": "a b=c", "Partition": "x",
    }  # fmt: skip
