"""Secrets in the script, or printed into the log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Assignment

RULE = Rule(
    id="AR505",
    name="secret",
    title="A secret is where others can read it",
    why="""Job scripts are copied, shared and kept by Slurm, where others may read them; logs are handed
    around when something fails. A key in the script, or an environment that is printed whole with env or
    set, gives the account away. Keep keys in a file that only you can read.""",
    symptoms=("a key is in the log or in the repository",),
    bad=example(
        "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\nsrun python train.py",
        "--nodes=1",
    ),
    good=example('export WANDB_API_KEY="$(cat ~/.wandb_key)"\nsrun python train.py', "--nodes=1"),
    clean=(
        example("export WANDB_API_KEY=$1 HF_TOKEN=<your token>\nsrun python train.py", "--nodes=1"),
        example("env | grep SLURM\nset -x\nsrun env FOO=1 python train.py", "--nodes=1"),
        example("export WANDB_API_KEY=YOUR_API_KEY\nsrun python train.py", "--nodes=1"),
    ),
)
_NAME = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|ACCESS_KEY)(_ID)?$", re.I)
_FORM = re.compile(
    r"^(hf_\w{20,}|sk-[\w-]{20,}|gh[pous]_\w{20,}|[0-9a-f]{32,64}|AKIA\w{16}|(?=\w*\d)(?=\w*[a-zA-Z])[\w+/=-]{24,})$"
)
_KEY = re.compile(
    r"^(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9-]{32,}|gh[pous]_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})$"
)
_HOLLOW = re.compile(r"your|xxx|<|\.\.\.|\*\*|replace|placeholder|here|example|tokenizers", re.I)


def check(job: JobScript) -> Iterator[Finding]:
    """Keys as plain text, and the whole environment in the log."""
    for call in job.calls:
        for item in call.assignments:
            if _is_secret(item):
                yield RULE.at(
                    item.span,
                    f"{item.name} holds a key in plain text, for everyone who sees this script.",
                    help="Read it from a file of your own (chmod 600), and make a new key: this one is known.",
                )
    yield from _arguments(job)
    for call in job.calls:
        name = call.program[0].text if call.program else (call.words[0].text if call.words else "")
        whole = (not call.args and name in ("env", "printenv", "set")) or (
            name == "declare" and not call.args
        )
        if name == "env" and call.layers:
            continue
        if (
            whole
            and not call.piped_to
            and not call.redirects
            and call.inside != "substitution"
            and not call.assignments
        ):
            yield RULE.at(
                call.span,
                f"{name} prints every variable into the log, keys and tokens among them.",
                help="Print what you need: env | grep -E 'SLURM|NCCL|MASTER'",
                severity=NOTE,
            )
            return


def _arguments(job: JobScript) -> Iterator[Finding]:
    """Keys as words of a command: ``wandb login KEY``."""
    for call in job.calls:
        login = call.name == "wandb" and bool(call.args) and call.args[0].text == "login"
        for word in call.args:
            text = word.text or ""
            if _KEY.match(text) or (login and re.fullmatch(r"[0-9a-f]{40}", text)):
                yield RULE.at(
                    word.span,
                    "A key stands on the command line, for everyone who sees this script or the process list.",
                    help="Read it from a file of your own (chmod 600), and make a new key: this one is known.",
                )
                return


def _is_secret(item: Assignment) -> bool:
    text = (item.value.text if item.value is not None else None) or ""
    return bool(_NAME.search(item.name)) and bool(_FORM.match(text)) and not _HOLLOW.search(text)
