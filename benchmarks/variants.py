"""The language model with other ways to exchange: do they learn as much?

Runs examples/language_model.py on 2 workers and 1 server, each time with other
arguments to `ParallaxStrategy`: asynchronous with bounded staleness, and with halved
wire formats. Compared is the test perplexity after the same number of examples with
that of synchronous training in full precision, from the same seeds.

Which push comes first differs from run to run: hence several seeds, and their
geometric mean.

`python -m benchmarks.variants [--quick] [--json FILE]`
"""

import json
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
SEEDS = (1, 2)
_VARIABLE = "PARALLAX_VARIANT"


def run(arguments, seed, flags):
    """Trains once; returns what the example reports."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
    command += ["--servers", "1", "--", sys.executable, "-m", "benchmarks.variants"]
    # On servers, whatever the plan would choose: it is their exchange that differs.
    routes = {"*softmax/*": "servers", "*embeddings": "servers"}
    setting = {"arguments": {"routes": routes, **arguments}, "seed": seed}
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


def train(arguments, seed):
    """In a worker: the example, with these arguments and seed."""
    import keras

    import keras_parallax as kp

    strategy, set_random_seed = kp.ParallaxStrategy, keras.utils.set_random_seed
    kp.ParallaxStrategy = lambda *a, **k: strategy(*a, **{**k, **arguments})
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
    # Of one seed the variants run one after the other: a slow spell of the machine,
    # or an interruption, leaves pairs.
    for seed in seeds:
        for variant, arguments in VARIANTS.items():
            found = run(arguments, seed, flags)
            reached = found["test_perplexity"]
            perplexity.setdefault(variant, []).append(reached)
            results.add_row(
                variant=variant,
                seed=seed,
                test_perplexity=reached,
                unigram_perplexity=found["unigram_perplexity"],
                words_per_second=found["words_per_second"],
                relative=reached / perplexity[SYNCHRONOUS][-1] - 1,
            )
            print(report.format_table(results.rows[-1:]), flush=True)
    mean = {key: statistics.geometric_mean(found) for key, found in perplexity.items()}
    name = "perplexity with max_staleness=4 over synchronous, mean of the seeds"
    results.add_check(name, mean[ASYNCHRONOUS] / mean[SYNCHRONOUS], "<=", 1.05)
    for wire in ("float16", "bfloat16"):
        # What it is, not what it should be: no target was set.
        deviation = mean[wire] / mean[SYNCHRONOUS] - 1
        print(f"{wire}: perplexity deviates by {deviation:+.1%}")
    results.finish(args.json)


if __name__ == "__main__":
    if _VARIABLE in os.environ:
        train(**json.loads(os.environ[_VARIABLE]))
    else:
        main()
