"""The page and its siblings: as they were, complete, small, and safe whatever the names."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_rig import facts, gpu, life

from allranks._version import __version__
from allranks.observe.report.advice import Advice, advise
from allranks.observe.report.html_report import html_report
from allranks.observe.report.model import Error, RunFacts
from allranks.observe.report.report_files import Report, report_run
from allranks.observe.report.text_reports import markdown_report
from allranks.observe.view.model import Diagnostic
from allranks.runs import Run
from view_rig import make_run

GOLDEN = Path(__file__).parent / "golden"
END = 1_794_800_000.0
NOW = datetime.fromtimestamp(END + 60, timezone.utc)
HOSTILE = "<script>alert(1)</script>\"'&|`*_\x1b[31m\x00\u202egpj.exe\u2066\u200b"
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
VOID = {"meta", "br", "img", "link", "hr", "input"}


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    """Times in the reader's zone, which is this one; and no cluster to ask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        for name in ("SLURM_CONF", "SLURM_CONF_SERVER"):
            patch.delenv(name, raising=False)
        patch.setattr("allranks.observe.report.run_facts.job_usage", lambda *_, **__: None)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory, utc: None) -> Report:
    """Eight ranks on two nodes in two attempts; one rank is slow in both."""
    root = tmp_path_factory.mktemp("golden")
    run = make_run(root, ranks=8, windows=60, slow_rank=5, attempts=2, job_id="4711", end=END)
    (run.path / "training.json").write_text('{"precision": "bf16", "accumulate": 1, "seed": 7}')
    (run.path / "versions.json").write_text(
        '{"python": "3.11.2", "platform": "Linux", "packages": {"torch": "2.13.0", "left-pad": "1"}}'
    )
    report = report_run(run, now=NOW)
    # The folder differs from one run of the tests to the next; all that names it is told by another.
    return replace(report, facts=_moved(report.facts, str(run.path)))


def _moved(found: RunFacts, folder: str) -> RunFacts:
    there = "/home/you/project/runs/train"
    return replace(
        found,
        folder=there,
        exact_command=[each.replace(folder, there) for each in found.exact_command],
        plan_values=[
            (name, value.replace(folder, there), origin.replace(folder, there))
            for name, value, origin in found.plan_values
        ],
    )


@pytest.mark.parametrize(("form", "name"), [("html", "html"), ("markdown", "md"), ("json", "json")])
def test_the_report_is_as_it_was(golden: Report, form: str, name: str) -> None:
    """``UPDATE_GOLDEN=1 pytest`` writes them anew."""
    path = GOLDEN / f"report.{name}"
    # Another zlib packs pictures otherwise, and another version of ours is no other report.
    text = re.sub(r"base64,[\w+/=]+", "base64,…", golden.text(form)).replace(__version__, "VERSION")
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


class Parsed(HTMLParser):
    """Tags, what they refer to, and whether all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.refers: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.refers += [
            (tag, value or "")
            for name, value in attrs
            if name in ("src", "href", "srcset", "data", "action") or name.startswith("on")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_else(golden: Report) -> None:
    text = golden.text("html")
    parsed = Parsed(text)
    assert parsed.open == []
    assert not {"script", "link", "iframe", "object", "embed"} & set(parsed.tags)
    assert all(where.startswith("data:image/png;base64,") for _, where in parsed.refers)
    assert "@import" not in text
    assert "url(" not in text
    assert len(parsed.ids) == len(set(parsed.ids))


def test_all_sections_are_there(golden: Report) -> None:
    words = " ".join(Parsed(golden.text("html")).words)
    for part in ("What to change", "Requested and used", "Over time", "Attempts", "Goodput",
                 "Versions", "torch", "To run it again", "rank 5 on node2", "GPU use", "Loss"):  # fmt: skip
        assert part in words, part
    assert "left-pad" not in words


def test_json_has_its_keys(golden: Report) -> None:
    found = json.loads(golden.text("json"))
    assert found["format"] == 1
    assert found["kind"] == "run"
    assert found["requested"]["cpus_per_task"] == 8
    assert found["used"]["gpu_use"] == pytest.approx(0.68, abs=0.05)
    assert found["advice"][0].keys() == {"id", "severity", "text", "command"}
    assert found["slow"][0]["rank"] == 5
    assert [each["number"] for each in found["attempts"]] == [1, 2]


def hostile() -> tuple[RunFacts, list[Advice]]:
    found = facts(
        name=HOSTILE,
        id=HOSTILE,
        state="failed",
        why=HOSTILE,
        user=HOSTILE,
        hosts=[HOSTILE],
        job_ids=[HOSTILE],
        used={"gpus": [gpu(0, HOSTILE, name=HOSTILE)], "cpus_host": HOSTILE},
        error=Error(0, HOSTILE, 1, "", HOSTILE),
        attempts=[life(outcome=HOSTILE, reason=HOSTILE, job_id=HOSTILE)],
        findings=[Diagnostic("lint", "error", HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
        versions={HOSTILE: HOSTILE},
        environment={HOSTILE: HOSTILE},
        settings={HOSTILE: HOSTILE},
        plan_values=[(HOSTILE, HOSTILE, HOSTILE)],
        original_command=[HOSTILE],
        limitations=[HOSTILE],
        phases={HOSTILE: 1.0},
        values={HOSTILE: 1.0},
    )
    return found, [*advise(found), Advice("x", "note", HOSTILE, HOSTILE)]


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_what_lint_and_check_found_is_told(form: str) -> None:
    lint = Diagnostic("lint", "error", "No GPU", "The job asks for no GPU.", "--gpus 1", "AR101")
    check = Diagnostic("check", "warning", "allranks check --signal", "USR1 did not reach rank 1.")
    text = Report(facts(findings=[lint, check]), []).text(form)
    for word in (
        "error AR101",
        "The job asks for no GPU.",
        "--gpus 1",
        "USR1 did not reach rank 1.",
    ):
        assert word in text


def test_no_name_breaks_out_of_the_page() -> None:
    text = html_report(*hostile())
    parsed = Parsed(text)
    assert "script" not in parsed.tags
    assert parsed.refers == []
    assert not UNSEEN.search(text)


def test_no_name_breaks_out_of_the_text() -> None:
    text = markdown_report(*hostile())
    code = re.compile(r"(`{3,})\n.*?\n\1|(`+).*?(?<!`)\2(?!`)", re.DOTALL)
    assert "<script>" not in code.sub("", text.replace("\\<", "").replace("\\`", ""))
    assert not UNSEEN.search(text)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1


def test_no_name_plays_tricks_in_the_record() -> None:
    text = Report(*hostile()).text("json")
    assert not UNSEEN.search(text)
    assert not UNSEEN.search(str(json.loads(text)))
    assert json.loads(text)["error"]["traceback"].startswith("<script>")


def test_a_run_without_anything_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text('{"name": "empty", "scheduler": "local"}')
    report = report_run(Run.open(tmp_path / "empty"), now=NOW)
    assert report.advice == []
    assert "Unknown." in report.text("html")
    assert "not sampled" in report.text("markdown")
    assert json.loads(report.text("json"))["judged"] is False


def test_a_living_run_is_not_judged_by_its_end(tmp_path: Path) -> None:
    report = report_run(make_run(tmp_path, windows=80, finished=False), now=NOW)
    assert report.facts.state == "running"
    assert not report.facts.ended
    assert not {"time", "failed", "short"} & {advice.id for advice in report.advice}


def test_a_failed_run_tells_its_first_error(tmp_path: Path) -> None:
    report = report_run(make_run(tmp_path, windows=20, failed=True), now=NOW)
    assert [advice.id for advice in report.advice][:2] == ["failed", "gpu-memory-out"]
    assert "torch.OutOfMemoryError" in report.text("markdown")


def test_secrets_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=20, failed=True)
    token, key = "ghp_" + "a" * 36, "sk-" + "b" * 40
    about = json.loads((run.path / "run.json").read_text())
    about["command"] += ["--api-key=hunter2", f"--url=https://ann:hunter2@host/?token={token}"]
    (run.path / "run.json").write_text(json.dumps(about))
    plan = json.loads((run.path / "plan.json").read_text())
    plan["values"].append(
        {"name": "args", "value": "--password=hunter2 --lr=1", "origin": "command line"}
    )
    (run.path / "plan.json").write_text(json.dumps(plan))
    life = run.path / "attempts" / "1"
    (life / "environment.txt").write_text(
        f"NCCL_DEBUG=INFO\nTORCH_AUTH_TOKEN=hunter2\nCUDA_X={key}\n"
    )
    failure = life / "failures" / "rank-00002.json"
    failure.write_text(failure.read_text().replace("CUDA out of memory", f"401: {token}"))
    report = report_run(Run.open(run.path), now=NOW)
    for form in ("html", "markdown", "json"):
        text = report.text(form)
        assert "hunter2" not in text
        assert token not in text
        assert key not in text
    assert "NCCL_DEBUG" in report.text("html")
    assert "--lr=1" in report.text("html")


def test_256_ranks_and_a_long_run_stay_small(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=256, gpus_per_node=8, windows=300, slow_rank=77)
    text = report_run(run, now=NOW).text("html")
    assert len(text.encode()) < 300_000
    assert "rank 77 on node10" in text
