"""Jobs that really run in a container: `apptainer exec`, and charliecloud in its place.

Debian 12 has no apptainer; the last test runs this file again in a Debian that has (scripts/slurm-root).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from container_rig import MARK, ROOTS, charliecloud, make_image, shown, slurm_root

from command_rig import ROOT, Allranks, reports, runner, until

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(300)]

SIZE = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "2", "--time", "5m"]
RUNTIMES = {"apptainer": "apptainer", "charliecloud": "ch-run"}
HERE = [name for name, program in RUNTIMES.items() if shutil.which(program)]
AWKWARD = "two words, $(touch escaped) `touch escaped` 'single' \"double\" \\ ünï, a=b"

TELL = f"""
import json, os
import allranks
known = {{name: os.environ.get(name) for name in (
    "RANK", "SLURM_JOB_ID", "SLURM_PROCID", "AWKWARD", "FLAVOUR", "OUTSIDE", "CUDA_VISIBLE_DEVICES",
)}}
known["mark"] = open("{MARK}").read().strip()
known["key"] = len(os.environ.get("MY_API_KEY", ""))
known["library"] = allranks.__file__
known["data"] = sorted(os.listdir("/data")) if os.path.exists("/data") else None
os.write(1, ("tell " + json.dumps(known) + "\\n").encode())
"""
WAITS = """
import os, signal, time
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.1)
print("got", len(got), flush=True)
raise SystemExit(5)
"""


@pytest.fixture(scope="session", params=HERE or [""])
def runtime(request: pytest.FixtureRequest) -> str:
    if not request.param:
        pytest.skip("no container runtime: neither apptainer nor ch-run is installed")
    return str(request.param)


@pytest.fixture(scope="session")
def image(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "an image")


@pytest.fixture(scope="session")
def sif(image: Path) -> Path:
    """The image as one file."""
    file = image.parent / "one file.sif"
    subprocess.run(["apptainer", "build", "-F", file, image], check=True, capture_output=True)
    return file


@pytest.fixture
def contained(runtime: str, tmp_path: Path, slurm_env: dict[str, str], image: Path) -> Allranks:
    """``submit`` with what the image must be shown; the submitting shell has variables of its own."""
    env = {**slurm_env, "OUTSIDE": "seen"}
    if runtime == "charliecloud":
        (tmp_path / "bin").mkdir()
        env["PATH"] = f"{charliecloud(tmp_path / 'bin')}{os.pathsep}{env['PATH']}"
    (tmp_path / "report.py").write_text((ROOT / "tests/report.py").read_text() + TELL)
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "waits.py").write_text(WAITS)
    mounts = [word for path in shown() for word in ("--mount", path)]
    command = runner(tmp_path, env)

    def submit(*words: str, image: Path = image) -> subprocess.CompletedProcess[str]:
        setup = ["--container", str(image), *mounts, "--venv", sys.prefix]
        return command("submit", *setup, *words, timeout=150)

    return submit


def told(text: str) -> list[dict[str, object]]:
    """What each rank said of its surroundings."""
    lines = [line.partition("tell ")[2] for line in text.splitlines() if "tell {" in line]
    return sorted((json.loads(line) for line in lines), key=lambda each: str(each["RANK"]))


KINDS = [
    *(
        ("directory", name)
        for name in ("srun", "torchrun", "fork", "launch", "accelerate", "deepspeed")
    ),
    *(("file", name) for name in ("srun", "torchrun", "fork")),
]


@pytest.mark.parametrize(("kind", "launcher"), KINDS)
def test_two_nodes_of_two_ranks(
    kind: str, launcher: str, runtime: str, contained: Allranks, request: pytest.FixtureRequest,
    image: Path, tmp_path: Path,
) -> None:  # fmt: skip
    if runtime == "charliecloud" and (
        kind == "file" or launcher not in ("srun", "torchrun", "fork")
    ):
        pytest.skip("with apptainer only")
    if launcher in ("accelerate", "deepspeed"):
        pytest.importorskip(launcher)
    use = request.getfixturevalue("sif") if kind == "file" else image
    done = contained(
        *SIZE, "--launcher", launcher, "--follow", "report.py", "--word", "a b", image=use
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = reports(done.stdout)
    assert [each["sum"] for each in found] == [10.0] * 4, done.stdout + done.stderr
    assert [each["host"] for each in found].count("node2") == 2
    assert {each["word"] for each in found} == {"a b"}
    ranks = told(done.stdout)
    assert [each["mark"] for each in ranks] == ["a small image"] * 4
    assert all(str(each["library"]).startswith(f"{tmp_path}/runs/") for each in ranks)


def test_what_a_job_gives_arrives_inside(contained: Allranks, tmp_path: Path) -> None:
    """Values as they are, mounts, GPUs, lines and Python of the image, the secret in no file."""
    (tmp_path / "my data").mkdir()
    (tmp_path / "my data/one.txt").touch()
    done = contained(
        "-t", "5m", "--gpus-per-node", "2", "--env", f"AWKWARD={AWKWARD}", "--env", "MY_API_KEY=s3cret!",
        "--mount", f"{tmp_path}/my data:/data:ro", "--container-setup", "${WITH_CONDA:-}", "--follow", "tell.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = told(done.stdout)
    assert [each["RANK"] for each in ranks] == ["0", "1"]
    for each in ranks:
        assert each["AWKWARD"] == AWKWARD
        assert (each["data"], each["key"], each["OUTSIDE"]) == (["one.txt"], 7, "seen")
        assert each["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert each["SLURM_PROCID"] == each["RANK"]
    assert not (tmp_path / "escaped").exists()
    assert " --nv " in next((tmp_path / "runs").glob("*/job.sh")).read_text()


def test_the_images_own_conda_and_a_venv_on_top(contained: Allranks, runtime: str) -> None:
    if runtime != "apptainer":
        pytest.skip("only apptainer runs what the image says of its environment")
    done = contained("-t", "5m", "--container-setup", "${WITH_CONDA:-}", "--follow", "tell.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["FLAVOUR"] for each in told(done.stdout)] == ["conda torch"]


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "fork"])
def test_a_cleaned_environment_still_has_the_jobs_own(
    launcher: str, runtime: str, contained: Allranks, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime != "apptainer":
        pytest.skip("with apptainer only")
    sif: Path = request.getfixturevalue("sif")
    done = contained(
        *SIZE, "--launcher", launcher, "--container-arg=--cleanenv", "--env", f"AWKWARD={AWKWARD}",
        "--env", "MY_API_KEY=s3cret!", "--follow", "report.py", image=sif,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["sum"] for each in reports(done.stdout)] == [10.0] * 4
    for each in told(done.stdout):
        assert (each["AWKWARD"], each["key"], each["OUTSIDE"]) == (AWKWARD, 7, None)
        assert str(each["SLURM_JOB_ID"]).isdecimal()
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "fork"])
def test_a_signal_reaches_the_ranks_and_their_exit_code_comes_back(
    launcher: str, contained: Allranks, tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str]
) -> None:
    words = ["--launcher", launcher, "--signal", "B:USR1@120", "--json", "waits.py"]
    submitted = contained(*SIZE, *words)
    job_id = json.loads(submitted.stdout)["job_id"]
    until(lambda: slurm("logs", job_id).stdout.count("ready") == 4)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job_id], env=slurm_env, check=True)
    done = slurm("logs", "-f", job_id)
    assert done.stdout.count("got 1") >= 1, done.stdout + done.stderr
    assert done.returncode == 5


def test_an_image_that_is_not_there_ends_the_job(contained: Allranks, tmp_path: Path) -> None:
    done = contained("-t", "5m", "--follow", "tell.py", image=tmp_path / "no.sif")
    assert done.returncode not in (0, None)
    assert "no.sif" in done.stdout + done.stderr
    assert not told(done.stdout)


@pytest.mark.skipif("apptainer" in HERE, reason="apptainer is here: the tests above used it")
@pytest.mark.timeout(1500)
def test_all_of_it_with_apptainer_in_a_newer_debian(capsys: pytest.CaptureFixture[str]) -> None:
    root = ROOTS / "sid"
    for words in (("make", "sid", root), ("add", root, "apptainer")):
        made = slurm_root(*words, timeout=900)
        assert made.returncode == 0, made.stdout
    # Root of a container may lack a capability that apptainer would hand on.
    allow = ("apptainer", "config", "global", "--set", "root default capabilities", "no")
    assert slurm_root("run", root, "--", *allow, timeout=60).returncode == 0
    pytest_words = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow",
        "-k",
        "not newer_debian",
        __file__,
    )
    done = slurm_root(
        "run", root, "--", sys.executable, "-m", "pytest", *pytest_words, timeout=1200
    )
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-150:])
    last = done.stdout.splitlines()[-1]
    assert " passed" in last, last
    with capsys.disabled():
        print(f"\napptainer: {last}")
