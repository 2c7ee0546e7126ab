"""No string of a user is ever run: each arrives exactly as it was given, checked by running bash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from script_rig import Stage, Told, plan_of

from allranks.job.launchers import LAUNCHERS
from allranks.job.plan import Plan
from allranks.job.sbatch import render

HOSTILE = [
    " ", "'", '"', "\\", "$(canary)", "`canary`", ";canary;", "&& canary", "| canary", "$HOME", "${x}",
    "!", "!!", "#", "# ", "*", "?", "[a]", "{a,b}", "~", "-", "--", "-n", "%s", "\t", "é", "日本", "🙂",
    "<(canary)", ">x", "&", "(", ")", "=", ",", ":", "'; canary; '", "\"; canary; \"", "$'\\n'", "\x01",
]  # fmt: skip
LETTERS = st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"])
LINE = st.lists(st.sampled_from(HOSTILE) | LETTERS, max_size=6).map("".join)
"""One line of text."""
TEXT = st.lists(st.sampled_from([*HOSTILE, "\n", "\ncanary\n", "\r"]) | LETTERS, max_size=6).map(
    "".join
)
"""Any text."""
WORD = LINE.filter(bool)
FILE = LINE.map(lambda text: text.replace("/", "_")[:40]).filter(
    lambda text: text not in ("", ".", "..")
)
"""The name of a file or folder."""
EVERYTHING = " ".join(HOSTILE)

many = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


def run(stage: Stage, plan: Plan, **env: str) -> Told:
    told = stage.run(render(plan, run_dir=str(stage.folder / "run")), plan, **env)
    assert told.code == 0, told.output
    assert not told.canary
    return told


def ends_with(call: tuple[str, ...], words: list[str]) -> bool:
    return list(call[len(call) - len(words) :]) == words


@many
@given(args=st.lists(TEXT, max_size=5), env=TEXT)
@example(args=[EVERYTHING, "", "a\nb", "\ncanary\n"], env=EVERYTHING + "\n")
def test_arguments_and_variables(stage: Stage, args: list[str], env: str) -> None:
    plan = plan_of(args=args, env={"MINE": env}, nprocs=2)
    told = run(stage, plan)
    ranks = [call for call in told.of("python") if call[0] == "train.py"]
    assert ranks == [("train.py", *args)] * 2
    assert told.env["MINE"] == env


@many
@given(args=st.lists(TEXT, min_size=1, max_size=3), own=WORD)
@example(args=[EVERYTHING, "a\nb"], own=EVERYTHING)
@pytest.mark.parametrize(
    "launcher", ["torchrun", "accelerate", "deepspeed", "launch", "fork", "mpirun"]
)
def test_every_launcher_hands_them_on(
    stage: Stage, launcher: str, args: list[str], own: str
) -> None:
    plan = plan_of(args=args, launcher=launcher, launcher_args=[own], nprocs=2, nodes=1)
    told = run(stage, plan)
    program = launcher if launcher not in ("launch", "fork") else "python"
    call = next(call for call in reversed(told.of(program)) if len(call) > 2 and call[0] != "-c")
    assert ends_with(call, ["train.py", *args])
    assert own in call


@many
@given(names=st.lists(WORD, min_size=1, max_size=3), conda=WORD)
@example(names=[EVERYTHING, "-a"], conda=EVERYTHING)
def test_modules_and_conda(stage: Stage, names: list[str], conda: str) -> None:
    stage.source(stage.folder / "base" / "etc" / "profile.d" / "conda.sh")
    plan = plan_of(modules=names, conda=conda)
    told = run(stage, plan, CONDA_BASE=str(stage.folder / "base"))
    assert told.of("module") == [("purge",), *(("load", name) for name in names)]
    assert told.of("conda") == [("info", "--base"), ("activate", conda)]


@many
@given(names=st.lists(FILE, min_size=4, max_size=4, unique=True))
@example(names=["-a", "--", "~", "$(canary)"])
@example(names=["a b", "it's", '"', "`canary`"])
@pytest.mark.parametrize("relative", [False, True])
def test_files_of_the_environment(stage: Stage, names: list[str], relative: bool) -> None:
    setup, venv, uv, conda = (stage.work / "files" / name for name in names)
    home = Path() if relative else stage.work / "files"
    sourced = [
        stage.source(setup / "s.sh"),
        stage.source(conda / "etc/profile.d/conda.sh"),
        stage.source(venv / "bin/activate"),
        stage.source(uv / ".venv/bin/activate"),
    ]
    plan = plan_of(
        setup=[str(home / names[0] / "s.sh")],
        venv=str(home / names[1]),
        uv=str(home / names[2]),
        conda_root=str(home / names[3]),
        conda="base",
        chdir=str(stage.work / "files"),
    )
    told = run(stage, plan)
    found = [(stage.work / "files" / path).resolve() for (path,) in told.of("sourced")]
    assert found == [path.resolve() for path in sourced]


@many
@given(name=FILE, own=FILE)
@example(name="-a $(canary)", own="it's %j")
def test_the_folders(stage: Stage, name: str, own: str) -> None:
    folder = stage.work / "dirs" / name
    folder.mkdir(parents=True, exist_ok=True)
    run_dir = stage.folder / "runs" / own
    plan = plan_of(chdir=str(folder))
    told = stage.run(render(plan, run_dir=str(run_dir)), plan)
    assert (told.code, told.canary) == (0, False), told.output
    assert told.cwd == str(folder)
    assert (run_dir / "attempts" / "1" / "end.json").exists()


@many
@given(image=WORD.filter(lambda text: not text.startswith("-")), binds=st.lists(WORD, max_size=2), name=FILE,
       args=st.lists(TEXT, max_size=3))  # fmt: skip
@example(
    image=EVERYTHING.strip(), binds=[EVERYTHING], name="it's $(canary)", args=[EVERYTHING, "a\nb"]
)
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_container_with_a_venv_inside(
    stage: Stage, launcher: str, image: str, binds: list[str], name: str, args: list[str]
) -> None:
    venv = stage.folder / "venvs" / name
    activate = stage.source(venv / "bin/activate")
    plan = plan_of(
        container=image, binds=binds, venv=str(venv), args=args, container_args=["--my $(canary)"],
        launcher=launcher,
    )  # fmt: skip
    told = run(stage, plan)
    start = told.of("apptainer")[-1]
    own = [word for bind in binds for word in ("--bind", bind)]
    run_dir = str(stage.folder / "run")
    head = ("exec", "--bind", run_dir, *own, "--my $(canary)", image, "bash", "-c")
    assert start[: len(head)] == head
    assert told.of("sourced")[-1] == (str(activate),)
    last = told.of("python")[-1] if launcher == "srun" else told.of("torchrun")[-1]
    assert ends_with(last, ["train.py", *args])


@many
@given(image=WORD, bind=WORD.filter(lambda text: ":" not in text), name=FILE)
@example(image=EVERYTHING, bind=EVERYTHING.replace(":", ""), name="it's $(canary)")
def test_pyxis(stage: Stage, image: str, bind: str, name: str) -> None:
    venv = stage.folder / "venvs" / name
    activate = stage.source(venv / "bin/activate")
    plan = plan_of(container=image, container_runtime="pyxis", binds=[bind], venv=str(venv))
    (call,) = (told := run(stage, plan)).of("srun")
    assert f"--container-image={image}" in call
    here, folder = stage.work, stage.folder / "run"
    assert f"--container-mounts={here}:{here},{folder}:{folder},{bind}:{bind}" in call
    assert f"--container-workdir={here}" in call
    assert told.of("sourced")[-1] == (str(activate),)
    assert told.of("python")[-1] == ("train.py",)


@many
@given(python=FILE, words=st.lists(WORD, min_size=2, max_size=2))
@example(python="my python $(canary)", words=[EVERYTHING, EVERYTHING])
def test_the_interpreter_and_srun_options(stage: Stage, python: str, words: list[str]) -> None:
    """A wrong word is srun's to refuse; it must only arrive as it is."""
    program = stage.folder / "interpreters" / python
    program.parent.mkdir(exist_ok=True)
    program.unlink(missing_ok=True)
    program.symlink_to(stage.bin / "python")
    plan = plan_of(
        python=str(program), distribution=words[0], mpi=words[1], nprocs=2, launcher="srun"
    )
    told = run(stage, plan)
    assert {f"--distribution={words[0]}", f"--mpi={words[1]}"} <= set(told.of("srun")[-1])
    assert told.of(python)[-1] == ("train.py",)


@many
@given(head=WORD, interface=WORD)
@example(head=EVERYTHING, interface="$(canary) *")
def test_the_head_and_the_interface(stage: Stage, head: str, interface: str) -> None:
    """Names that no node and no interface has: refused by the script, never run."""
    plan = plan_of(head=head, interface=interface, nodes=2)
    told = stage.run(render(plan), plan)
    assert not told.canary
    assert told.code == 1
    assert f"Head node {head} is not part of the allocation: n1 n2\n" in told.output


def test_the_users_own_shell_lines_do_run(stage: Stage) -> None:
    """``setup_commands`` and ``container_setup`` are shell, comments and all."""
    plan = plan_of(
        setup_commands=["export A=$((1 + 1))  # two", "if true; then\n  export B=b\nfi"],
        container="i.sif",
        container_setup=["export C=c  # inside", "export D=$C$A"],
    )
    told = run(stage, plan)
    assert [told.env[name] for name in "ABCD"] == ["2", "b", "c", "c2"]


def test_a_line_that_fails_inside_the_container_ends_the_job(stage: Stage) -> None:
    plan = plan_of(container="i.sif", container_setup=["false  # no", "true"], agent=False)
    told = stage.run(render(plan), plan)
    assert told.code == 1
    assert told.of("python") == []


@many
@given(words=st.lists(TEXT, max_size=3))
@example(words=["a\n#SBATCH --nodes=9\ncanary", "\u2028canary"])
def test_the_command_in_the_head_is_a_comment(stage: Stage, words: list[str]) -> None:
    plan = plan_of(nprocs=1)
    text = render(plan, made_by=" ".join(["allranks", *words]), run_dir=str(stage.folder / "run"))
    assert "\n#SBATCH --nodes=9" not in text
    assert not stage.run(text, plan).canary


def test_setup_on_node_runs_in_every_task(stage: Stage) -> None:
    plan = plan_of(modules=["a b"], setup_on="node", nprocs=2)
    assert run(stage, plan).of("module") == [("purge",), ("load", "a b")] * 2
    once = replace(
        plan, launcher=LAUNCHERS["mpirun"]
    )  # mpirun has no tasks of ours: the batch script does it
    assert run(stage, once).of("module") == [("purge",), ("load", "a b")]
