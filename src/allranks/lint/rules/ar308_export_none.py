"""--export=NONE reaches srun too."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import launches_under

RULE = Rule(
    id="AR308",
    name="export-none",
    title="srun gives the tasks no variables either",
    why="""#SBATCH --export=NONE sets SLURM_EXPORT_ENV=NONE in the job, and srun obeys it: what the script
    exports, modules and MASTER_ADDR among it, does not reach the tasks. Remove that variable before srun,
    or give srun --export=ALL.""",
    symptoms=("environment variable MASTER_ADDR expected, but not set", "ModuleNotFoundError: No module named 'torch'"),
    bad=example("module load a\nexport MASTER_ADDR=$(hostname)\nsrun python train.py", "--nodes=2", "--export=NONE"),
    good=example(
        "unset SLURM_EXPORT_ENV\nmodule load pytorch\nexport MASTER_ADDR=$(hostname)\nsrun python train.py",
        "--nodes=2", "--export=NONE",
    ),
    clean=(
        example("srun --export=ALL python train.py", "--export=NONE"),
        example("export SLURM_EXPORT_ENV=ALL\nsrun python train.py", "--export=NONE"),
        example("srun python train.py", "--export=ALL"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Find srun after ``--export=NONE`` without --export=ALL."""
    option = job.allocation.options.find("export")
    if (
        option is None
        or (job.option("export") or "").upper() != "NONE"
        or "SLURM_EXPORT_ENV" in job.source.text
    ):
        return
    for launch in launches_under(job, "srun"):
        if launch.step is None or launch.step.options.has("export", "export-file"):
            continue
        yield RULE.at(
            option.span,
            f"The tasks of line {launch.step.span.line} get none of the variables that this script sets.",
            help="Write unset SLURM_EXPORT_ENV before srun, or srun --export=ALL.",
            severity=WARNING,
            related=[launch.step.span],
        )
        return
