"""Any text is read without a crash: real scripts, cut, mixed and broken."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.lint.fixes import fixed_text
from allranks.lint.job_explanation import explain
from allranks.lint.linter import BROKEN, LintReport, lint_text
from allranks.lint.registry import all_rules
from allranks.lint.text_output import Painter, show

TEXTS = [
    text
    for each in all_rules()
    if each.script is not None
    for text in (each.rule.bad, each.rule.good, *each.rule.clean)
]
LINES = sorted({line for text in TEXTS for line in text.splitlines()})
ODD = [
    "'", '"', "`", "$(", "${", "$((", "))", "}", ")", "\\", "\\\n", "<<EOF\n", "EOF\n", "&&", "|", ";;", "\r\n", "\0",
    "{{ x }}", "#SBATCH ", "##SBATCH ", "srun ", "bash -c '", "\u2013", "\U0001f600", "$@", "${a[@]}", "function f {",
    "if ", "then ", "fi\n", "for i in ", "do\n", "done\n", "case x in ", "esac\n", "(", "((", "[[ ", " ]]", "\t", "&\n",
]  # fmt: skip


def _survives(text: str) -> LintReport:
    report = lint_text("job.sh", text)
    assert not [each.message for each in report.findings if each.rule == BROKEN]
    for each in report.findings:
        assert 0 <= each.span.start <= each.span.end
        assert each.span.line >= 1
    list(show(report.findings, Painter(False)))
    for job in report.jobs:
        explain(job)
    source = report.sources[0]
    fixed_text(source, [each for each in report.findings if each.source is source])
    return report


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS), st.data())
def test_a_script_with_a_piece_cut_out(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    _survives(text[:start] + text[end:])


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(ODD)), max_size=5)
)
def test_a_script_with_odd_pieces_put_in(text: str, pieces: list[tuple[float, str]]) -> None:
    for where, piece in pieces:
        at = int(where * len(text))
        text = text[:at] + piece + text[at:]
    _survives(text)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(LINES) | st.sampled_from(ODD), max_size=25))
def test_lines_of_many_scripts_mixed(lines: list[str]) -> None:
    _survives("#!/bin/bash\n" + "\n".join(lines))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    _survives(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#!/bin/bash\n",
        "(" * 3000,
        "$(" * 2000 + ")" * 2000,
        "if true; then\n" * 500,
        "a=1; " * 5000,
        "x=$x$x$x\n" * 30,
        "f() { f; f; }\nf\n",
        "f() { g; g; }\ng() { h; h; }\nh() { f; f; }\nf\n",
        'a="$a $a"\n' * 40 + "srun $a\n",
        'bash -c \'bash -c "bash -c \\"bash -c x\\""\'\n',
        "#SBATCH --nodes=99999999999999999999\nsrun python train.py\n",
        "#SBATCH --nodes=0 --ntasks=0\nsrun torchrun --nnodes=0 --nproc_per_node=0 train.py\n",
        "#SBATCH -N 2\nsrun torchrun --nnodes=$((1/0)) --nproc_per_node=$((2**99999)) train.py\n",
        "source ~nobody-of-this-name/x.sh\nbash ~nobody-of-this-name/y.sh\n",
        "eval eval eval eval 'eval x'\n",
        "#SBATCH -N 2\nsrun \\ \n  python train.py\nmpirun \\ \n",
        "\ufeff#!/bin/bash\n#SBATCH -N 1\n",
    ],
)
def test_texts_that_are_hard(text: str) -> None:
    _survives(text)
