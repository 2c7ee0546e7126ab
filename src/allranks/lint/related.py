"""The files that a job script brings in: the training script, DeepSpeed's and accelerate's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from allranks.lint.config_file import ConfigFile
from allranks.lint.job_script import JobScript
from allranks.lint.launches import ACCELERATE, Launch
from allranks.lint.options import plain_options
from allranks.lint.python_file import PythonFile
from allranks.lint.shell.model import Word
from allranks.lint.source import Source
from allranks.lint.walk import file_reader

_DEEPSPEED = ("deepspeed-config", "deepspeed", "ds-config")


@dataclass
class Launched:
    """A launch with the files that it names and that are here."""

    job: JobScript
    launch: Launch
    python: PythonFile | None = None
    configs: list[ConfigFile] = field(default_factory=list)


def launched_files(job: JobScript) -> Iterator[Launched]:
    """Each launch of a job, where at least one of its files can be read."""
    read = file_reader(job.folder)
    for launch in job.launches:
        found = Launched(job, launch)
        name = launch.script.text if launch.script is not None else None
        if name and launch.module:
            name = name.replace(".", "/") + ".py"
        if name and name.endswith(".py"):
            source = read(name, launch.call.shell.source)
            found.python = PythonFile(source) if source else None
        for path in _configs(launch):
            source = read(path, launch.call.shell.source)
            if source is not None:
                found.configs.append(ConfigFile(Source(path, source.text, source.path), named=True))
        if found.python is not None or found.configs:
            yield found


def _configs(launch: Launch) -> Iterator[str]:
    if launch.kind == ACCELERATE and (file := launch.options.text("config-file")):
        yield file
    if file := launch.options.text("deepspeed-config-file"):
        yield file
    options, _ = plain_options(_only_options(launch), (), None)
    for item in options.items:
        text = item.value.text if item.value is not None else None
        if item.name in _DEEPSPEED and text and text.endswith(".json"):
            yield text


def _only_options(launch: Launch) -> list[Word]:
    """The script's arguments without those that stand alone, so that none ends the options."""
    words = list(launch.args)
    return [
        word
        for index, word in enumerate(words)
        if word.start.startswith("-")
        or (index and words[index - 1].start.startswith("-") and "=" not in words[index - 1].start)
    ]
