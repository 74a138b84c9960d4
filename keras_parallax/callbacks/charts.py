"""What TensorBoard shows of a window: tags, what they mean, and the first charts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from keras_parallax.callbacks.server_accounts import ServerAccount
from keras_parallax.callbacks.stopwatch import PHASES, Window
from keras_parallax.collectives.load import TableLoad, imbalance

_MB = 1e6
_TITLES = {"allreduce": "All-reduce"}

# Of each group of charts, titles with the unit, and patterns of tags. A chart has few
# tags, for TensorBoard gives a worker one colour in all of them, and one unit.
_CHARTS = {
    "Parallax": {
        "All workers (examples per second)": ["^throughput/all_examples_per_second$"],
        "All workers (tokens per second)": ["^throughput/all_tokens_per_second$"],
        "Each worker (examples per second)": ["^throughput/examples_per_second$"],
        "Time of a step (milliseconds)": ["^step_ms/total$"],
        "Traffic of tables, and its least (megabytes a step)": [
            "^megabytes_a_step/tables(_least)?$"
        ],
        "All-reduce, computed (megabytes a step)": [
            "^megabytes_a_step/allreduce_predicted$"
        ],
    },
    "Parallax: phases of a step": {
        f"{_TITLES.get(phase, phase.capitalize())} (milliseconds a step)": [
            f"^step_ms/{phase}$"
        ]
        for phase in PHASES
        if phase != "callbacks"
    },
    "Parallax: tables and memory": {
        "Alpha (share of rows a step, 0 to 1)": ["^alpha/"],
        "Hit share (ids that need no pull, 0 to 1)": ["^hit_share/"],
        "Imbalance (fullest partition / mean)": ["^imbalance/partitions/"],
        "Memory of a worker (megabytes)": ["^memory_mb/"],
    },
    "Parallax: servers": {
        "Memory of a server (megabytes)": ["^server_memory_mb/"],
        "Busy processors of a server (cores)": ["^server_busy_cores/"],
        "Load of a server (share of pushed rows, 0 to 1)": ["^server_load/"],
    },
}

DESCRIPTIONS = {
    "throughput/examples_per_second": "Examples of this worker, per second.",
    "throughput/all_examples_per_second": "Examples of all workers, per second.",
    "throughput/tokens_per_second": (
        "Elements of this worker's integer sequences, such as words, per second."
    ),
    "throughput/all_tokens_per_second": "The same of all workers.",
    "step_ms/total": "Milliseconds from one step to the next.",
    "step_ms/data": (
        "Milliseconds until a step's batch is there; calling the step, some tenths of "
        "a millisecond, is contained in it."
    ),
    "step_ms/pull": "Milliseconds in which rows of tables are pulled.",
    "step_ms/compute": (
        "Milliseconds of a step in which nothing is pulled, pushed or all-reduced."
    ),
    "step_ms/allreduce": (
        "Milliseconds in which dense gradients are all-reduced; may overlap the push."
    ),
    "step_ms/push": (
        "Milliseconds in which gradients of rows are pushed, until they are applied."
    ),
    "step_ms/wait": (
        "Milliseconds in which this worker has arrived and the last one has not; "
        "contained in pull, all-reduce and push."
    ),
    "step_ms/callbacks": (
        "Milliseconds between two calls of the step: Keras and its callbacks."
    ),
    "megabytes_a_step/tables": (
        "Sent and received for tables by this worker, measured; 1 MB is 10^6 bytes."
    ),
    "megabytes_a_step/tables_least": (
        "The least that it could have been: each row once, its gradient and one id."
    ),
    "megabytes_a_step/allreduce_predicted": (
        "What a ring all-reduce of the dense gradients sends and receives, computed."
    ),
    "memory_mb/resident": "Memory of this worker's process; 1 MB is 10^6 bytes.",
}

# What stands before a name, of a table or server, in a tag.
_DESCRIPTIONS_OF_GROUPS = {
    "alpha": "Share of the table's rows that a step of this worker pushes to, 0 to 1.",
    "hit_share": (
        "Share of the ids that this worker looks up in the table whose row is pulled "
        "for another id of the same lookup already, 0 to 1."
    ),
    "ids_pulled_a_step": "Distinct ids that a step of this worker pulls.",
    "ids_pushed_a_step": "Distinct ids that a step of this worker pushes.",
    "megabytes_by_road": (
        "Rows, gradients and ids that a step of this worker exchanges on the road; "
        "1 MB is 10^6 bytes."
    ),
    "megabytes_by_table": (
        "Rows, gradients and ids of the table that a step of this worker exchanges."
    ),
    "megabytes_predicted": (
        "What the plan predicts that the processes of the busiest machine exchange for "
        "the table in a step."
    ),
    "megabytes_predicted_by_road": "The same of all tables on the road.",
    "partitions": "Partitions that the table is in.",
    "imbalance/partitions": (
        "Rows that this worker has pushed to the fullest partition of the table, by "
        "the mean of its partitions; 1 is even."
    ),
    "imbalance/servers": "The same of servers in place of partitions.",
    "server_load": (
        "Share of the rows that this worker has pushed that fell to the server (or, "
        "where the workers keep the tables, to that worker), 0 to 1."
    ),
    "server_memory_mb": "Memory of the server's process; 1 MB is 10^6 bytes.",
    "server_busy_cores": "Processors that the server's process keeps busy.",
}


def layout(tags: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """The first charts, for a run that has numbers of these tags.

    Returns:
        For each group's title, patterns of tags by the chart's title. There is no
        chart that would stay empty.
    """
    known = list(tags)
    found = {
        group: {
            title: patterns
            for title, patterns in charts.items()
            if any(re.search(p, tag) for p in patterns for tag in known)
        }
        for group, charts in _CHARTS.items()
    }
    return {group: charts for group, charts in found.items() if charts}


def described(tags: Iterable[str]) -> dict[str, str]:
    """What TensorBoard says of each of these tags."""
    return {tag: DESCRIPTIONS.get(tag) or _of_group(tag) for tag in tags}


def _of_group(tag: str) -> str:
    for group, text in _DESCRIPTIONS_OF_GROUPS.items():
        if tag.startswith(f"{group}/"):
            return text
    return ""


def scalars(
    window: Window,
    loads: Sequence[TableLoad],
    plan: Sequence[Mapping],
    resident_bytes: int,
    is_chief: bool,
    servers: Sequence[ServerAccount] = (),
) -> dict[str, float]:
    """The numbers of a window, by tag.

    Args:
        window: The window.
        loads: Where pushed rows have fallen.
        plan: The plan's entries as plain data.
        resident_bytes: Memory of this process.
        is_chief: Whether this worker also tells of all workers.
        servers: What the server processes take, if this worker tells of them.
    """
    found: dict[str, float | None] = {
        "throughput/examples_per_second": window.examples_per_second,
        "throughput/tokens_per_second": window.tokens_per_second or None,
        "step_ms/total": window.seconds * 1e3,
        "megabytes_a_step/tables": window.table_bytes / _MB,
        "megabytes_a_step/tables_least": window.least_bytes / _MB,
        "megabytes_a_step/allreduce_predicted": window.allreduce_bytes / _MB,
        "memory_mb/resident": resident_bytes / _MB,
    }
    for road, number in _bytes_by_road(window, plan).items():
        found[f"megabytes_by_road/{road}"] = number / _MB
    for phase, seconds in window.phases.items():
        found[f"step_ms/{phase}"] = None if seconds is None else seconds * 1e3
    for table in window.tables:
        name = table.variable
        found[f"alpha/{name}"] = table.alpha
        found[f"hit_share/{name}"] = table.hit_share
        found[f"ids_pulled_a_step/{name}"] = table.pulled_ids
        found[f"ids_pushed_a_step/{name}"] = table.pushed_ids
        found[f"megabytes_by_table/{name}"] = table.moved_bytes / _MB
    for load in loads:
        found[f"imbalance/partitions/{load.variable}"] = imbalance(load.by_partition)
        found[f"imbalance/servers/{load.variable}"] = imbalance(load.by_server)
    found |= _of_servers(loads, plan, servers)
    if is_chief:
        found |= _of_all(window, plan)
    return {tag: value for tag, value in found.items() if value is not None}


def _bytes_by_road(window: Window, plan: Sequence[Mapping]) -> dict[str, float]:
    """Rows, gradients and ids of the tables on each road; dense gradients."""
    roads = {entry["variable"]: entry["road"] for entry in plan}
    found: dict[str, float] = {}
    for table in window.tables:
        road = roads.get(table.variable, "servers")
        found[road] = found.get(road, 0.0) + table.moved_bytes
    if window.allreduce_bytes:
        found["allreduce"] = found.get("allreduce", 0.0) + window.allreduce_bytes
    return found


def _of_servers(
    loads: Sequence[TableLoad],
    plan: Sequence[Mapping],
    servers: Sequence[ServerAccount],
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for index, server in enumerate(servers):
        found[f"server_memory_mb/server-{index}"] = server.resident_bytes / _MB
        found[f"server_busy_cores/server-{index}"] = server.busy_cores
    homes = {e["variable"]: e["home"] for e in plan if e["road"] == "servers"}
    kinds = {"dedicated": "server", "peers": "worker"}
    pushed: Counter[str] = Counter()
    for load in loads:
        kind = kinds.get(homes.get(load.variable, ""))
        for holder, rows in zip(load.servers, load.by_partition, strict=True):
            if kind is not None:
                pushed[f"{kind}-{holder}"] += int(rows)
    total = pushed.total()
    return found | {f"server_load/{name}": n / total for name, n in pushed.items() if n}


def _of_all(window: Window, plan: Sequence[Mapping]) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "throughput/all_examples_per_second": window.all_examples_per_second,
        "throughput/all_tokens_per_second": window.all_tokens_per_second or None,
    }
    predicted: Counter[str] = Counter()
    for entry in plan:
        if entry["road"] == "servers":
            found[f"partitions/{entry['variable']}"] = entry["partitions"]
        number = entry.get("predicted_bytes")
        if number is not None:
            found[f"megabytes_predicted/{entry['variable']}"] = number / _MB
            predicted[entry["road"]] += number
    for road, number in predicted.items():
        found[f"megabytes_predicted_by_road/{road}"] = number / _MB
    return found
