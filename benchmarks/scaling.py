"""Throughput over the number of hosts, as a multiple of what one host computes.

The language model on 1, 2, 4 and 8 hosts of one worker. Emulated hosts share two
cores: twice as many compute half as fast, each. Links are slowed down as much, so that
on any number of hosts exchanging is as fast beside computing as on the others. The
throughput of one host is that of the stock model when all hosts compute by themselves:

    speed-up = hosts · step time of computing alone / step time

which is the number of hosts where exchanging takes no time at all.
"""

from benchmarks import comparison, language_model, systems

BATCH = 512
#: Mbit/s on 8 hosts, and half as many hosts twice as much.
RATE_OF_8 = 60
HOSTS = (1, 2, 4, 8)
SYSTEMS = ("one process", "ours", "horovod", "naive ps", "optimised ps")
SPEED_UP = "speed-up"


def cases(quick):
    turns, steps = (3, 3) if quick else (5, 6)
    hosts = (2,) if quick else tuple(reversed(HOSTS))
    return [
        comparison.Case(
            "language model", count, None if count == 1 else RATE_OF_8 * 8 / count,
            SYSTEMS[:2] if count == 1 else SYSTEMS[: 4 if quick else None],
            BATCH, language_model.MODEL, turns=turns, steps=steps,
        )
        for count in hosts
    ]  # fmt: skip


def check(results):
    add_speed_up(results.rows)
    comparison.check_everywhere(results)


def add_speed_up(rows):
    """Adds a column: throughput as a multiple of what one host computes."""
    for row in rows:
        row[SPEED_UP] = row["hosts"] / row["of computing"]


def plot(rows, path):
    """Draws the speed-up of each system over the number of hosts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    axis.plot(HOSTS, HOSTS, color="0.7", linestyle="--", label="ideal")
    for name in systems.NAMES[1:]:
        mine = sorted((r["hosts"], r[SPEED_UP]) for r in rows if r["system"] == name)
        if mine:
            axis.plot(
                *zip(*mine, strict=True), color=f"C{systems.NAMES.index(name)}",
                marker="o", label=name, linewidth=2.5 if name == "ours" else 1.2,
            )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xticks(HOSTS, [str(count) for count in HOSTS])
    axis.set(xlabel="hosts", ylabel="speed-up over one host's computing")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    comparison.main(__doc__, "scaling", cases, check, plot)
