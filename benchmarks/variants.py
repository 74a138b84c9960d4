"""The language model with other ways to exchange: do they learn as much?

Runs examples/language_model.py on 2 workers and 1 server, each time with other
arguments to `ParallaxStrategy`: asynchronous with bounded staleness, and with halved
wire formats. Compared is the test perplexity after the same number of examples with
that of synchronous training in full precision, from the same seeds.

Adagrad makes a full step of whatever it is given, so two workers that push by
themselves make two steps where a synchronous job makes one: a learning rate that is
right for one mode need not be for the other. Hence both modes are trained with the
same few rates, and compared at the example's rate and, each at its own, at the best.

`python -m benchmarks.variants [--quick] [--json FILE]`
"""

import json
import math
import os
import pathlib
import runpy
import statistics
import subprocess
import sys

from benchmarks import report

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "language_model.py"
SYNCHRONOUS = "synchronous"
ASYNCHRONOUS = "max_staleness=4"
VARIANTS = {
    SYNCHRONOUS: {},
    ASYNCHRONOUS: {"synchronous": False, "max_staleness": 4},
    "float16": {"wire": "float16", "dense_wire": "float16"},
    "bfloat16": {"wire": "bfloat16", "dense_wire": "bfloat16"},
}
RATE = 0.05
RATES = {SYNCHRONOUS: (RATE, 0.1), ASYNCHRONOUS: (RATE, 0.1)}
SEEDS = (1, 2)
_VARIABLE = "PARALLAX_VARIANT"


def run(arguments, rate, seed, flags):
    """Trains once; returns what the example reports."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
    command += ["--servers", "1", "--", sys.executable, "-m", "benchmarks.variants"]
    setting = {"arguments": arguments, "rate": rate, "seed": seed}
    done = subprocess.run(
        [*command, *flags],
        cwd=ROOT,
        env={**os.environ, _VARIABLE: json.dumps(setting)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    line = next(x for x in done.stdout.splitlines() if x.startswith("result: "))
    return json.loads(line.removeprefix("result: "))


def train(arguments, rate, seed):
    """In a worker: the example, with these arguments, learning rate and seed."""
    import keras

    import keras_parallax as kp

    strategy, adagrad = kp.ParallaxStrategy, keras.optimizers.Adagrad
    set_random_seed = keras.utils.set_random_seed
    kp.ParallaxStrategy = lambda *a, **k: strategy(*a, **{**k, **arguments})
    keras.optimizers.Adagrad = lambda _, **k: adagrad(rate, **k)
    keras.utils.set_random_seed = lambda _: set_random_seed(seed)
    sys.path.insert(0, str(EXAMPLE.parent))
    sys.argv[0] = str(EXAMPLE)
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def main():
    """Trains all variants and compares them."""
    args = report.arguments(__doc__).parse_args()
    results = report.Report("variants")
    flags = ["--epochs", "1" if args.quick else "3"]
    seeds = SEEDS[:1] if args.quick else SEEDS
    perplexity = {}
    # Of one seed and rate the variants run one after the other: a slow spell of the
    # machine, or an interruption, leaves pairs.
    for seed in seeds:
        for rate in (RATE,) if args.quick else (RATE, 0.1):
            for variant, arguments in VARIANTS.items():
                if rate not in RATES.get(variant, (RATE,)):
                    continue
                found = run(arguments, rate, seed, flags)
                reached = found["test_perplexity"]
                perplexity.setdefault((variant, rate), []).append(reached)
                results.add_row(
                    variant=variant,
                    learning_rate=rate,
                    seed=seed,
                    test_perplexity=reached,
                    unigram_perplexity=found["unigram_perplexity"],
                    words_per_second=found["words_per_second"],
                    relative=reached / perplexity[SYNCHRONOUS, rate][-1] - 1,
                )
                print(report.format_table(results.rows[-1:]), flush=True)
    check(results, perplexity)
    results.finish(args.json)


def check(results, perplexity):
    """Compares geometric means over the seeds."""
    mean = {key: statistics.geometric_mean(found) for key, found in perplexity.items()}
    best = {
        variant: min((mean[v, rate], rate) for v, rate in mean if v == variant)
        for variant in VARIANTS
    }
    for what, asynchronous, synchronous in (
        (f"rate {RATE}", mean[ASYNCHRONOUS, RATE], mean[SYNCHRONOUS, RATE]),
        ("each at its best rate", best[ASYNCHRONOUS][0], best[SYNCHRONOUS][0]),
    ):
        name = f"perplexity with max_staleness=4 over synchronous, {what}"
        results.add_check(name, asynchronous / synchronous, "<=", 1.05)
    for wire in ("float16", "bfloat16"):
        # What it is, not what it should be: no target was set.
        deviation = abs(math.log(mean[wire, RATE] / mean[SYNCHRONOUS, RATE]))
        print(f"{wire}: perplexity deviates by {math.expm1(deviation):.1%}")


if __name__ == "__main__":
    if _VARIABLE in os.environ:
        train(**json.loads(os.environ[_VARIABLE]))
    else:
        main()
