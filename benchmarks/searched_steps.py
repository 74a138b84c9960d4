"""What a worker does to compare the partition search with a brute-force sweep.

Run by `partition_search.py` as each worker of a cluster:

    python -m benchmarks.searched_steps '{"rows": 200000, …}'

with the fields of `Job`. A language model is trained for some steps; then, from the
same weights and with the same batches, while partitions are searched. The losses have
to be the same. Then every number of partitions is measured, in rounds; last, the number
chosen and the one that came out fastest, in turns.
"""

import dataclasses
import functools
import json
import sys

import numpy as np

from benchmarks import report
from benchmarks.cluster import print_result
from benchmarks.models import kinds
from benchmarks.planned_steps import say
from benchmarks.timed_steps import TimedSteps

_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        rows: Rows of each of the two tables.
        batch: Global batch.
        most_steps: Steps that the search may take.
        counts: Numbers of partitions to sweep over.
        rounds: Rounds of the sweep.
        turns: Turns of the number chosen and the fastest.
        steps: Steps timed in a turn.
    """

    rows: int
    batch: int
    most_steps: int
    counts: tuple
    rounds: int
    turns: int
    steps: int


def main(text):
    job = Job(**json.loads(text))
    import keras
    import tensorflow as tf

    import keras_parallax as kp

    # Tables stay on servers, whatever the plan would say of them.
    routes = {"embedding/*": "servers", "softmax/*": "servers"}
    strategy = kp.ParallaxStrategy(servers="dedicated", routes=routes)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, data = kinds.language_model(job.batch, _BATCHES, job.rows)
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.batch(job.batch, drop_remainder=True).cache().repeat()
    states = [*model.variables, *model.optimizer.variables]
    begin = [np.asarray(state) for state in states]

    def losses(callbacks):
        for state, value in zip(states, begin, strict=True):
            state.assign(value)
        recorder = _Losses(keras)
        fitted = {"steps_per_epoch": job.most_steps, "shuffle": False, "verbose": 0}
        model.fit(dataset, callbacks=[recorder.callback, *callbacks], **fitted)
        return recorder.found

    plain = losses([])
    say(strategy, "trained without a search")
    search = kp.callbacks.PartitionSearch(
        most_steps=job.most_steps, most_partitions=max(job.counts), remember=False
    )
    searched = losses([search])
    ((first, result),) = search.searches.items()
    say(strategy, f"searched: {result.fit}, chosen {result.chosen}")
    tables = [e.variable for e in strategy.plan if e.road == "servers"]
    bench = TimedSteps(strategy, model, dataset, job.steps)

    def measure(count):
        return bench.repartition(dict.fromkeys(tables, count))

    def compare(counts, repeats):
        alternatives = {n: functools.partial(measure, n) for n in counts}
        return report.compare(alternatives, repeats)

    sweep = compare(job.counts, job.rounds)
    say(strategy, f"swept: {sweep.medians}")
    fastest = min(sweep.medians, key=sweep.medians.get)
    duel = None
    if fastest != result.chosen:
        duel = compare((result.chosen, fastest), job.turns).samples
    print_result(
        {
            "tables": tables,
            "first": first,
            "chosen": result.chosen,
            "fastest": fastest,
            "search_steps": search.steps_taken,
            "fit": result.fit.to_dict(),
            "sweep_ms": list(sweep.samples.items()),
            "duel_ms": duel and list(duel.items()),
            "losses": plain,
            "losses_of_search": searched,
        }
    )


class _Losses:
    """Notes the mean loss after each step."""

    def __init__(self, keras):
        self.found = []
        self.callback = keras.callbacks.LambdaCallback(on_train_batch_end=self._note)

    def _note(self, batch, logs):
        self.found.append(float(logs["loss"]))


if __name__ == "__main__":
    main(sys.argv[1])
