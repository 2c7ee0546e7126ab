"""Start the daemons of a sandbox, and wait until each one is ready."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from allranks.cluster.sandbox import isolation
from allranks.cluster.sandbox import sandbox_processes as processes
from allranks.cluster.sandbox import slurm_conf as render
from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxRecord
from allranks.errors import SandboxError


def user_name() -> str:
    """Return the user that the daemons run as. Slurm knows users by name only."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise SandboxError(
            f"The sandbox runs as you, but uid {os.geteuid()} is not in the user database; Slurm "
            "needs a name.\nAdd it (useradd), or run as a user that `getent passwd` knows."
        ) from None


def write_files(record: SandboxRecord, layout: Layout) -> None:
    """Write configuration, key and fake GPUs."""
    layout.make_folders(record.nodes)
    key = layout.root / "munge/munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    for index in range(record.config.gpus):
        (layout.root / f"dev/gpu{index}").symlink_to("/dev/null")
    layout.slurm_conf.write_text(render.slurm_conf(record, layout, user_name()))
    (layout.root / "etc/gres.conf").write_text(render.gres_conf(record, layout))
    existing = Path("/etc/hosts")
    text = existing.read_text(errors="replace") if existing.exists() else ""
    layout.hosts.write_text(render.hosts(record, socket.gethostname(), text))


def start_munge(layout: Layout, deadline: float) -> None:
    """Start the daemon that signs every message."""
    folder = layout.root / "munge"
    pid = start(
        layout,
        "munged",
        "--foreground",
        f"--key-file={folder}/munge.key",
        f"--socket={layout.munge_socket}",
        f"--pid-file={folder}/pid",
        f"--log-file={layout.log('munged')}",
        f"--seed-file={folder}/seed",
        "--num-threads=4",
    )
    wait_for(lambda: _accepts(layout.munge_socket), layout, {"munged": pid}, deadline)


def start_controller(record: SandboxRecord, layout: Layout, deadline: float) -> int:
    """Start slurmctld."""
    pid = start(layout, "slurmctld", "-D", "-f", str(layout.slurm_conf))
    address = (record.block.controller, record.port)
    wait_for(lambda: listens(*address), layout, {"slurmctld": pid}, deadline)
    return pid


def start_node(record: SandboxRecord, layout: Layout, node: str) -> int:
    """Start a node; it may take a moment to be ready."""
    index, block = record.index(node), record.block
    slurmd = [programs.path_of("slurmd"), "-D", "-N", node, "-f", str(layout.slurm_conf)]
    if record.isolation == "plain":
        return processes.spawn(slurmd, layout, node, _path())
    apart = record.isolation == "network"
    argv = isolation.enter(node, str(layout.hosts), block.address(index), slurmd, apart)
    pid = processes.spawn(argv, layout, node, _path())
    if apart:
        deadline = time.monotonic() + 20
        wait_for(lambda: bool(processes.children(pid)), layout, {node: pid}, deadline)
        isolation.connect_node(block, index, processes.children(pid)[0])
    return pid


def start(layout: Layout, program: str, *words: str, **extra: str) -> int:
    """Start a program whose role is its name."""
    return processes.spawn(
        [programs.path_of(program), *words], layout, program, {**_path(), **extra}
    )


def wait_for(
    ready: Callable[[], bool], layout: Layout, pids: dict[str, int], deadline: float
) -> None:
    """Wait until ``ready()``; SandboxError at the deadline or when one of the daemons exits."""
    while not ready():
        dead = [role for role, pid in pids.items() if not processes.alive(pid)]
        late = time.monotonic() > deadline
        if dead or late:
            role = dead[0] if dead else next(iter(pids))
            what = "exited while starting" if dead else "was not ready in time"
            raise SandboxError(
                f"The sandbox did not start: {role} {what}. The end of its log:\
"
                f"{layout.last_words(role)}\n"
                "Nothing was left behind. Change what it names (--set KEY=VALUE) and try again."
            )
        time.sleep(0.03)


def client(layout: Layout, *argv: str, timeout: float = 10) -> str | None:
    """Run a Slurm client and return its output; None when it fails or does not answer."""
    clean = {key: value for key, value in os.environ.items() if not is_slurm_variable(key)}
    environment = {**clean, **_path(), "SLURM_CONF": str(layout.slurm_conf)}
    try:
        done = subprocess.run(
            [programs.path_of(argv[0]), *argv[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def is_slurm_variable(name: str) -> bool:
    """Return whether a variable configures Slurm's programs, and so must not come from another cluster."""
    prefixes = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_")
    return name.startswith(prefixes)


def listens(address: str, port: int) -> bool:
    """Return whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _path() -> dict[str, str]:
    return {"PATH": programs.search_path()}


def start_accounting(record: SandboxRecord, layout: Layout, deadline: float) -> None:
    """Start MariaDB with an empty database and slurmdbd in front of it, and add the cluster."""
    user = user_name()
    _install_database(layout, user)
    _start_database(layout, user, deadline)
    _start_slurmdbd(record, layout, user, deadline)


def _install_database(layout: Layout, user: str) -> None:
    (layout.root / "db").mkdir()
    command = [
        programs.path_of("mariadb-install-db"),
        "--no-defaults",
        f"--datadir={layout.root}/db/data",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={user}",
        "--skip-test-db",
        *([f"--user={user}"] if os.geteuid() == 0 else []),
    ]
    with open(layout.output("mariadb-install-db"), "wb") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=layout.root / "db"
        )
    if done.returncode != 0:
        raise SandboxError(
            "The sandbox did not start: mariadb-install-db failed. The end of its log:\
"
            f"{layout.last_words('mariadb-install-db')}\nStart it without --accounting."
        )


def _start_database(layout: Layout, user: str, deadline: float) -> None:
    pid = start(
        layout,
        "mariadbd",
        "--no-defaults",
        f"--datadir={layout.root}/db/data",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.root}/run/mariadbd.pid",
        "--skip-networking",
        # Small and quick: nothing in it outlives the sandbox.
        "--innodb-buffer-pool-size=64M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-lock-wait-timeout=900",
        *([f"--user={user}"] if os.geteuid() == 0 else []),
    )
    create = "CREATE DATABASE IF NOT EXISTS slurm_acct_db"
    words = ("mariadb", "--no-defaults", f"--socket={layout.database_socket}", "-e", create)
    wait_for(lambda: client(layout, *words) is not None, layout, {"mariadbd": pid}, deadline)


def _start_slurmdbd(record: SandboxRecord, layout: Layout, user: str, deadline: float) -> None:
    conf = layout.root / "etc/slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(render.slurmdbd_conf(record, layout, user))
    # For host "localhost" the database's library takes the socket from this variable.
    pid = start(layout, "slurmdbd", "-D", MYSQL_UNIX_PORT=str(layout.database_socket))
    words = ("sacctmgr", "-nP", "show", "cluster")
    wait_for(lambda: client(layout, *words) is not None, layout, {"slurmdbd": pid}, deadline)
    client(layout, "sacctmgr", "-i", "add", "cluster", "sandbox")
