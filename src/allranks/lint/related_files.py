"""The files that a job script brings in: the training script, DeepSpeed's and accelerate's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from allranks.lint.config_file import ConfigFile
from allranks.lint.evaluation.trace import file_reader
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE, Launch
from allranks.lint.python_file import PythonFile

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
                found.configs.append(ConfigFile(source, named=True))
        if found.python is not None or found.configs:
            yield found


def _configs(launch: Launch) -> Iterator[str]:
    if launch.kind == ACCELERATE and (file := launch.options.text("config-file")):
        yield file
    if file := launch.options.text("deepspeed-config-file"):
        yield file
    words = launch.args
    for index, word in enumerate(words):
        name, equals, value = word.start.partition("=")
        if name.lstrip("-").replace("_", "-") not in _DEEPSPEED or not name.startswith("-"):
            continue
        following = words[index + 1].text if index + 1 < len(words) else None
        text = value if equals and word.text is not None else following
        if text and text.endswith(".json"):
            yield text
