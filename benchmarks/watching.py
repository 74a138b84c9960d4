"""What `ParallaxTensorBoard` costs: steps of two workers with it and without it.

Two models of the same kind stand ready in the same two processes, each under a
strategy of its own, and `fit` trains them in turns: the one with the callback, the
other without. A turn's time is that of its steps but for the first, of the slower
worker; the callback writes once in each turn, twice as often as it would by default.
What it does at an epoch's end, pictures and the plan, stands in a column of its own.

`low` and `high` are the quartiles of the turns' ratios.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import report

_MARK = "watching: "
_WORKERS = 2
_STEPS = 52
_UPDATE_STEPS = 50
_BATCH, _BATCHES = 1024, 8


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--worker", type=int, metavar="TURNS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        take_turns(args.worker)
        return
    results = report.Report("watching")
    for servers in (0, 1):
        measure(results, servers, turns=3 if args.quick else 9)
    results.finish(args.json)


def measure(results, servers, turns):
    """Adds the row and the check of a job with so many servers."""
    found = run_job(servers, turns)
    paired = report.Paired(found["step_ms"])
    ratio = paired.ratio("watched", "alone")
    pairs = zip(paired.samples["watched"], paired.samples["alone"], strict=True)
    low, _, high = statistics.quantiles(watched / alone for watched, alone in pairs)
    results.add_row(
        workers=_WORKERS,
        servers=servers,
        alone_ms=paired.medians["alone"],
        watched_ms=paired.medians["watched"],
        ratio=ratio,
        low=low,
        high=high,
        epoch_end_ms=statistics.median(found["epoch_end_ms"]),
        numbers_written=found["numbers"],
        turns=turns,
        steps_per_turn=_STEPS - 1,
    )
    print(report.format_table(results.rows[-1:]), flush=True)
    where = f"{servers} server" if servers else "workers keep the tables"
    results.add_check(f"{where}: watched / alone", ratio, "<=", 1.01)


def run_job(servers, turns):
    """Runs the workers; returns what worker 0 has measured."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
    command += ["-np", str(_WORKERS)]
    command += ["--servers", str(servers)] if servers else []
    command += ["--", sys.executable, "-m", "benchmarks.watching"]
    done = subprocess.run(
        [*command, "--worker", str(turns)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    line = next(x for x in done.stdout.splitlines() if x.startswith(_MARK))
    return json.loads(line.removeprefix(_MARK))


def take_turns(turns):
    """In a worker: trains with the callback and without it."""
    import keras
    import tensorflow as tf

    import keras_parallax as kp
    from benchmarks.models import kinds

    class Timer(keras.callbacks.Callback):
        """Seconds from the end of a fit's first step to that of its last."""

        def on_train_begin(self, logs=None):
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            self.ends.append(time.perf_counter())

        @property
        def step_ms(self):
            return 1e3 * (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)

    class Board(kp.callbacks.ParallaxTensorBoard):
        """Notes how long an epoch's end takes."""

        epoch_end_ms = []

        def on_epoch_end(self, epoch, logs=None):
            start = time.perf_counter()
            super().on_epoch_end(epoch, logs)
            self.epoch_end_ms.append(1e3 * (time.perf_counter() - start))

    # Tables stay where they are, whatever the plan would say of them.
    routes = {"embedding/*": "servers", "softmax/*": "servers"}
    folder = tempfile.TemporaryDirectory(prefix="keras-parallax-watching-")
    board = Board(folder.name, _UPDATE_STEPS)
    timer = Timer()

    def turn(callbacks):
        strategy = kp.ParallaxStrategy(routes=routes)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model, data = kinds.language_model(_BATCH, _BATCHES)
        dataset = tf.data.Dataset.from_tensor_slices(data)
        dataset = dataset.batch(_BATCH, drop_remainder=True).cache().repeat()

        def step_ms():
            fitted = {"steps_per_epoch": _STEPS, "shuffle": False, "verbose": 0}
            model.fit(dataset, callbacks=[timer, *callbacks], **fitted)
            return max(strategy.everyones(timer.step_ms))

        step_ms()  # Traces the step.
        return strategy, step_ms

    _, alone = turn([])
    strategy, watched = turn([board])
    paired = report.compare({"alone": alone, "watched": watched}, turns)
    numbers = len(_tags(folder.name)) if strategy.is_chief else 0
    found = {
        "step_ms": paired.samples,
        "epoch_end_ms": board.epoch_end_ms[1:],
        "numbers": numbers,
    }
    if strategy.is_chief:
        print(_MARK + json.dumps(found), flush=True)
    folder.cleanup()


def _tags(folder):
    """Tags of the numbers that worker 0 has written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{folder}/parallax/worker-0")
    events.Reload()
    tags = events.Tags()["tensors"]
    return [
        tag
        for tag in tags
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    ]


if __name__ == "__main__":
    main()
