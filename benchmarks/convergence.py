"""Test perplexity and accuracy over steps and over time, on hosts and in one process.

A word-level language model of the King James text and a small network on handwritten
digits, each trained from the same seed with the same global batches: by one process,
and on 4 emulated hosts by `ours`, by Horovod alone and by naive servers. Over steps the
curves have to coincide, since all of them compute the same; over time they differ by
what a step takes. Time is that of steps alone, the median step of each stretch counting
for all of it, so that neither tracing nor testing is in it.

All systems sum the gradients of a word that is in a batch several times before Adagrad
squares them. Keras by itself does not, and so would be another method; Horovod's
gathered slices are summed after they have been gathered.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time

from benchmarks import comparison, report, systems
from benchmarks.cluster import EmulatedCluster, print_result

HOSTS, RATE = 4, 120
SYSTEMS = (systems.ALONE, "ours", "horovod", "naive ps")
FARTHEST = 0.01
TIMEOUT_S = 600


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        measure: What is measured on the test data.
        batch: Global batch.
        steps: Steps of the training.
        every: Steps from one test to the next.
        systems: What it is trained by.
    """

    measure: str
    batch: int
    steps: int
    every: int
    systems: tuple = SYSTEMS


TASKS = {
    "language model": Task("test perplexity", 256, 240, 30),
    "digits": Task("test accuracy", 64, 200, 20, SYSTEMS[:3]),
}


def main():
    parser = report.arguments(__doc__, plots=True)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        name, system, steps = args.job
        print_result(train(name, system, int(steps)))
        return
    results = report.Report("convergence")
    for name, task in TASKS.items():
        if args.quick:
            half = task.steps // 4
            task = dataclasses.replace(task, steps=half, systems=task.systems[:2])
        for system in task.systems:
            for point in measure(name, system, task):
                results.add_row(task=name, measure=task.measure, system=system, **point)
            print(report.format_table(results.rows[-1:]), flush=True)
    check(results)
    results.finish(args.json)
    if args.plot:
        plot(results.rows, args.plot)


def measure(name, system, task):
    """Trains a task by a system; returns points of its curve."""
    hosts = 1 if system == systems.ALONE else HOSTS
    command = [sys.executable, "-m", "benchmarks.convergence", "--job"]
    command += [name, system, str(task.steps)]
    with (
        EmulatedCluster(hosts, 1, None if hosts == 1 else RATE) as cluster,
        tempfile.TemporaryDirectory() as cache,
    ):
        environ = comparison.environment(cache)
        done = cluster.run(command, environ, timeout_seconds=TIMEOUT_S)
    return done.workers[0].result


def check(results):
    """Over steps, each curve is that of one process."""
    curves = {}
    for row in results.rows:
        curve = curves.setdefault((row["task"], row["system"]), {})
        curve[row["step"]] = row["value"]
    for (task, system), curve in curves.items():
        alone = curves.get((task, systems.ALONE))
        if system != systems.ALONE and alone:
            farthest = max(abs(curve[s] / alone[s] - 1) for s in curve if s in alone)
            name = f"{task}, {system}: farthest from one process's curve"
            results.add_check(name, farthest, "<=", FARTHEST)


def train(name, system, steps):
    """A worker: trains and tests in turns; returns points of the curve."""
    import keras
    import tensorflow as tf

    from benchmarks.models import real

    task = TASKS[name]
    build = {"language model": real.language_model, "digits": real.digits}[name]
    trainer = _trainer(system)
    keras.utils.set_random_seed(1)
    model, train_data, test_data, as_measure = trainer.make(lambda: build(task.batch))
    train_set, test_set = (
        tf.data.Dataset.from_tensor_slices(data).batch(task.batch, drop_remainder=True)
        for data in (train_data, test_data)
    )
    train_set = train_set.repeat()
    seconds, points = 0.0, []
    for done in range(0, steps, task.every):
        count = min(task.every, steps - done)
        clock = StepClock()
        stretch = trainer.share(train_set.skip(done))
        model.fit(
            stretch, steps_per_epoch=count, shuffle=False, verbose=0,
            callbacks=[clock.callback()],
        )  # fmt: skip
        seconds += count * clock.median_seconds()
        found = trainer.mean(model.evaluate(trainer.share(test_set), verbose=0))
        points.append(
            {
                "step": done + count,
                "seconds": seconds,
                "value": float(as_measure(found)),
            }
        )
    return points


class StepClock:
    """Times the steps of a call of `fit`."""

    def __init__(self):
        self._ends = []

    def callback(self):
        """The callback by which it hears of steps."""
        import keras

        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: self._ends.append(time.perf_counter())
        )

    def median_seconds(self):
        """Seconds from the end of one step to the end of the next."""
        return statistics.median(
            after - before
            for before, after in zip(self._ends, self._ends[1:], strict=False)
        )


def _trainer(system):
    if system == systems.ALONE:
        return _Alone()
    return _Horovod() if system == "horovod" else _Ours(system)


class _Alone:
    """One process, with dense gradients: what all others are compared with."""

    def make(self, build):
        """Makes the model and its data."""
        stock, *rest = build()
        return self._with_gradients(stock, lambda gradients: gradients), *rest

    def share(self, dataset):
        """This worker's share of a dataset."""
        return dataset

    def mean(self, value):
        """Mean of what the workers have found, each on its share."""
        return value

    def _with_gradients(self, stock, reduced):
        """The model, with gradients that are reduced, and then made dense."""
        import keras
        import tensorflow as tf

        class Reduced(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    y_pred = self(x, training=True)
                    loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
                gradients = reduced(tape.gradient(loss, self.trainable_weights))
                gradients = [tf.convert_to_tensor(g) for g in gradients]
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_weights, strict=True)
                )
                return {**self.compute_metrics(x, y, y_pred), "loss": loss}

        model = Reduced(stock.inputs, stock.outputs)
        optimizer = type(stock.optimizer).from_config(stock.optimizer.get_config())
        metrics = ["accuracy"] if len(stock.metrics) > 1 else None
        model.compile(optimizer, stock.loss, metrics=metrics, jit_compile=False)
        return model


class _Horovod(_Alone):
    def make(self, build):
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        stock, *rest = build()
        model = self._with_gradients(
            stock, lambda gradients: [hvd.allreduce(g) for g in gradients]
        )
        for weight in model.weights:
            weight.assign(hvd.broadcast(weight.value, 0))
        return model, *rest

    def share(self, dataset):
        from keras_parallax.data import share_of

        return share_of(dataset, self._hvd.rank(), self._hvd.size())

    def mean(self, value):
        import numpy as np

        found = np.mean(self._hvd.allgather_object(value), axis=0)
        return found.tolist() if found.ndim else float(found)


class _Ours(_Alone):
    def __init__(self, system):
        import keras_parallax as kp

        self._strategy = kp.ParallaxStrategy(**systems.STRATEGIES[system])

    def make(self, build):
        # Tables begin with values that do not depend on how many workers there are,
        # which are not those of Keras: all have to begin alike.
        stock, *_ = build()
        with self._strategy.scope():
            model, *rest = build()
            model.set_weights(stock.get_weights())
        return model, *rest


def plot(rows, path):
    """Draws the measure of each task over steps and over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(
        len(tasks), 2, figsize=(9, 3.3 * len(tasks)), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for task, places in zip(tasks, axes, strict=True):
        mine = [row for row in rows if row["task"] == task]
        for place, column in zip(places, ("step", "seconds"), strict=True):
            # Curves that coincide hide each other, unless those below are wider.
            names = list(dict.fromkeys(row["system"] for row in mine))
            for index, name in enumerate(names):
                curve = [row for row in mine if row["system"] == name]
                place.plot(
                    [row[column] for row in curve], [row["value"] for row in curve],
                    label=name, color=f"C{systems.NAMES.index(name)}",
                    linewidth=1.5 * (len(names) - index),
                )  # fmt: skip
            place.set(xlabel=column, ylabel=mine[0]["measure"], title=task)
            if "perplexity" in mine[0]["measure"]:
                place.set_yscale("log")
            place.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
