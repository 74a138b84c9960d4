"""What a plan that finds itself costs: at the start of a job, and in each step.

On four emulated hosts of one worker each, a language model with two tables is built and
trained. Timed are the calibration of the network, which a second start on the same
machines reads from a file, and the probe, which traces the first step once more to see
what gradients variables get.

Then steps are traced as they are, and without what counts distinct rows, and both are
run in turns; there, and by one worker alone, whose steps vary less. Looking at the plan
again, which happens every hundredth step, is timed apart and shared among the hundred.
"""

import dataclasses
import functools
import json
import statistics
import sys
import tempfile
import time
from unittest import mock

from benchmarks import report
from benchmarks.cluster import EmulatedCluster, print_result
from benchmarks.models import kinds

HOSTS = 4
RATE_MBIT = 200
BATCH = 128
MOST_START_S = 5.0
MOST_SHARE = 0.01
_EVERY_STEPS = 100
_BATCHES = 8
_LOOKS = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        turns: Turns of steps with and without counting.
        steps: Steps in a turn.
    """

    turns: int
    steps: int


def main():
    args = report.arguments(__doc__).parse_args()
    results = report.Report("start")
    found = {}
    # Steps of one worker are short, and tell more of what is a part of a millisecond.
    for hosts, turns in ((HOSTS, 60), (1, 800)):
        with EmulatedCluster(hosts, 1, RATE_MBIT) as cluster:
            job = Job(turns // 5 if args.quick else turns, steps=3)
            found[hosts] = measure(cluster, job)
            add_row(results, cluster, found[hosts])
    together, alone = found[HOSTS], found[1]
    start_s = together["calibration_s"] + together["probe_s"]
    results.add_check("calibration and probe, s", start_s, "<", MOST_START_S)
    samples = alone["paired"].samples
    pairs = zip(samples["counted"], samples["uncounted"], strict=True)
    counting_ms = statistics.median(with_it - without for with_it, without in pairs)
    looking_ms = 1e3 * together["look_s"] / _EVERY_STEPS
    step_ms = together["paired"].medians["uncounted"]
    results.add_row(counting_ms=counting_ms, looking_ms=looking_ms, step_ms=step_ms)
    share = (counting_ms + looking_ms) / step_ms
    results.add_check(
        "measuring alpha, share of a step of the job", share, "<", MOST_SHARE
    )
    results.add_check(
        "counting alone, share of a step that sends nothing",
        alone["paired"].ratio("counted", "uncounted") - 1,
        "<",
        MOST_SHARE,
    )
    results.finish(args.json)


def add_row(results, cluster, found):
    """Adds what was measured on a cluster."""
    paired = found["paired"]
    samples = paired.samples
    pairs = zip(samples["counted"], samples["uncounted"], strict=True)
    low, _, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    results.add_row(
        cluster=cluster.label,
        calibration_s=found["calibration_s"],
        probe_s=found["probe_s"],
        look_ms=1e3 * found["look_s"],
        uncounted_ms=paired.medians["uncounted"],
        counted_ms=paired.medians["counted"],
        ratio=paired.ratio("counted", "uncounted"),
        low=low,
        high=high,
    )


def measure(cluster, job):
    """Runs a job; returns what the slowest worker says of it."""
    command = [sys.executable, "-m", "benchmarks.start", "--worker"]
    command.append(json.dumps(dataclasses.asdict(job)))
    with tempfile.TemporaryDirectory() as cache:
        environ = {"KERAS_PARALLAX_NETWORK": "measure", "KERAS_PARALLAX_CACHE": cache}
        done = cluster.run(command, environ, timeout_seconds=600)
    everyone = [worker.result for worker in done.workers]
    times = ("calibration_s", "probe_s", "look_s")
    slowest = {name: max(worker[name] for worker in everyone) for name in times}
    return {**slowest, "paired": report.Paired(everyone[0]["step_ms"])}


def work(job):
    """What a worker does."""
    import keras
    import tensorflow as tf

    import keras_parallax as kp
    from keras_parallax import extended
    from keras_parallax.servers.storage import Partition
    from keras_parallax.tables.table import Table

    strategy = kp.ParallaxStrategy()
    seconds = {}
    start = time.perf_counter()
    strategy.everyones(strategy.network)
    seconds["calibration_s"] = time.perf_counter() - start
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, data = kinds.language_model(BATCH, _BATCHES)
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.batch(BATCH, drop_remainder=True).cache().repeat()
    probe = extended.probe

    def timed_probe(*args):
        start = time.perf_counter()
        found = probe(*args)
        seconds["probe_s"] = time.perf_counter() - start
        return found

    with mock.patch.object(extended, "probe", timed_probe):
        model.fit(dataset, steps_per_epoch=30, verbose=0)
    looks = []
    for _ in range(_LOOKS):
        start = time.perf_counter()
        # As `fit` has it done, between two steps.
        strategy._router.reconsider()
        looks.append(time.perf_counter() - start)
    seconds["look_s"] = statistics.median(looks)
    batches = iter(strategy.experimental_distribute_dataset(dataset))

    def traced():
        model.make_train_function(force=True)
        function = model.train_function
        function(batches)
        return function

    steps = {"counted": traced()}
    with (
        mock.patch.object(Table, "count_pulled", lambda *_: None),
        mock.patch.object(Table, "count_push", lambda *_: None),
        mock.patch.object(Partition, "note_touched", lambda *_: tf.no_op()),
    ):
        steps["uncounted"] = traced()

    def step_ms(name):
        start = time.perf_counter()
        for _ in range(job.steps):
            float(steps[name](batches)["loss"])
        return 1e3 * (time.perf_counter() - start) / job.steps

    alternatives = {name: functools.partial(step_ms, name) for name in steps}
    paired = report.compare(alternatives, job.turns)
    print_result({**seconds, "step_ms": paired.samples})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Job(**json.loads(sys.argv[2])))
    else:
        main()
