"""Times steps of a model between changes of its plan, on every worker of a job."""

import statistics
import time

_WARM_UP_STEPS = 2
_MOST_SECONDS = 1.5


class TimedSteps:
    """Times training steps, outside `fit`, which would look at the plan again.

    Args:
        strategy: The strategy.
        model: A model that was trained.
        dataset: Its data, without an end.
        steps: Steps timed in a turn; fewer where they take long.
    """

    def __init__(self, strategy, model, dataset, steps):
        self._strategy = strategy
        self._model = model
        self._batches = iter(strategy.experimental_distribute_dataset(dataset))
        self._steps = steps

    def reroute(self, roads):
        """Moves tables to roads, by path; returns milliseconds of a step."""
        here = {entry.variable: entry.road for entry in self._strategy.plan}
        self._strategy.reroute({p: r for p, r in roads.items() if here[p] != r})
        return self.step_ms()

    def repartition(self, counts):
        """Moves tables into partitions, by path; returns milliseconds of a step."""
        here = {entry.variable: entry.partitions for entry in self._strategy.plan}
        self._strategy.repartition({p: n for p, n in counts.items() if here[p] != n})
        return self.step_ms()

    def step_ms(self):
        """Milliseconds of a step, traced anew: the median; of the slowest worker."""
        self._model.make_train_function(force=True)
        step = self._model.train_function
        for _ in range(_WARM_UP_STEPS):
            last = max(self._strategy.everyones(self._timed(step)))
        count = max(1, min(self._steps, int(_MOST_SECONDS / last)))
        mine = statistics.median(self._timed(step) for _ in range(count))
        return 1e3 * max(self._strategy.everyones(mine))

    def _timed(self, step):
        start = time.perf_counter()
        float(step(self._batches)["loss"])
        return time.perf_counter() - start
