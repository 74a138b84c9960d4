"""`keras-parallax plan`: the plan for a cluster that one does not have."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_parallax.errors import ConfigError

if TYPE_CHECKING:
    from keras_parallax.cli.dry_run import Observed
    from keras_parallax.plan.network import Cluster
    from keras_parallax.plan.prediction import Prediction, System

_DESCRIPTION = """\
Predicts the plan, the bytes and the step time of a model on a cluster, without the
cluster and without making the model's tables.

MODEL.py is a Python file that defines two functions:

  build_model()   returns a compiled Keras model
  sample_batch()  returns ONE worker's batch of one step: a tuple (x, y), or x alone
                  where the model makes its own loss; called a few times, and better
                  with other examples each time

The step is run on these batches, on this machine, with tables that hold nothing: it
shows which rows are touched, and how long a step computes. A script that trains under
`if __name__ == "__main__":` can be its own model file.
"""


def add_parser(commands) -> None:
    """Adds the `plan` command to the subparsers of the main parser."""
    parser = commands.add_parser(
        "plan",
        help="Predict plan, bytes and step time on a cluster, from a model file.",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL.py", help="The model file.")
    parser.add_argument(
        "--workers", type=int, required=True, metavar="N", help="Number of workers."
    )
    parser.add_argument(
        "--machines",
        type=int,
        metavar="M",
        help="Machines that they share evenly (as many as workers).",
    )
    parser.add_argument(
        "--bandwidth",
        required=True,
        metavar="B",
        help="Of a machine's link in each direction, such as 100Gbit or 1.2GB/s; "
        "what an exchange attains, which can be far less than the link's name says.",
    )
    parser.add_argument(
        "--latency",
        metavar="T",
        help="Until a small message has reached another machine, such as 50us (100us).",
    )
    parser.add_argument(
        "--network",
        default="",
        metavar="NAME=VALUE,...",
        help="More of the kind: local_bandwidth, local_latency, call, memory.",
    )
    parser.add_argument(
        "--servers",
        type=int,
        metavar="S",
        help="Server processes, where they are used (one a machine).",
    )
    parser.add_argument(
        "--compute-seconds",
        type=float,
        metavar="T",
        help="What one worker computes in a step; measured here otherwise.",
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="Memory of a worker for copies of variables and their slots.",
    )
    parser.add_argument(
        "--samples", type=int, default=4, metavar="N", help="Batches to look at (4)."
    )
    parser.add_argument(
        "--json", action="store_true", help="Print JSON instead of tables."
    )
    parser.set_defaults(handler=plan)


def plan(arguments: argparse.Namespace) -> int:
    """Predicts and prints; returns the exit status."""
    cluster = _cluster(arguments)
    # TensorFlow takes seconds to be imported, and a wrong argument need not wait.
    from keras_parallax.cli import dry_run
    from keras_parallax.plan.prediction import predict

    build_model, sample_batch = dry_run.load(arguments.model)
    observed = dry_run.observe(
        build_model,
        sample_batch,
        workers=cluster.workers,
        workers_per_machine=cluster.workers_per_machine,
        samples=arguments.samples,
    )
    compute_s = arguments.compute_seconds
    if compute_s is None:
        compute_s = observed.compute_s
    prediction = predict(
        observed.uses, cluster, compute_s=compute_s, examples=observed.examples
    )
    if arguments.json:
        print(json.dumps(to_dict(prediction, observed, cluster), indent=2))
    else:
        print(to_text(prediction, observed, cluster))
    return 0


def _cluster(arguments: argparse.Namespace) -> Cluster:
    from keras_parallax.plan.network import Cluster, Network, parse_bandwidth

    for option in ("workers", "machines", "servers", "samples"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option} is 1 or more. Received: --{option} {value}")
    network = Network(parse_bandwidth(arguments.bandwidth)).changed(arguments.network)
    if arguments.latency is not None:
        network = network.changed(f"latency={arguments.latency}")
    machines = arguments.machines or arguments.workers
    return Cluster(
        workers=arguments.workers,
        machines=machines,
        network=network,
        servers=arguments.servers or machines,
        memory_limit_bytes=None if arguments.memory is None else arguments.memory * 1e9,
    )


def to_dict(prediction: Prediction, observed: Observed, cluster: Cluster) -> dict:
    """The prediction as plain data."""
    variables = []
    for use in observed.uses:
        choice = prediction.choices[use.path]
        one, machine, everyone = use.touched_rows(cluster)
        variables.append(
            {
                "variable": use.path,
                "shape": list(observed.shapes[use.path]),
                "gradient": use.gradient,
                "alpha": use.alpha,
                "alpha_machine": machine / use.num_rows,
                "alpha_all": everyone / use.num_rows,
                "road": choice.road,
                "home": choice.home,
                "reason": choice.reason,
                "costs": [c.to_dict() for c in (choice.cost, *choice.alternatives)],
            }
        )
    return {
        "workers": cluster.workers,
        "machines": cluster.machines,
        "network": cluster.network.to_dict(),
        "compute_s_here": observed.compute_s,
        "variables": variables,
        "systems": [system.to_dict() for system in prediction.systems],
        "notes": list(observed.notes),
    }


def to_text(prediction: Prediction, observed: Observed, cluster: Cluster) -> str:
    """The prediction as tables for people."""
    from keras_parallax.plan.choose import in_percent, in_time
    from keras_parallax.plan.prediction import SYSTEMS
    from keras_parallax.servers.progress_line import in_words

    network = cluster.network
    gbit = network.bandwidth_bytes_per_s * 8e-9
    compute_s = prediction.systems[0].compute_s
    lines = [
        f"{cluster.workers} workers on {cluster.machines} machines, {gbit:g} Gbit/s, "
        f"{in_time(network.latency_s)} latency; a step computes "
        f"{in_time(compute_s)} (here {in_time(observed.compute_s)})",
        "",
    ]
    rows = [["variable", "shape", "gradient", "alpha", "road", "a step", "bytes"]]
    for use in observed.uses:
        choice = prediction.choices[use.path]
        rows.append(
            [
                use.path,
                "x".join(map(str, observed.shapes[use.path])) or "scalar",
                use.gradient,
                in_percent(use.alpha) if use.gradient == "sparse" else "",
                choice.label,
                in_time(choice.cost.own_s),
                in_words(int(choice.cost.machine_bytes)),
            ]
        )
    lines += [*_table(rows), ""]
    lines += [
        f"{use.path}: {prediction.choices[use.path].reason}."
        for use in observed.uses
        if use.gradient == "sparse"
    ]
    rows = [["way", "step", "examples/s", "bytes", "transfer", "latency", "rows", ""]]
    for system in prediction.systems:
        rows.append(
            [
                system.name,
                in_time(system.seconds),
                f"{system.examples_per_s:,.0f}",
                in_words(int(system.cost.machine_bytes)),
                in_time(system.cost.transfer_s),
                in_time(system.cost.latency_s),
                in_time(system.cost.row_work_s),
                system.obstacle or _described(system, SYSTEMS[system.name]),
            ]
        )
    lines += ["", *_table(rows), ""]
    lines += [f"{note}." for note in observed.notes]
    lines.append(
        "Bytes are what the busiest machine sends and receives in a step; computing "
        "and exchanging are taken not to overlap."
    )
    return "\n".join(lines)


def _described(system: System, words: str) -> str:
    return f"{words} ({system.home})" if system.home else words


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in [rows[0], rule, *rows[1:]]
    ]
