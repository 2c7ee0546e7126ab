"""allranks convert: a job script as an allranks.toml."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write it here, such as allranks.toml [default: standard output].",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the file that --output names.")
def convert(file: Path, output: Path | None, force: bool) -> int:
    """Turn a job script into an allranks.toml, and list what could not be carried over.

    \b
        allranks convert job.sh -o allranks.toml
        allranks script --config allranks.toml
    """
    from allranks.errors import UsageError
    from allranks.lint.conversion import convert as convert_job
    from allranks.lint.conversion import to_toml
    from allranks.lint.job_script import JobScript
    from allranks.lint.linter import read_source

    job = JobScript(read_source(file))
    found = convert_job(job)
    text = to_toml(job, found)
    if output is None:
        click.echo(text, nl=False)
    else:
        if output.exists() and not force:
            raise UsageError(f"{output} is there already. Use --force to overwrite it.")
        output.write_text(text, encoding="utf-8")
    for line, words, why in found.left:
        click.echo(
            f"{file}:{line}: not carried over: {' '.join(words.split())[:60]} ({why})", err=True
        )
    return 0
