"""``conda activate`` needs conda's shell function."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR509",
    name="conda-activate",
    title="conda activate may not work in a batch shell",
    why="""conda activate is a function that ~/.bashrc defines for interactive shells. A batch shell does not
    read that file unless it is a login shell (#!/bin/bash -l): the line fails, the script goes on, and
    python is another one than you expect. It works where the shell that submits exported the function.""",
    severity=NOTE,
    symptoms=(
        "CommandNotFoundError: Your shell has not been properly configured",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    bad=example("conda activate torch\nsrun python train.py", "--nodes=1"),
    good=example(
        "source ~/miniconda3/etc/profile.d/conda.sh\nconda activate torch\nsrun python train.py",
        "--nodes=1",
    ),
    clean=(
        example(
            "conda activate torch\nsrun python train.py", "--nodes=1", shebang="#!/bin/bash -l"
        ),
        example(
            'eval "$(conda shell.bash hook)"\nconda activate torch\nsrun python train.py',
            "--nodes=1",
        ),
        example("module load anaconda\nconda activate torch\nsrun python train.py", "--nodes=1"),
        example("source activate torch\nsrun python train.py", "--nodes=1"),
        example(
            "module purge\nmodule load conda\nconda activate torch\nsrun python train.py",
            "--nodes=1",
        ),
    ),
)
_EMPTY = ("purge", "list", "avail", "use", "reset", "unload")
_PREPARED = re.compile(
    r"conda\.sh|bashrc|bash_profile|\.profile\b|conda shell|__conda_setup|condarc|hook|setup",
    re.I,
)


def check(job: JobScript) -> Iterator[Finding]:
    """The first ``conda activate`` with nothing before it that could define it."""
    if not job.is_batch or re.match(r"#!\s*\S+(\s+\S+)?\s+-\w*[li]", job.source.line(1)):
        return
    for call in job.calls:
        if call.name in ("module", "ml") and call.args and call.args[0].text in _EMPTY:
            continue
        if call.name in ("module", "ml", "spack", "source", ".", "eval") or _PREPARED.search(
            call.span.text
        ):
            return
        if call.name in ("conda", "mamba") and call.args and call.args[0].text == "activate":
            yield RULE.at(
                call.span,
                "Nothing above it defines conda activate in this shell.",
                help='Write before it: eval "$(conda shell.bash hook)", or begin the script with #!/bin/bash -l.',
            )
            return
