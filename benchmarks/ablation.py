"""From Horovod alone to the hybrid, one step at a time, on the language model.

4 hosts of 2 workers, so that the workers of a host have something to sum.

`horovod`: everything all-reduced or gathered. `naive ps`: everything on servers.
`optimised ps`: the same, tables in partitions, and each worker speaks with the server
beside it. `ours, fixed`: dense variables all-reduced instead, the rule of Parallax.
`ours, servers` and `ours`: the plan decides, with tables on servers and in workers.
"""

from benchmarks import comparison, language_model

STEPS = ("horovod", "naive ps", "optimised ps", "ours, fixed", "ours, servers", "ours")
#: As fast beside computing as 60 Mbit/s are on 8 hosts; see `scaling.py`.
RATE = 120


def cases(quick):
    turns, steps = (3, 3) if quick else (5, 4)
    return [
        comparison.Case(
            "language model", 2 if quick else 4, RATE, ("one process", *STEPS),
            language_model.BATCH, language_model.MODEL, language_model.WORKERS,
            turns=turns, steps=steps,
        )
    ]  # fmt: skip


def check(results):
    """Each step helps: it is at most as slow as the one before."""
    for key, rows in comparison.cases_of_rows(results.rows).items():
        for before, after in zip(STEPS, STEPS[1:], strict=False):
            if before in rows and after in rows:
                ratio = rows[after]["of ours"] / rows[before]["of ours"]
                name = f"{comparison.where(key)}: {after} / {before}"
                results.add_check(name, ratio, "<=", comparison.MOST_SLOWER)


def plot(rows, path):
    """Draws a bar for each step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    shown = [row for name in STEPS for row in rows if row["system"] == name]
    axis.barh(
        [row["system"] for row in shown], [row["examples_per_s"] for row in shown]
    )
    axis.invert_yaxis()
    axis.set_xlabel("examples per second")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    comparison.main(__doc__, "ablation", cases, check, plot)
