"""The language model with other ways to exchange: do they learn as much?

Runs examples/language_model.py as it is on 2 workers, each time with other arguments to
`ParallaxStrategy`: asynchronous with bounded staleness, and with halved wire formats;
compares the test perplexity after the same number of examples with the one of
synchronous training in full precision, on the same servers.

`python -m benchmarks.variants [--quick] [--json FILE]`
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys

from benchmarks import report

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "language_model.py"
SYNCHRONOUS = "synchronous"
VARIANTS = {
    SYNCHRONOUS: {},
    "max_staleness=0": {"synchronous": False, "max_staleness": 0},
    "max_staleness=4": {"synchronous": False, "max_staleness": 4},
    "float16": {"wire": "float16", "dense_wire": "float16"},
    "bfloat16": {"wire": "bfloat16", "dense_wire": "bfloat16"},
}


def run(variant, flags):
    """Trains one variant; returns what the example reports."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
    command += ["--servers", "1", "--", sys.executable, "-m", "benchmarks.variants"]
    done = subprocess.run(
        [*command, *flags],
        cwd=ROOT,
        env={**os.environ, "PARALLAX_VARIANT": json.dumps(VARIANTS[variant])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    line = next(x for x in done.stdout.splitlines() if x.startswith("result: "))
    return json.loads(line.removeprefix("result: "))


def train(arguments):
    """In a worker: the example, with these arguments to its strategy as well."""
    import keras_parallax as kp

    strategy = kp.ParallaxStrategy

    def with_arguments(*args, **kwargs):
        return strategy(*args, **{**kwargs, **arguments})

    kp.ParallaxStrategy = with_arguments
    sys.path.insert(0, str(EXAMPLE.parent))
    sys.argv[0] = str(EXAMPLE)
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def main():
    """Trains all variants and compares them."""
    args = report.arguments(__doc__).parse_args()
    results = report.Report("variants")
    flags = ["--epochs", "1" if args.quick else "3"]
    perplexity = {}
    for variant in VARIANTS:
        result = run(variant, flags)
        perplexity[variant] = result["test_perplexity"]
        results.add_row(
            variant=variant,
            test_perplexity=result["test_perplexity"],
            unigram_perplexity=result["unigram_perplexity"],
            words_per_second=result["words_per_second"],
            relative=perplexity[variant] / perplexity[SYNCHRONOUS] - 1,
        )
    results.add_check(
        "perplexity with max_staleness=4 over synchronous",
        perplexity["max_staleness=4"] / perplexity[SYNCHRONOUS],
        "<=",
        1.05,
    )
    results.finish(args.json)


if __name__ == "__main__":
    if "PARALLAX_VARIANT" in os.environ:
        train(json.loads(os.environ["PARALLAX_VARIANT"]))
    else:
        main()
