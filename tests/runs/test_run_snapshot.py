"""Snapshots: what git would take, as it is in the work tree."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.runs.code_snapshot import take_snapshot, without_credentials


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", *words]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    git(folder, "init")
    (folder / "train.py").write_text("1\n")
    (folder / "src" / "model é.py").write_text("m\n")
    (folder / ".gitignore").write_text("data/\n")
    (folder / "gone.py").write_text("x")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "x")
    (folder / "gone.py").unlink()
    (folder / "train.py").write_text("2\n")
    (folder / "new.py").write_text("n\n")
    (folder / "data").mkdir()
    (folder / "data" / "big.bin").write_text("x")
    return folder


@pytest.fixture
def run_path(repo: Path) -> Path:
    path = repo / "runs" / "train-20260101-000000"
    path.mkdir(parents=True)
    (repo / "runs" / "older").mkdir()
    (repo / "runs" / "older" / "job.sh").write_text("old")
    return path


def kept(run_path: Path) -> set[str]:
    code = run_path / "code"
    return {str(p.relative_to(code)) for p in code.rglob("*") if p.is_symlink() or p.is_file()}


def test_copy_takes_the_work_tree(repo: Path, run_path: Path) -> None:
    os.chmod(repo / "new.py", 0o755)  # noqa: PTH101
    snapshot = take_snapshot(run_path, repo / "src", "copy")
    assert kept(run_path) == {"train.py", "src/model é.py", ".gitignore", "new.py"}
    assert (run_path / "code" / "train.py").read_text() == "2\n"
    assert os.access(run_path / "code" / "new.py", os.X_OK)
    assert (snapshot.files, snapshot.subfolder) == (4, "src")
    about = json.loads((run_path / "code.json").read_text())
    assert about["commit"] == git(repo, "rev-parse", "HEAD")
    assert (about["branch"], about["dirty"], about["remote"]) == ("main", True, None)
    assert about["subfolder"] == "src"


def test_links(repo: Path, run_path: Path) -> None:
    (repo / "inside").symlink_to("src/model é.py")
    (repo / "absolute").symlink_to(repo / "train.py")
    (repo / "outside").symlink_to("/etc/passwd")
    (repo / "up").symlink_to("../../x")
    snapshot = take_snapshot(run_path, repo, "copy")
    assert (run_path / "code" / "inside").readlink() == Path("src/model é.py")
    assert (run_path / "code" / "absolute").readlink() == Path("train.py")
    assert not kept(run_path) & {"outside", "up"}
    assert any("outside is left out" in note for note in snapshot.notes)


def test_large_file_is_noted_large_total_refused(repo: Path, run_path: Path) -> None:
    (repo / "weights.bin").write_bytes(b"x" * 5000)
    snapshot = take_snapshot(run_path, repo, "copy", file_limit=1000)
    assert "weights.bin" not in kept(run_path)
    assert any("weights.bin" in note for note in snapshot.notes)
    with pytest.raises(UsageError, match=r"largest: weights\.bin"):
        take_snapshot(run_path, repo, "copy", limit=2000)


def test_submodule_files_come_along(repo: Path, run_path: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init")
    (inner / "lib.py").write_text("l")
    git(inner, "add", ".")
    git(inner, "commit", "-m", "x")
    git(repo, "submodule", "add", str(inner), "third")
    take_snapshot(run_path, repo, "copy")
    assert "third/lib.py" in kept(run_path)
    assert not any(".git/" in name for name in kept(run_path))


def test_reference_can_be_brought_back(repo: Path, run_path: Path, tmp_path: Path) -> None:
    git(repo, "remote", "add", "origin", "https://me:secret@example.org/a.git")
    (repo / "train.py").write_bytes(b"\0binary\n")
    take_snapshot(run_path, repo, "reference")
    about = json.loads((run_path / "code.json").read_text())
    assert about["remote"] == "https://example.org/a.git"
    assert "secret" not in (run_path / "code.json").read_text()
    assert "new.py" in about["untracked"]
    assert not (run_path / "code").exists()
    git(tmp_path, "clone", str(repo), "back")
    git(tmp_path / "back", "checkout", about["commit"])
    git(tmp_path / "back", "apply", str(run_path / "uncommitted.patch"))
    assert (tmp_path / "back" / "train.py").read_bytes() == b"\0binary\n"
    assert not (tmp_path / "back" / "gone.py").exists()


@pytest.mark.parametrize("mode", ["copy", "reference"])
def test_repository_without_a_commit(tmp_path: Path, mode: str) -> None:
    repo, run_path = tmp_path / "r", tmp_path / "run"
    repo.mkdir()
    run_path.mkdir()
    git(repo, "init")
    (repo / "t.py").write_text("x")
    take_snapshot(run_path, repo, mode)
    assert json.loads((run_path / "code.json").read_text())["commit"] is None


def test_outside_git(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for folder in (".venv", "myenv", "node_modules", "__pycache__", ".hidden", "runs", "pkg"):
        (work / folder).mkdir(parents=True)
        (work / folder / "x.py").write_text("x")
    (work / "myenv" / "pyvenv.cfg").write_text("")
    (work / "train.py").write_text("t")
    (work / "data.bin").write_text("d")
    (work / "large.json").write_bytes(b"x" * (2 << 20))
    run_path = work / "runs" / "a-20260101-000000"
    run_path.mkdir()
    take_snapshot(run_path, work, "copy")
    assert kept(run_path) == {"train.py", "pkg/x.py"}
    snapshot = take_snapshot(run_path, work, "reference")
    assert any("not in git" in note for note in snapshot.notes)


def test_runs_beside_the_code(repo: Path) -> None:
    run_path = repo / "train-20260101-000000"
    run_path.mkdir()
    (run_path / "run.json").write_text("{}")
    take_snapshot(run_path, repo, "copy")
    assert not any(name.startswith("train-2026") for name in kept(run_path))


def test_off_and_unknown_modes(repo: Path, run_path: Path) -> None:
    take_snapshot(run_path, repo, "off")
    assert not (run_path / "code.json").exists()
    with pytest.raises(UsageError, match="snapshot mode"):
        take_snapshot(run_path, repo, "all")


def test_inside_a_git_hook(repo: Path, run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    take_snapshot(run_path, repo, "copy")
    assert "train.py" in kept(run_path)


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://u:p@h.org/x.git", "https://h.org/x.git"),
        ("https://token@h.org:8443/x", "https://h.org:8443/x"),
        ("https://h.org/x?token=1", "https://h.org/x"),
        ("git@h.org:a/b.git", "git@h.org:a/b.git"),
        ("ssh://git@h.org/a", "ssh://h.org/a"),
        ("/srv/a.git", "/srv/a.git"),
    ],
)
def test_remotes_without_credentials(url: str, clean: str) -> None:
    assert without_credentials(url) == clean
