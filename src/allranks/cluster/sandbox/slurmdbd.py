"""Accounting: a MariaDB of the sandbox's own, and slurmdbd in front of it."""

from __future__ import annotations

import os
import subprocess

from allranks.cluster.sandbox import daemons
from allranks.cluster.sandbox import slurm_conf as render
from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_record import Record
from allranks.errors import SandboxError


def start(record: Record, layout: Layout, deadline: float) -> None:
    """Start both, from an empty database, and enter the cluster."""
    user = daemons.user_name()
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
            "The sandbox did not start: mariadb-install-db failed. Its last words:\n"
            f"{layout.last_words('mariadb-install-db')}\nStart it without --accounting."
        )


def _start_database(layout: Layout, user: str, deadline: float) -> None:
    pid = daemons.start(
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
    daemons.wait_for(
        lambda: daemons.client(layout, *words) is not None, layout, {"mariadbd": pid}, deadline
    )


def _start_slurmdbd(record: Record, layout: Layout, user: str, deadline: float) -> None:
    conf = layout.root / "etc/slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(render.slurmdbd_conf(record, layout, user))
    # For host "localhost" the database's library takes the socket from this variable.
    pid = daemons.start(layout, "slurmdbd", "-D", MYSQL_UNIX_PORT=str(layout.database_socket))
    words = ("sacctmgr", "-nP", "show", "cluster")
    daemons.wait_for(
        lambda: daemons.client(layout, *words) is not None, layout, {"slurmdbd": pid}, deadline
    )
    daemons.client(layout, "sacctmgr", "-i", "add", "cluster", "sandbox")
