"""DeepSpeed's configuration file, looked at before the job starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import JobError, UsageError
from allranks.job.deepspeed_config import with_strict_copies
from allranks.job.plan import Plan
from allranks.job.resolve import resolve

ENGINE = "import deepspeed\nengine = deepspeed.initialize(args=args, model=model)\n"
TRANSFORMERS = "from transformers import Trainer\nTrainer().train()\n"
LOOSE = '{\n  "train_batch_size": 8, // of all\n  "fp16": {\n    "enabled": false,\n  }\n}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ENGINE)
    return tmp_path


def plan_of(config: Any, *args: str, scheduler: str = "local", **fields: Any) -> Plan:
    text = config if isinstance(config, str) else json.dumps(config)
    Path("ds.json").write_text(text)
    words = args or ("--deepspeed", "--deepspeed_config", "ds.json")
    return resolve(
        {"script": "train.py", "args": words, "nprocs": 4, **fields},
        on_cluster=scheduler == "slurm",
    )


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (ENGINE, ("--deepspeed", "--deepspeed_config", "ds.json", "--lr", "1")),
        (ENGINE, ("--deepspeed_config=ds.json",)),
        (TRANSFORMERS, ("--deepspeed", "ds.json")),
        (TRANSFORMERS, ("--deepspeed=ds.json",)),
        (ENGINE, ("--deepspeed=ds.json",)),
    ],
)
def test_what_is_not_json_is_told_and_replaced(
    script: str, args: tuple[str, ...], here: Path
) -> None:
    (here / "train.py").write_text(script)
    plan = plan_of(LOOSE, *args)
    assert plan.notes == (
        "ds.json is not strict JSON (line 2: a comment (//), line 4: a comma before the closing "
        "bracket). The job gets a corrected copy in its run folder.",
    )
    folder = here / "run"
    folder.mkdir()
    copied = with_strict_copies(plan, folder)
    assert copied == tuple(word.replace("ds.json", str(folder / "ds.json")) for word in args)
    strict = {"train_batch_size": 8, "fp16": {"enabled": False}}
    assert json.loads((folder / "ds.json").read_text()) == strict


def test_json_is_passed_as_it_is(here: Path) -> None:
    plan = plan_of({"train_batch_size": 8})
    assert plan.notes == ()
    assert with_strict_copies(plan, here) == plan.job.args


def test_words_that_are_no_file(here: Path) -> None:
    for args in (("--deepspeed", "--lr"), ("--deepspeed",), ("--deepspeed_config", "eyJhIjogMX0=")):
        assert plan_of({}, *args).notes == ()


@pytest.mark.parametrize("data", ['{"text": "a"}\n{"text": "b"}\n', '["a", "b"]', LOOSE])
def test_a_data_file_after_the_flag_is_no_configuration(data: str, here: Path) -> None:
    plan = plan_of(data, "--deepspeed", "ds.json")
    assert plan.notes == ()
    assert with_strict_copies(plan, here) == plan.job.args
    assert plan_of({}, "--deepspeed", "other.json").notes == ()


def test_hopeless_text_shows_its_place(here: Path) -> None:
    (here / "train.py").write_text(TRANSFORMERS)
    with pytest.raises(UsageError) as caught:
        plan_of('{\n  "a": 1\n  "b": [\n}', "--deepspeed", "ds.json")
    assert str(caught.value) == (
        "ds.json is not JSON: line 3, column 3: expecting ',' delimiter\n      \"b\": [\n      ^"
    )


def test_hjson_is_left_to_deepspeed(here: Path) -> None:
    pytest.importorskip("hjson")
    plan = plan_of("{\n  train_batch_size: 8\n  steps: 1\n}")
    assert plan.notes == ()
    assert with_strict_copies(plan, here) == plan.job.args
    with pytest.raises(UsageError, match="is not JSON"):
        plan_of("{\n  train_batch_size: 8\n")
    (here / "train.py").write_text("import transformers.trainer\n")
    with pytest.raises(UsageError, match="is not JSON"):
        plan_of("{\n  train_batch_size: 8\n}", "--deepspeed", "ds.json")


def test_hjson_without_its_reader(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hjson", None)
    plan = plan_of("{\n  train_batch_size: 8\n}")
    (note,) = plan.notes
    assert note.startswith("ds.json is not JSON: line 2, column 3: ")
    assert note.endswith("; DeepSpeed may still read it as Hjson.")
    assert with_strict_copies(plan, here) == plan.job.args
    (here / "train.py").write_text(TRANSFORMERS)
    with pytest.raises(UsageError, match="is not JSON"):
        plan_of("{\n  train_batch_size: 8\n}", "--deepspeed", "ds.json")


def test_a_missing_file_is_told_before_the_start() -> None:
    args = ("--deepspeed_config", "other.json")
    with pytest.raises(UsageError, match=r"no file other\.json \(--deepspeed_config\)"):
        plan_of({}, *args)
    assert "other.json" in plan_of({}, *args, scheduler="slurm").notes[0]


SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((32, 4, 2), None),
        ((None, 4, 2), None),
        ((None, 4, None), None),
        ((32, 4, None), None),
        ((32, None, 2), None),
        ((8, None, None), None),
        (("auto", 4, 2), None),
        ((30, "auto", None), None),
        ((None, None, 2), 'Add the batch of one process: "train_micro_batch_size_per_gpu": 16'),
        ((64, 4, 2), "train_batch_size 64 is not train_micro_batch_size_per_gpu 4 × "
                     "gradient_accumulation_steps 2 × 4 processes = 32.\nSet train_batch_size to 32, or "
                     "leave it out: DeepSpeed then computes it. Or set "
                     "train_micro_batch_size_per_gpu to 8."),
        ((40, 4, None), "train_batch_size 40 is not a multiple of train_micro_batch_size_per_gpu 4 × "
                        "4 processes = 16.\nSet train_batch_size to 32."),
        ((2, None, None), "train_batch_size 2 is not a multiple of 4 processes = 4.\n"
                          "Set train_batch_size to 4."),
    ],
)  # fmt: skip
def test_batch_sizes(sizes: tuple[Any, ...], message: str | None) -> None:
    config = {name: size for name, size in zip(SIZES, sizes, strict=True) if size is not None}
    if message is None:
        assert plan_of(config).notes == ()
        return
    with pytest.raises(JobError) as caught:
        plan_of(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "script",
    [
        "import deepspeed\ndeepspeed.initialize(model=m, config=changed)",
        "import deepspeed\n"
        "deepspeed.initialize(args=a, model_parameters=m.parameters(), config=changed)",
        "import deepspeed\ndeepspeed.initialize(model=m, model_parameters=m.parameters())",
        "import deepspeed\ndeepspeed.initialize(args=args, **more)",
        "import deepspeed\ndeepspeed.initialize(args=a)\ndeepspeed.initialize(config=changed)",
        "import deepspeed\ndeepspeed.initialize(args=args\n",
        "import deepspeed\n# deepspeed.initialize(args=args)\nstart()",
        "import deepspeed\nfrom deepspeed.pipe import PipelineModule\ndeepspeed.initialize(args=a)",
        "import deepspeed\ndeepspeed.initialize(args=args, model=model, mpu=mpu)",
        "from engine import train\ntrain()",
    ],
)
def test_only_a_note_where_the_script_may_know_better(script: str, here: Path) -> None:
    (here / "train.py").write_text(script)
    assert "is not a multiple of" in plan_of({"train_batch_size": 2}).notes[0]


@pytest.mark.parametrize(
    ("module", "sure"),
    [
        ("from deepspeed.pipe import PipelineModule\n", False),
        ("def broken(:\n", False),
        ("import deepspeed\n\ndef again(): deepspeed.initialize(config={})\n", False),
        ("from torch.nn import Linear\n", True),
    ],
)
def test_modules_beside_the_script_are_looked_at(module: str, sure: bool, here: Path) -> None:
    (here / "train.py").write_text("from net import model\n" + ENGINE)
    (here / "net.py").write_text(module)
    if sure:
        with pytest.raises(JobError, match="is not a multiple of"):
            plan_of({"train_batch_size": 2})
    else:
        assert "is not a multiple of" in plan_of({"train_batch_size": 2}).notes[0]


@pytest.mark.parametrize("word", ["transformers", "argparse"])
def test_batch_sizes_of_transformers(word: str, here: Path) -> None:
    (here / "train.py").write_text(f"import {word}\n")
    if word == "transformers":
        with pytest.raises(JobError, match="is not a multiple of"):
            plan_of({"train_batch_size": 2}, "--deepspeed=ds.json")
    else:
        assert "multiple" in plan_of({"train_batch_size": 2}, "--deepspeed=ds.json").notes[0]


def test_processes_of_the_script_itself_are_not_counted() -> None:
    assert plan_of({"train_batch_size": 3}, launcher="python", nprocs=1).notes == ()
