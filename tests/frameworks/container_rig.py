"""A small image of bash and the libraries of an interpreter that is shown in it by a mount."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from command_rig import ROOT

ROOTS = ROOT / ".cache" / "slurm-root"
CANNOT = 77
PROGRAMS = ("bash", "env", "sh", "cat", "touch", "uname", "hostname", "id")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
FOLDERS = ("dev", "proc", "sys", "tmp", "root", "run", "etc", "var/tmp", "home", "mnt", "opt")
CONDA = """# As in the images of LUMI: what $WITH_CONDA names.
export FLAVOUR="conda $1"
"""
ENVIRONMENT = """export WITH_CONDA='source /opt/conda/bin/activate torch'
"""
SHIM = """#!/bin/bash
# `apptainer exec` in words of charliecloud.
export USER=${USER:-root}
words=(--cd "$PWD")
shift
while [[ $1 == -* ]]; do
  if [[ $1 == --bind ]]; then
    shift
    IFS=: read -r from to _ <<<"$1"
    words+=(--bind "$from:${to:-$from}")
  fi
  shift
done
exec ch-run --write "${words[@]}" "$1" -- "${@:2}"
"""
MARK = "/etc/image-of-allranks"


def shown() -> list[str]:
    """What an image must be shown to run this interpreter: its environment and where that came from."""
    return [str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve())]


def make_image(folder: Path) -> Path:
    """A root with shell, libraries and a mark by which a script knows where it runs."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (folder / target).mkdir(parents=True)
        (folder / name).symlink_to(target)
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    for file in [*programs, *_libraries([*programs, *_of_python()])]:
        place = folder / "usr" / Path(str(file).removeprefix("/usr").lstrip("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    for path in shown():
        (folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "localtime"):
        (folder / "etc" / name).touch()
    shutil.copy("/etc/nsswitch.conf", folder / "etc")
    _write(folder / ".singularity.d/env/90-environment.sh", ENVIRONMENT)
    _write(folder / "opt/conda/bin/activate", CONDA)
    (folder / MARK.lstrip("/")).write_text("a small image\n")
    return folder


def charliecloud(folder: Path) -> Path:
    """A folder with a program of the name ``apptainer`` that runs charliecloud."""
    program = folder / "apptainer"
    _write(program, SHIM)
    program.chmod(0o755)
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def slurm_root(*words: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """scripts/slurm-root; skips the test when it says that it cannot be done here."""
    done = subprocess.run(
        [ROOT / "scripts" / "slurm-root", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip())
    return done


def _of_python() -> list[Path]:
    """The interpreter, its own modules, and torch."""
    modules = Path(os.__file__).parent.glob("lib-dynload/*.so")
    torch = Path(sysconfig.get_path("purelib"), "torch", "lib").glob("libtorch_cpu.so")
    return [Path(sys.executable), *modules, *torch]


def _libraries(files: list[Path]) -> set[Path]:
    """The shared libraries that they load, but for those that come with the mounts."""
    told = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(/\S+) \(0x", told)}
    own = tuple(shown())
    names = [path for path in found if not str(path.resolve()).startswith(own)]
    resolver = [path.parent / "libnss_files.so.2" for path in names if path.name == "libc.so.6"]
    return {path for path in [*names, *resolver] if path.exists()}
