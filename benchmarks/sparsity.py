"""Speed-up over the share of a table's rows that a worker looks up: alpha, 0.02 to 1.

One table of 16,000 rows of 64 elements on 8 hosts; the batch decides how many of its
rows a worker looks up, hardly any of them twice. With few of them servers are best,
with all of them the table is as good as dense: the plan has to find out.
"""

from benchmarks import comparison, systems

ROWS, WORDS = 16_000, 20
RATE = 100
ALPHAS = (0.02, 0.1, 0.25, 0.5, 1.0)
SYSTEMS = ("one process", "ours", "horovod", "horovod, dense", "naive ps")


def cases(quick):
    alphas = (0.02, 1.0) if quick else ALPHAS
    turns, steps = (3, 3) if quick else (5, 6)
    return [
        comparison.Case(
            "lookups", 2 if quick else 8, RATE, SYSTEMS, round(alpha * ROWS / WORDS),
            {"rows": ROWS, "words": WORDS}, turns=turns, steps=steps,
        )
        for alpha in alphas
    ]  # fmt: skip


def check(results):
    for row in results.rows:
        row["alpha"] = row["batch"] * WORDS / ROWS
    comparison.check_everywhere(results)


def plot(rows, path):
    rows = [row for row in rows if row["system"] != systems.ALONE]
    comparison.plot(rows, path, "alpha", "of ours", stands_for="batch")


if __name__ == "__main__":
    comparison.main(__doc__, "sparsity", cases, check, plot)
