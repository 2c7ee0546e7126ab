"""``python train.py`` becomes as many ranks as the script asks for, unless a launcher has a number."""

import os
import sys
from pathlib import Path

import pytest
from spawn_rig import PROBE, Start, adds_up

from allranks.runtime.agent.self_launch import names_a_program, relaunch_obstacle
from allranks.runtime.world.detection import detect, launch_id
from allranks.runtime.world.endpoints import free_port
from launcher_variables import step

torch_too = pytest.mark.torch
BIN = Path(sys.executable).parent


@torch_too
@pytest.mark.parametrize("size", [3])
def test_ranks_start_and_add_up(tmp_path, size):
    pytest.importorskip("torch")
    started = Start(tmp_path, str(size), "lambda", PROBE_TORCH="1")
    code, out, err = started.end()
    assert code == 0, err
    reports = started.reports()
    assert adds_up(reports, size)
    assert {(each["launcher"], each["size"], each["nodes"]) for each in reports} == {
        ("spawn", size, 1)
    }
    assert [each["local_rank"] for each in reports] == list(range(size))
    # The caller is rank 0 itself, and the only one on the console.
    assert reports[0]["pid"] == started.process.pid
    assert {each["parent"] for each in reports[1:]} == {started.process.pid}
    assert out == "rank 0 is here\n2\n"
    assert err == ""
    assert not list(tmp_path.glob("allranks-*"))
    assert not started.left()


@pytest.mark.parametrize(
    "python",
    [
        ["-m", "spawn_probe"],
        ["-u", "-X", "faulthandler", "-Wignore", str(PROBE)],
        ["-c", "import sys, spawn_probe; spawn_probe.main(int(sys.argv[1]))"],
    ],
)
def test_the_same_command_line_runs_again(tmp_path, python):
    started = Start(tmp_path, "2", "nothing", "nothing", "a b", python=[sys.executable, *python])
    code, _, err = started.end()
    assert code == 0, err
    reports = started.reports()
    assert adds_up(reports, 2)
    assert [each["words"] for each in reports] == [["2", "nothing", "nothing", "a b"]] * 2


def test_a_script_that_changes_its_folder_is_found_again(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.py").write_text(
        "import os, spawn_probe\nos.chdir('elsewhere')\nspawn_probe.main(2)\n"
    )
    started = Start(tmp_path, python=[sys.executable, "train.py"])
    code, _, err = started.end()
    assert code == 0, err
    assert adds_up(started.reports(), 2)


def test_cpus_are_shared_out(tmp_path):
    started = Start(tmp_path, "2", OMP_NUM_THREADS=None)
    assert started.end()[0] == 0
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {each["threads"] for each in started.reports()} == {str(share)}


def test_output_goes_to_the_folder_that_is_given(tmp_path):
    started = Start(tmp_path, "2", "nothing", "warn", LOGS=str(tmp_path / "run"))
    code, out, err = started.end()
    assert (code, out) == (0, "rank 0 is here\n")
    assert "[rank 1] a warning\n" in err
    lines = (tmp_path / "run/ranks/rank-00001.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["o rank 1 is here", "e a warning"]


def test_under_the_python_launcher_logs_go_to_its_run(tmp_path):
    command = [sys.executable, "-m", "allranks", "run", "--launcher", "python", str(PROBE)]
    started = Start(tmp_path, "2", python=command)
    code, out, err = started.end()
    assert code == 0, out + err
    assert adds_up(started.reports(), 2)
    ranks = [path.name for path in tmp_path.glob("runs/*/attempts/1/ranks/*.log")]
    assert sorted(ranks) == ["rank-00000.log", "rank-00001.log"]


@torch_too
def test_a_second_call_starts_nothing(tmp_path):
    pytest.importorskip("torch")
    started = Start(tmp_path, "2", "again", PROBE_TORCH="1")
    assert started.end()[0] == 0
    assert adds_up(started.reports(), 2)


def test_a_second_call_with_another_number_says_what_runs(tmp_path):
    code, _, err = Start(tmp_path, "2", "other number").end()
    assert code == 1
    assert "nprocs=3 was asked for, but 2 ranks are running" in err


def test_ranks_that_come_after_training_began_are_refused(tmp_path):
    code, _, err = Start(tmp_path, "1", "other number").end()
    assert code == 1
    assert "nprocs=2 was asked for, but 1 rank is running" in err


ASK = "from allranks.runtime.agent.self_launch import ensure_ranks as e; print(e({}).size)"


def asked(tmp_path, nprocs, **env):
    return Start(tmp_path, python=[sys.executable, "-c", ASK.format(nprocs)], **env).end()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (
            {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0",
             "LOCAL_WORLD_SIZE": "4"},
            "nprocs=2 is ignored: torchrun started 4 ranks.\n",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
             "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "nprocs=2 is ignored: openmpi started 1 rank.\n",
        ),
        (step(0, 0, 0), "nprocs=2 is ignored: srun started 4 ranks.\n"),
        (step(1, 1, 0), ""),
        ({"ALLRANKS_WORLD": "single"}, "nprocs=2 is ignored: ALLRANKS_WORLD sets 1 rank.\n"),
    ],
)  # fmt: skip
def test_a_launchers_number_wins(tmp_path, env, told):
    code, out, err = asked(tmp_path, "2", **env)
    assert (code, err) == (0, told)
    assert int(out) != 2


def test_nothing_is_said_when_the_numbers_agree_or_none_is_given(tmp_path):
    assert asked(tmp_path, "4", **step(0, 0, 0)) == (0, "4\n", "")
    assert asked(tmp_path, "None", **step(0, 0, 0)) == (0, "4\n", "")
    assert asked(tmp_path, "None") == (0, "1\n", "")


@torch_too
def test_under_torchrun_its_number_wins(tmp_path):
    pytest.importorskip("torch")
    port = f"--master-port={free_port('127.0.0.1')}"
    torchrun = [str(BIN / "torchrun"), "--nproc-per-node=2", port, str(PROBE)]
    started = Start(tmp_path, "3", python=torchrun, PROBE_TORCH="1")
    code, _, err = started.end()
    assert code == 0, err
    assert adds_up(started.reports(), 2)
    assert {each["launcher"] for each in started.reports()} == {"torchrun"}
    assert err.count("nprocs=3 is ignored: torchrun started 2 ranks.") == 1


def one_per_node(node):
    return step(
        node, 0, node, tasks=2, per_node="1(x2)", nodes="127.0.0.1,127.0.0.2", step=str(os.getpid())
    )


@torch_too
def test_one_task_per_node_starts_the_missing_ranks_of_each(tmp_path):
    """Two tasks of srun, both on this machine: four ranks, numbered node by node."""
    pytest.importorskip("torch")
    started = [Start(tmp_path, "4", PROBE_TORCH="1", **one_per_node(node)) for node in (0, 1)]
    ends = [each.end() for each in started]
    assert [code for code, _, _ in ends] == [0, 0], ends
    reports = started[0].reports()
    assert adds_up(reports, 4)
    assert [each["local_rank"] for each in reports] == [0, 1, 0, 1]
    assert [each["pid"] for each in reports[::2]] == [each.process.pid for each in started]
    assert {(each["nodes"], each["local_size"]) for each in reports} == {(2, 2)}


def test_ranks_that_do_not_divide_among_the_nodes(tmp_path):
    code, _, err = asked(tmp_path, "5", **one_per_node(0))
    assert code == 1
    assert "nprocs=5 cannot be shared evenly by 2 nodes" in err
    assert "Use nprocs=4 or 6." in err


def test_spawned_ranks_share_the_gpus_of_their_task():
    env = one_per_node(1) | {
        "ALLRANKS_SPAWNED": "7/0/0/spawn", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "SLURM_GPUS_PER_TASK": "2",
        "CUDA_VISIBLE_DEVICES": "0,1", "ALLRANKS_LAUNCHER": "python",
    }  # fmt: skip
    here = detect(env)
    assert (here.rank, here.size, here.node_rank, here.nodes) == (3, 4, 1, 2)
    assert (here.launcher, here.device_index, here.port_is_given) == ("spawn", 1, False)
    assert launch_id(env) == "7/0/0/spawn"


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["train.py", "-i"], True),
        (["-um", "mod"], True),
        (["-W", "ignore", "-Xdev", "train.py"], True),
        (["-Xcm"], False),
        (["-X", "dev"], False),
        (["-u", "-"], False),
        ([], False),
    ],
)
def test_what_can_be_run_again(words, program):
    assert names_a_program(["python", *words]) is program


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("echo '{ask}' | {python} -", "its script was typed or came through a pipe"),
        ("{python} -i -c '{ask}'", "it is interactive"),
        ("{python} -c 'from threading import Thread; Thread(target=lambda: exec(\"\"\"{ask}\"\"\"))"
         ".start()'", "this is not its main thread"),
    ],
)  # fmt: skip
def test_a_process_that_cannot_be_started_again_is_told_what_to_type(tmp_path, line, why):
    command = line.format(ask=ASK.format(2), python=sys.executable)
    _, out, err = Start(tmp_path, python=["bash", "-c", command]).end()
    assert out == ""
    assert f"it cannot be started again: {why}." in err
    assert "allranks run --nprocs 2 train.py" in err


def test_pytest_itself_is_not_started_again():
    assert relaunch_obstacle() == "it runs pytest"
