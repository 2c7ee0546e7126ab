"""The configuration files of a sandbox, as text. Every line is valid in Slurm 22.05 to 26.05."""

from __future__ import annotations

from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxConfig, SandboxRecord


def slurm_conf(record: SandboxRecord, layout: Layout, user: str) -> str:
    """Render slurm.conf: the settings (the caller's override), the nodes, two partitions."""
    settings = {
        **_daemons(record, layout, user),
        **_SCHEDULING,
        **_memory(record.config),
        **_TIMES,
        **(_accounting(record, layout) if record.config.accounting else _no_accounting(layout)),
    }
    lines = [f"{key}={value}" for key, value in _override(settings, record.config).items()]
    lines += [_node(record, index) for index in range(1, record.config.nodes + 1)]
    return "\n".join([*lines, *_partitions(record.config)]) + "\n"


def gres_conf(record: SandboxRecord, layout: Layout) -> str:
    """Render gres.conf with the fake GPUs. Slurm requires character devices, and follows links."""
    config = record.config
    if not config.gpus:
        return ""
    last = config.gpus - 1
    files = f"{layout.root}/dev/gpu" + (f"[0-{last}]" if last else "0")
    kind = f"Type={config.gpu_type} " if config.gpu_type else ""
    # Without the flag a job gets the variables of every vendor.
    return (
        f"NodeName={','.join(record.nodes)} Name=gpu {kind}File={files} "
        f"Flags={config.gpu_env}_gpu_env\n"
    )


def slurmdbd_conf(record: SandboxRecord, layout: Layout, user: str) -> str:
    """Render slurmdbd.conf: accounting in a database that only listens on its own socket."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            f"DbdAddr={record.block.controller}",
            f"DbdPort={record.block.database_port}",
            f"SlurmUser={user}",
            f"LogFile={layout.log('slurmdbd')}",
            f"PidFile={layout.root}/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={user}",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def hosts(record: SandboxRecord, machine: str, existing: str) -> str:
    """Render /etc/hosts of a node: the nodes, then this machine's file."""
    block = record.block
    ours = ["127.0.0.1 localhost", "::1 localhost"]
    ours += [f"{block.address(index)} {node}" for index, node in enumerate(record.nodes, start=1)]
    ours.append(f"{block.controller} {machine}")
    names = {*record.nodes, "localhost", machine}
    kept = [
        line
        for line in existing.splitlines()
        if line.strip() and not names & set(line.partition("#")[0].split()[1:])
    ]
    return "\n".join([*ours, *kept]) + "\n"


def _daemons(record: SandboxRecord, layout: Layout, user: str) -> dict[str, str]:
    root = layout.root
    return {
        "ClusterName": "sandbox",
        "SlurmctldHost": f"localhost({record.block.controller})",
        "SlurmctldPort": str(record.port),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        # A requeued job waits until its old credential has expired: 120 s by default.
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        # Nodes share /tmp here; PMIx wants a folder of each node's own.
        "TmpFS": f"{root}/spool/%n",
        "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
        "SlurmdPidFile": f"{root}/run/%n.pid",
        "SlurmctldLogFile": str(layout.log("slurmctld")),
        "SlurmdLogFile": f"{root}/log/%n.log",
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "MailProg": "/bin/true",
    }


_SCHEDULING = {
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "SwitchType": "switch/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    # Nodes may claim more than this machine has.
    "SlurmdParameters": "config_overrides",
    "ReturnToService": "2",
    "JobRequeue": "1",
    "GresTypes": "gpu",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    # PreemptParameters=send_user_signal would be fatal on 22.05; this spelling works on all.
    "SlurmctldParameters": "idle_on_node_suspend,preempt_send_user_signal",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": (
        "bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=0"
    ),
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "1",
}

_TIMES = {
    "SlurmdTimeout": "10",
    "SlurmctldTimeout": "10",
    "MessageTimeout": "5",
    "TCPTimeout": "1",
    "KillWait": "3",
    "UnkillableStepTimeout": "30",
    "CompleteWait": "0",
    "InactiveLimit": "0",
    "MinJobAge": "300",
}


def _memory(config: SandboxConfig) -> dict[str, str]:
    return {"DefMemPerCPU": str(max(1, min(100, config.memory // config.cpus)))}


def _accounting(record: SandboxRecord, layout: Layout) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": record.block.controller,
        "AccountingStoragePort": str(record.block.database_port),
        # Clients of slurmdbd do not read AuthInfo.
        "AccountingStoragePass": f"socket={layout.munge_socket}",
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment,job_env,job_script",
    }


def _no_accounting(layout: Layout) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{layout.root}/log/jobcomp.txt",
    }


def _override(settings: dict[str, str], config: SandboxConfig) -> dict[str, str]:
    """Return the settings with the caller's on top; Slurm ignores case."""
    spelling = {key.lower(): key for key in settings}
    merged = dict(settings)
    for key, value in config.settings.items():
        merged[spelling.get(key.lower(), key)] = value
    return {key: value for key, value in merged.items() if value}


def _node(record: SandboxRecord, index: int) -> str:
    config, block = record.config, record.block
    kind = f"{config.gpu_type}:" if config.gpu_type else ""
    gres = f"Gres=gpu:{kind}{config.gpus} " if config.gpus else ""
    host = "localhost" if record.isolation == "plain" else f"node{index}"
    return (
        f"NodeName=node{index} NodeHostname={host} NodeAddr={block.address(index)} "
        f"Port={block.node_port(index)} CPUs={config.cpus} Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket={config.cpus} ThreadsPerCore=1 RealMemory={config.memory} "
        f"{gres}State=UNKNOWN"
    )


def _partitions(config: SandboxConfig) -> list[str]:
    shared = "Nodes=ALL DefaultTime=10 MaxTime=INFINITE State=UP"
    return [
        f"PartitionName=main Default=YES PriorityTier=10 {shared}",
        f"PartitionName=low PriorityTier=1 PreemptMode=REQUEUE GraceTime={config.grace} {shared}",
    ]
