"""What nobody gave is derived, with a reason; what contradicts itself is refused, with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.sites.model import NodeShape, Partition, Site
from allranks.core.units import Gpus
from allranks.errors import JobError, SiteError
from allranks.job.config_sources import Origin, given
from allranks.job.defaults import derive
from allranks.job.fields import Job
from allranks.job.launchers import LAUNCHERS
from allranks.job.plan import Plan
from allranks.job.plan_record import explain

A100 = NodeShape(gpus=4, gpu_type="A100", cpus=64, memory=512 * 1024)
LAB = Site("lab", partitions=(Partition("gpu", (A100,), max_time=86400, default=True),))


def plan_of(scheduler: str = "slurm", site: Site | None = None, **fields: Any) -> Plan:
    job = Job(**{"script": "train.py", **fields})
    return derive(
        job, {name: Origin("command line") for name in given(job)}, site, scheduler == "slurm"
    )


def reasons(plan: Plan) -> dict[str, str]:
    return {
        name: str(origin) for name, origin in plan.origins.items() if origin.source == "derived"
    }


def refusal(kind: type[Exception] = JobError, **fields: Any) -> str:
    with pytest.raises(kind) as caught:
        plan_of(**fields)
    return str(caught.value)


def test_nothing_to_run() -> None:
    assert refusal(script=None).startswith("No script was given. Name one")


def test_one_rank_per_gpu() -> None:
    plan = plan_of(nodes=2, gpus_per_node="A100:4")
    assert (plan.shape.nodes, plan.shape.ranks_per_node, plan.shape.world_size) == (2, 4, 8)
    assert plan.shape.gpus_per_node == Gpus(4, "A100")
    assert reasons(plan)["nprocs"] == "derived: one rank per GPU × 2 nodes"


def test_without_gpus_one_rank_per_node() -> None:
    plan = plan_of()
    assert (plan.shape.nodes, plan.shape.world_size, plan.shape.tasks_per_node) == (1, 1, 1)
    assert reasons(plan)["nodes"] == "derived: the default"
    assert reasons(plan)["nprocs"] == "derived: no GPUs: one rank per node"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tasks_follow_the_launcher(launcher: str) -> None:
    plan = plan_of(launcher=launcher, nodes=2, gpus_per_node=4)
    per_rank = LAUNCHERS[launcher].task_per_rank
    assert plan.shape.tasks_per_node == (4 if per_rank else 1)
    kind = "rank" if per_rank else "node"
    assert reasons(plan)["tasks_per_node"] == f"derived: {launcher} has one task per {kind}"


def test_gpus_per_task() -> None:
    plan = plan_of(gpus_per_task="A100:1", tasks_per_node=4)
    assert plan.shape.gpus_per_node == Gpus(4, "A100")
    assert plan.shape.ranks_per_node == 4
    assert reasons(plan)["gpus_per_node"] == "derived: 1 × 4 tasks"
    assert plan_of(gpus_per_task=1, nodes=2).shape.world_size == 2
    assert plan_of(gpus_per_task=4, launcher="torchrun").shape.ranks_per_node == 4


def test_cpus_and_memory_are_the_share_of_the_gpus() -> None:
    plan = plan_of(site=LAB, gpus_per_node=2)
    assert (plan.shape.cpus_per_task, plan.shape.memory) == (16, 252 * 1024)
    assert reasons(plan)["cpus_per_task"] == (
        "derived: 2 of the node's 4 GPUs; a node has 64 CPUs and 512G for jobs, over 2 tasks"
    )
    assert reasons(plan)["memory"].startswith("derived: 2 of the node's 4 GPUs; a node has 64 CPUs")
    assert plan.shape.cpus_per_rank == 16
    assert plan_of(site=LAB, gpus_per_node=2, launcher="torchrun").shape.cpus_per_task == 32
    assert plan_of(site=LAB, gpus_per_node=2, launcher="torchrun").shape.cpus_per_rank == 16


def test_an_exclusive_node_is_had_whole() -> None:
    plan = plan_of(site=LAB, gpus_per_node=1, exclusive=True)
    assert (plan.shape.cpus_per_task, plan.shape.memory) == (64, 0)
    assert reasons(plan)["memory"] == "derived: the whole node, as --exclusive is given"


def test_what_is_given_is_kept() -> None:
    plan = plan_of(site=LAB, gpus_per_node=2, cpus_per_task=3, memory="10G", name="mine")
    assert (plan.shape.cpus_per_task, plan.shape.memory, plan.job.name) == (3, 10240, "mine")
    assert not {"cpus_per_task", "memory", "name"} & reasons(plan).keys()


def test_the_sites_default_partition_is_named() -> None:
    site = Site("lab", partitions=(Partition("gpu", (A100,)),), default_partition="gpu")
    plan = plan_of(site=site)
    assert plan.job.partition == "gpu"
    assert str(plan.origins["partition"]) == "site lab: its default"


def test_an_unknown_node_is_noted() -> None:
    (note,) = plan_of(gpus_per_node=4).notes
    assert note.startswith("The CPUs of a node are unknown, so Slurm's default applies")
    assert "--cpus-per-task, or --site" in note
    assert plan_of(gpus_per_node=4, cpus_per_task=8).notes == ()


@pytest.mark.parametrize(
    ("scheduler", "fields", "launcher", "why"),
    [
        ("slurm", {}, "srun", "Slurm starts, binds and ends one task per rank"),
        ("slurm", {"framework": "horovod"}, "horovod", "train.py imports horovod"),
        (
            "slurm",
            {"tasks_per_node": 1, "gpus_per_node": 4},
            "torchrun",
            "--tasks-per-node 1 with several ranks",
        ),
        (
            "slurm",
            {"tasks_per_node": 1, "nprocs": 2},
            "torchrun",
            "--tasks-per-node 1 with several ranks",
        ),
        ("slurm", {"tasks_per_node": 1}, "srun", "Slurm starts, binds"),
        (
            "local",
            {},
            "fork",
            "one process imports the framework and forks the ranks of this machine",
        ),
        ("local", {"framework": "horovod"}, "horovod", "train.py imports horovod"),
    ],
)
def test_auto_picks_a_launcher_and_says_why(
    scheduler: str, fields: dict[str, Any], launcher: str, why: str
) -> None:
    plan = plan_of(scheduler, **fields)
    assert plan.launcher.name == launcher
    assert reasons(plan)["launcher"].startswith(f"derived: {why}")


def test_the_framework_is_what_the_script_imports(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tensorflow as tf\np.add_argument('--local_rank')\n")
    plan = plan_of(script=str(script))
    assert (plan.framework, plan.local_rank_option) == ("tensorflow", "local_rank")
    assert "imports it" in reasons(plan)["framework"]
    assert plan_of(script=str(script), framework="none").framework is None


def test_ranks_that_cannot_be_shared_evenly() -> None:
    assert refusal(nodes=2, nprocs=5) == (
        "--nprocs 5 ranks cannot be divided evenly among 2 nodes.\nUse --nprocs 4 or 6."
    )
    assert refusal(nodes=4, nprocs=3).endswith("Use --nprocs 4.")


def test_tasks_against_the_launcher() -> None:
    message = refusal(launcher="srun", nprocs=4, tasks_per_node=2)
    assert "--tasks-per-node 2 contradicts 4 ranks per node (command line)" in message
    assert message.endswith("Use --tasks-per-node 4, or leave it out.")
    message = refusal(launcher="torchrun", tasks_per_node=4, gpus_per_node=4)
    assert (
        "--tasks-per-node 4 with --launcher torchrun: it starts the ranks of a node itself"
        in message
    )
    assert message.endswith("Leave --tasks-per-node out, or use --launcher srun.")


def test_two_ways_to_ask_for_gpus() -> None:
    message = refusal(gpus_per_node="A100:2", gpus_per_task=1)
    assert message.startswith("--gpus-per-node A100:2 and --gpus-per-task 1 exclude each other")


@pytest.mark.parametrize("account", [None, ""])
def test_a_site_that_wants_an_account(account: str | None) -> None:
    site = Site("lab", requires=("account", "time"))
    message = refusal(site=site, account=account)
    assert (
        message
        == "Site lab requires --account and --time. Add it to the command or to allranks.toml."
    )
    assert plan_of(site=site, account="p1", time="1h").job.account == "p1"
    assert plan_of("local", site=site).launcher.name == "fork"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus_per_node": 8}, "Job asks for 8 GPUs per node, but partition 'gpu' has 4."),
        ({"time": "2d", "gpus_per_node": 1}, "partition 'gpu'"),
        ({"partition": "gpus"}, "Did you mean --partition gpu?"),
    ],
)
def test_a_job_that_does_not_fit(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(SiteError, site=LAB, **fields)


@pytest.mark.parametrize("launcher", ["fork", "horovod"])
def test_our_own_launchers_need_the_agent(launcher: str) -> None:
    assert f"--no-agent with --launcher {launcher}" in refusal(launcher=launcher, agent=False)
    assert plan_of("local", launcher=launcher, agent=False).launcher.name == launcher


def test_mpirun_has_its_own_first_node_and_no_pyxis() -> None:
    assert "starts rank 0 on the first node" in refusal(launcher="mpirun", head="n2", nodes=2)
    assert "an option of srun" in refusal(
        launcher="mpirun", container="a", container_runtime="pyxis"
    )


def test_idle_gpus_are_noted() -> None:
    notes = plan_of(nodes=2, gpus_per_node=4, nprocs=2, cpus_per_task=1).notes
    assert notes == ("3 of 4 GPUs on each node stay idle with 1 ranks there. Use --nprocs 8.",)


def test_two_ranks_on_a_gpu_are_noted() -> None:
    notes = plan_of(nodes=2, gpus_per_node=2, nprocs=8, cpus_per_task=1).notes
    assert notes == (
        "4 ranks share 2 GPUs on each node; NCCL refuses two ranks on one GPU. Use --nprocs 4.",
    )


@pytest.mark.parametrize(
    "fields", [{"launcher": "python"}, {"gpus_per_task": 2, "tasks_per_node": 2}]
)
def test_gpus_that_only_seem_idle_are_not_noted(fields: dict[str, Any]) -> None:
    gpus = {} if "gpus_per_task" in fields else {"gpus_per_node": 4}
    assert plan_of(cpus_per_task=1, **fields, **gpus).notes == ()


@pytest.mark.parametrize(
    ("script", "name"), [("a/train.py", "train"), ("gmx", "gmx"), ("pkg.train", "pkg.train")]
)
def test_the_name_is_the_scripts(script: str, name: str) -> None:
    assert plan_of(script=script).job.name == name


def test_explain_shows_every_value_as_people_write_it() -> None:
    plan = plan_of(site=LAB, gpus_per_node="A100:2", time="90m", env={"A": "1"}, modules=["a", "b"])
    rows = {name: (value, origin) for name, value, origin in explain(plan)}
    assert rows["time"] == ("01:30:00", "command line")
    assert rows["gpus_per_node"] == ("A100:2", "command line")
    assert rows["memory"][0] == "252G"
    assert (rows["env"][0], rows["modules"][0]) == ("A=1", "a b")
    assert rows["nprocs"] == ("2", "derived: one rank per GPU × 1 nodes")
    assert rows["launcher"][0] == "srun"
    everything = explain(plan_of(site=LAB, gpus_per_node=1, exclusive=True))
    assert ("memory", "all of the node") in [row[:2] for row in everything]


@pytest.mark.parametrize("more", [{}, {"requeue": True}, {"restarts": 2}])
def test_limits_of_what_was_not_asked_for_are_told(more: dict[str, Any]) -> None:
    notes = plan_of(max_attempts=3, max_no_progress=2, **more).notes
    said = "--max-attempts and --max-no-progress without --requeue or --restarts: the run has one attempt."
    assert (said in notes) is (not more)


@pytest.mark.parametrize("signal", ["B:TERM@60", "B:SIGTERM@60", "RB:15@60"])
def test_a_signal_that_looks_like_slurms_own_end_is_refused(signal: str) -> None:
    said = refusal(requeue=True, signal=signal)
    assert "Use another signal: --signal " + signal.partition(":")[0] + ":USR1@60" in said
    assert plan_of(signal=signal).job.signal == signal
    assert plan_of(requeue=True, signal="TERM@60").job.signal == "TERM@60"  # for the steps alone
