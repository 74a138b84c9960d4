"""Every example: its result with one process, with two workers, with two and a server.

    python -m benchmarks.examples_table --json docs/results/examples.json

Workers that train one model must end where one process does, but for rounding, which
training makes larger; and each must be better than what is known without training.
"""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import time

from benchmarks import report

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
TIMEOUT_SECONDS = 900
JOBS = {
    "one_process": [],
    "two_workers": ["-np", "2"],
    "two_workers_one_server": ["-np", "2", "--servers", "1"],
}


@dataclasses.dataclass(frozen=True)
class Example:
    """What to look at in an example's result.

    Attributes:
        figure: Key of the figure that the example is about.
        baseline: Key of the same figure for what is known without training.
        noise: How far two runs may be apart, as a share of what is compared.
        compared: Key of what is compared between runs, if not the figure.
        lower_is_better: Whether the figure is an error.
        quick: Arguments that make it a matter of seconds.
    """

    figure: str
    baseline: str
    noise: float
    compared: str | None = None
    lower_is_better: bool = False
    quick: tuple = ("--quick",)

    def is_better(self, result):
        """Whether a result is better than its own baseline."""
        figure, baseline = result[self.figure], result[self.baseline]
        return figure < baseline if self.lower_is_better else figure > baseline

    def apart(self, result, other):
        """How far two results are apart, as a share."""
        key = self.compared or self.figure
        return abs(math.log(result[key] / other[key]))


CASES = {
    "language_model": Example(
        "test_perplexity",
        "unigram_perplexity",
        noise=0.05,  # Each worker draws its own candidates.
        lower_is_better=True,
        quick=("--epochs", "1", "--embedding", "64", "--units", "64"),
    ),
    "translation": Example(
        "test_perplexity", "bigram_perplexity", noise=0.05, lower_is_better=True
    ),
    "recommendation": Example(
        "hit_rate_at_10", "popularity_hit_rate_at_10", noise=0.05
    ),
    "click_through": Example(
        "area_under_curve", "click_rates_area_under_curve", noise=0.03
    ),
    # Which of some thousand questions are answered is much a matter of luck.
    "word2vec": Example("accuracy", "chance", noise=0.01, compared="loss"),
    "image_classification": Example(
        "test_accuracy", "most_frequent_accuracy", noise=0.03
    ),
    "custom_loop": Example(
        "test_error", "biases_test_error", noise=0.01, lower_is_better=True
    ),
}


def run(name, job, arguments=()):
    """Runs an example.

    Args:
        name: Of the example, without `.py`.
        job: Arguments of `keras-parallax run`; without any, the example runs alone.
        arguments: The example's own.

    Returns:
        `(result, seconds)`: the dict that its last line tells, and how long it took
        from start to end.

    Raises:
        RuntimeError: If it fails, or ends without a result.
    """
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    if job:
        launcher = [sys.executable, "-m", "keras_parallax.cli.main", "run", *job]
        command = [*launcher, "--", *command]
    start = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - start
    lines = [x for x in done.stdout.splitlines() if x.startswith("result: ")]
    if done.returncode != 0 or len(lines) != 1:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode} and "
            f"{len(lines)} results. Expected status 0 and one result. It wrote:\n"
            f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return json.loads(lines[0].removeprefix("result: ")), seconds


def measure(results, name, quick):
    """Runs one example in every way; adds a row and two checks to `results`."""
    case = CASES[name]
    arguments = case.quick if quick else ()
    found, seconds = {}, {}
    for way, job in JOBS.items():
        found[way], seconds[way] = run(name, job, arguments)
    alone = found["one_process"]
    results.add_row(
        example=name,
        figure=case.figure,
        baseline=alone[case.baseline],
        **{way: result[case.figure] for way, result in found.items()},
        seconds_alone=seconds["one_process"],
        seconds_two_workers=seconds["two_workers"],
    )
    apart = max(case.apart(result, alone) for result in found.values())
    results.add_check(f"{name}: apart from one process", apart, "<=", case.noise)
    better = sum(map(case.is_better, found.values()))
    results.add_check(f"{name}: runs better than the baseline", better, "==", len(JOBS))


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="some examples")
    args = parser.parse_args()
    results = report.Report("examples")
    for name in args.only or CASES:
        measure(results, name, args.quick)
    results.finish(args.json)


if __name__ == "__main__":
    main()
