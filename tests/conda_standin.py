"""A conda that keeps to the activation protocol of the real one, for tests where none can be installed.

As since conda 4.6: ``etc/profile.d/conda.sh`` defines a function; the program prints shell text, which the
function evaluates; the text sources the scripts that packages left in ``etc/conda/activate.d``. Without
that file ``conda activate`` is an error. The environments are virtual ones.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = r"""#!/bin/bash
root='@ROOT@'
say() { printf '%s\n' "$@"; }
activate() {
  local name=${1:-base} prefix path=$PATH script
  case $name in
    */*) prefix=$name ;;
    base) prefix=$root ;;
    *) prefix=$root/envs/$name ;;
  esac
  if [[ ! -d $prefix/conda-meta ]]; then
    if [[ $name == */* ]]; then
      say '' "EnvironmentLocationNotFound: Not a conda environment: $name" '' >&2
    else
      say '' "EnvironmentNameNotFound: Could not find conda environment: $name" \
        'You can list all discoverable environments with `conda info --envs`.' '' >&2
    fi
    exit 1
  fi
  if [[ -n ${CONDA_PREFIX-} ]]; then path=${path//"$CONDA_PREFIX/bin:"/}; fi
  say "PS1='($name) '" "export PATH='$prefix/bin:$path'" "export CONDA_PREFIX='$prefix'" \
    "export CONDA_SHLVL='$((${CONDA_SHLVL:-0} + 1))'" "export CONDA_DEFAULT_ENV='$name'"
  for script in "$prefix"/etc/conda/activate.d/*.sh; do
    if [[ -e $script ]]; then say ". \"$script\""; fi
  done
}
case "${1-} ${2-}" in
  'info --base') say "$root" ;;
  'shell.posix activate') activate "${3-}" ;;
  'activate '*) say '' "CondaError: Run 'conda init' before 'conda activate'" '' >&2; exit 1 ;;
  *) say "conda: not part of the stand-in: $*" >&2; exit 2 ;;
esac
"""
PROFILE = r"""export CONDA_EXE='@ROOT@/bin/conda'
export CONDA_PYTHON_EXE='@ROOT@/bin/python'
__conda_exe() (
    "$CONDA_EXE" "$@"
)
__conda_activate() {
    \local ask
    ask="$(PS1="${PS1:-}" __conda_exe shell.posix "$@")" || \return
    \eval "$ask"
    \hash -r
}
conda() {
    case "${1:-}" in
        activate|deactivate) __conda_activate "$@" ;;
        *) __conda_exe "$@" ;;
    esac
}
if [ -z "${CONDA_SHLVL+x}" ]; then
    \export CONDA_SHLVL=0
    case ":$PATH:" in
        *":@ROOT@/condabin:"*) ;;
        *) PATH="@ROOT@/condabin:$PATH"; \export PATH ;;
    esac
fi
"""
OF_A_PACKAGE = """# As compilers and libraries leave it: variables that nobody set, a test that fails at the end.
export FLAVOUR="conda $CONDA_DEFAULT_ENV"
OLD_CFLAGS=$CFLAGS
[ -n "$MKL_INTERFACE_LAYER" ] && export OLD_LAYER=$MKL_INTERFACE_LAYER
"""


def make_conda(root: Path, *names: str, python: bool = True) -> Path:
    """A root with the environments of these names, and base; ``python``: a working one in each."""
    for prefix in (root, *(root / "envs" / name for name in names)):
        if python:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
        else:
            (prefix / "bin").mkdir(parents=True)
            (prefix / "bin/python").symlink_to(sys.executable)
        _write(prefix / "conda-meta/history", "")
        _write(prefix / "etc/conda/activate.d/package.sh", OF_A_PACKAGE)
    for path in (root / "bin/conda", root / "condabin/conda"):
        _write(path, PROGRAM.replace("@ROOT@", str(root)))
        path.chmod(0o755)
    _write(root / "etc/profile.d/conda.sh", PROFILE.replace("@ROOT@", str(root)))
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
