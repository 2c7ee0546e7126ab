"""Folders of others, and questions that no page of ours asks: nothing is shown that should not be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from view_rig import make_run
from web_rig import Runs, client_of


@pytest.fixture(scope="module")
def client(runs: Runs) -> TestClient:
    return client_of(runs.folder)


def test_a_path_is_never_taken_from_the_address(
    client: TestClient, runs: Runs, tmp_path: Path
) -> None:
    outside = make_run(tmp_path, "outside", windows=2)
    for name in (
        "..%2f..%2fetc", str(outside.path).replace("/", "%2f"), "%2e%2e", f"../{outside.id}", outside.id,
    ):  # fmt: skip
        assert client.get(f"/api/runs/{name}").status_code == 404, name
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fauth.py",
        "/static//etc/passwd",
    ):
        assert client.get(path).status_code == 404, path


def test_links_in_someone_elses_run_show_nothing_of_mine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("my private words\n")
    run = make_run(tmp_path / "runs", "theirs", windows=2)
    ranks = run.path / "attempts" / "1" / "ranks"
    (ranks / "rank-00000.log").unlink()
    (ranks / "rank-00000.log").symlink_to(secret)
    (run.path / "slurm-1.out").symlink_to(secret)
    (run.path / "job.sh").unlink()
    (run.path / "job.sh").symlink_to(secret)
    client = client_of(tmp_path / "runs")
    for path in ("logs", "logs?stream=slurm", "logs?q=private", "job", ""):
        answer = client.get(f"/api/runs/{run.id}/{path}".rstrip("/"))
        assert "private words" not in answer.text, path


def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    run = make_run(tmp_path, "theirs", windows=3)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for path in [run.path, *run.path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    client = client_of(tmp_path)
    for path in ("", "/plots", "/heat?what=gpu", "/logs", "/job", "/diagnostics"):
        assert client.get(f"/api/runs/{run.id}{path}").status_code == 200, path
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for path in [run.path, *run.path.rglob("*")]:
        path.chmod(0o755)


def test_pipes_in_someone_elses_run_are_not_waited_for(tmp_path: Path) -> None:
    """The test's time limit would tell of one that is."""
    run = make_run(tmp_path, "theirs", windows=2)
    attempt = run.path / "attempts" / "1"
    for path in (
        run.path / "metrics.jsonl", run.path / "job.sh", run.path / "training.json",
        attempt / "ranks" / "rank-00000.log", attempt / "environment.txt", attempt / "steps.jsonl",
    ):  # fmt: skip
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    client = client_of(tmp_path)
    assert client.get("/api/runs").status_code == 200
    for path in ("", "/plots", "/logs", "/logs?q=x", "/logs?errors=1", "/job", "/diagnostics"):
        assert client.get(f"/api/runs/{run.id}{path}").status_code == 200, path


@pytest.mark.parametrize("way", ["before", "after"])
@pytest.mark.parametrize("offset", ["9" * 18, "9" * 200, "-7", "-" + "9" * 20])
def test_an_offset_that_no_file_has(client: TestClient, runs: Runs, way: str, offset: str) -> None:
    answer = client.get(f"/api/runs/{runs.done.id}/logs?{way}=1_1.0.{offset}")
    assert answer.status_code == 200


def test_a_run_without_anything_is_no_error(tmp_path: Path) -> None:
    bare = tmp_path / "bare-20260101-000000"
    bare.mkdir()
    (bare / "run.json").write_text(json.dumps({"name": "bare", "scheduler": "local"}))
    client = client_of(tmp_path)
    for path in ("", "/plots", "/logs", "/logs?q=x", "/logs?errors=1", "/job", "/diagnostics"):
        assert client.get(f"/api/runs/{bare.name}{path}").status_code == 200, path
    assert client.get("/api/runs").json()["runs"][0]["step"] is None


def test_a_folder_that_may_not_be_entered_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As anyone but root meets it: it is listed, yet what is in it may not even be asked for."""
    run = make_run(tmp_path, "mine", windows=2)
    (tmp_path / "theirs" / "deeper").mkdir(parents=True)
    (tmp_path / "theirs").chmod(0o600)
    stat = Path.stat

    def refused(path: Path, **how: bool) -> os.stat_result:
        if path.is_relative_to(tmp_path / "theirs") and path != tmp_path / "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refused)
    rows = client_of(tmp_path).get("/api/runs").json()["runs"]
    assert [row["id"] for row in rows] == [run.id]


@pytest.mark.parametrize(
    "question",
    ["logs?limit=" + "9" * 5000, "logs?ranks=" + "9" * 5000, "logs?attempt=x", "?task=../../x",
     "logs?after=" + "9" * 5000, "logs?before=x.y", "logs?at=1.2.3"],
)  # fmt: skip
def test_numbers_that_are_none_are_told(client: TestClient, runs: Runs, question: str) -> None:
    answer = client.get(f"/api/runs/{runs.done.id}/{question}".replace("/?", "?"))
    assert answer.status_code == 400
    assert "is not" in answer.json()["error"]


def test_a_span_of_ranks_costs_nothing(client: TestClient, runs: Runs) -> None:
    spans = ",".join(["1-999999999"] * 100)
    answer = client.get(f"/api/runs/{runs.live.id}/logs?ranks={spans}").json()
    assert {line["rank"] for line in answer["lines"]} == {1, 2, 3}
