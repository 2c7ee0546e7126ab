"""The rendezvous in a job script: an address and a port that all nodes reach."""

from __future__ import annotations

from allranks.core.shell import quote
from allranks.job.plan import Plan

# Below the ephemeral range (32768 and up), so that no outgoing connection takes the port in between;
# sixteen ports per job, so that jobs with neighbouring ids stay apart on a shared node.
PORT_OF_JOB = "$((20000 + SLURM_JOB_ID * 16 % 12000))"
PORT_OF_RUN = "$((20000 + (SLURM_JOB_ID + $$) * 16 % 12000))"  # several runs in one allocation


def next_port(first: str) -> str:
    """Return another first port for each restart: the old one may still be in use for a while."""
    return f"$(({first} + restarted))"


def rendezvous_lines(plan: Plan, first_port: str = PORT_OF_JOB) -> list[str]:
    """Return the lines that set MASTER_ADDR, MASTER_PORT, endpoint and the network interface."""
    several = plan.shape.nodes > 1
    port = str(plan.job.port or first_port)
    lines = _several_nodes(plan, port) if several else _one_node(plan, port)
    lines += [
        "export MASTER_ADDR MASTER_PORT",
        f"export WORLD_SIZE={plan.shape.world_size} LOCAL_WORLD_SIZE={plan.shape.ranks_per_node}",
    ]
    return lines


def _one_node(plan: Plan, port: str) -> list[str]:
    lines = ["# One node: loopback, and a port that is free."]
    lines += ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"]
    if not plan.job.port:
        lines += [
            'while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do',
            "  MASTER_PORT=$((MASTER_PORT + 1))",
            "done",
        ]
    return [*lines, "export endpoint=$MASTER_ADDR:$MASTER_PORT"]


def _several_nodes(plan: Plan, port: str) -> list[str]:
    return [
        "# An address of the head node that the others reach by route, and a port that is free there.",
        *_FIND_ENDPOINT,
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "if ((${#hosts[@]} == 0)); then exit 1; fi  # scontrol has printed why",
        *_head(plan),
        'find=(find_endpoint "$head" "$other" ' + f"{_interface(plan)} {port})",
        'if [[ $head != "${SLURMD_NODENAME:-}" ]]; then',
        "  export -f find_endpoint",
        '  find=(srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" bash -c \'find_endpoint "$@"\' "${find[@]}")',
        "fi",
        'if ! read -r MASTER_ADDR MASTER_PORT interface < <("${find[@]}"); then',
        '  echo "No address of $head was found that the other nodes reach." >&2',
        "  exit 1",
        "fi",
        *([f"MASTER_PORT={plan.job.port}  # as requested"] if plan.job.port else []),
        "export interface endpoint=$MASTER_ADDR:$MASTER_PORT",
        "if [[ $MASTER_ADDR == *:* ]]; then endpoint=[$MASTER_ADDR]:$MASTER_PORT; fi  # IPv6",
    ]


_FIND_ENDPOINT = [
    "find_endpoint() {  # head, another node, interface or '', first port to try",
    "  local address='' device=$3 port=$4 route",
    "  if [[ -n $device ]]; then",
    '    address=$(ip -o addr show dev "$device" scope global | awk \'NR == 1 { sub("/.*", "", $4); print $4 }\')',
    "  else",
    '    route=$(ip -o route get "$(getent ahosts "$2" | awk \'NR == 1 { print $1 }\')" 2>/dev/null || true)',
    "    if [[ $route =~ \\ dev\\ ([^ ]+) ]]; then device=${BASH_REMATCH[1]}; fi",
    "    if [[ $route =~ \\ src\\ ([^ ]+) ]]; then address=${BASH_REMATCH[1]}; fi",
    "  fi",
    "  if [[ -z $address || $device == lo ]]; then address=$1 device=; fi",
    '  while (: <>"/dev/tcp/$address/$port") 2>/dev/null || (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do',
    "    port=$((port + 1))",
    "  done",
    '  echo "$address" "$port" "$device"',
    "}",
]


def _interface(plan: Plan) -> str:
    return quote(plan.job.interface or "")


def _head(plan: Plan) -> list[str]:
    if not plan.job.head:
        return ["head=${hosts[0]} other=${hosts[-1]}"]
    name = plan.job.head
    return [
        f"head={quote(name)}",
        "export head_index=-1",
        'for index in "${!hosts[@]}"; do',
        '  if [[ ${hosts[index]} == "$head" ]]; then head_index=$index; fi',
        "done",
        "if ((head_index < 0)); then",
        '  echo "Head node $head is not part of the allocation: ${hosts[*]}" >&2',
        "  exit 1",
        "fi",
        "other=${hosts[head_index == 0 ? -1 : 0]}",
    ]


INTERFACE = [
    "if [[ -n $interface && -e /sys/class/net/$interface ]]; then",
    "  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}",
    "  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}",
    "fi",
]
"""Use the network interface that leads to the head node, unless the user or the site set another."""


def task_lines(plan: Plan) -> list[str]:
    """Return the lines by which every task sets its node's rank and network interface."""
    if plan.shape.nodes == 1:
        return ["export NODE_RANK=$SLURM_NODEID"]
    rank = "$SLURM_NODEID"
    if plan.job.head:
        rank = f"$(((SLURM_NODEID - head_index + {plan.shape.nodes}) % {plan.shape.nodes}))"
    return [f"export NODE_RANK={rank}", *INTERFACE]
