"""Step time of one worker under the strategy, beside the same script without it.

Three models, each trained by stock Keras and under `ParallaxStrategy`, in
processes that both stand ready and are given turns, so that a slow spell of the
machine hits both:

* dense: four Dense layers, no table; what the strategy itself costs.
* language model with a table of 100,000 x 128 and Adagrad, updated by row.
* the same with Adam and `sparse_update="lazy"`, where stock Keras updates every
  row of the table on every step. Lazy is another algorithm: see the documentation.

Stock Keras has the default of `compile(jit_compile="auto")`. That is XLA where
there is a GPU, and no XLA on a machine with CPUs alone; under any strategy it is
no XLA. The column `stock_xla` says what it was. `low` and `high` are the quartiles
of the turns' ratios: where they lie far apart, the machine had other work.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks import report

WINDOW = 20
VOCABULARY = 100_000
WIDTH = 128
WARM_UP_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how it is trained, and what is asked of it.

    Attributes:
        batch: Examples in a batch.
        steps: Steps in a turn.
        comparison, target: Of the ratio of the step's time under the strategy to
            that of stock Keras.
        sparse_update: As `ParallaxStrategy` takes it.
    """

    batch: int
    steps: int
    comparison: str
    target: float
    sparse_update: str = "auto"


CASES = {
    "dense": Case(256, 80, "<=", 1.05),
    "lm_adagrad": Case(128, 10, "<=", 1.15),
    "lm_adam_lazy": Case(128, 10, "<", 1.0, "lazy"),
}


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--variant", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        take_turns(*args.variant)
        return
    results = report.Report("overhead")
    for name, case in CASES.items():
        measure(results, name, case, turns=9 if args.quick else 41)
    results.finish(args.json)


def measure(results, name, case, turns):
    """Adds one case's row and check to the report."""
    with Variant(name, "stock") as stock, Variant(name, "strategy") as strategy:
        alternatives = {"stock": stock.step_ms, "strategy": strategy.step_ms}
        paired = report.compare(alternatives, turns)
    ratio = paired.ratio("strategy", "stock")
    samples = zip(paired.samples["strategy"], paired.samples["stock"], strict=True)
    low, _, high = statistics.quantiles(ours / stock_ms for ours, stock_ms in samples)
    results.add_row(
        model=name,
        stock_ms=paired.medians["stock"],
        strategy_ms=paired.medians["strategy"],
        ratio=ratio,
        low=low,
        high=high,
        turns=turns,
        steps_per_turn=case.steps,
        stock_xla=str(stock.about["xla"]),
        road=strategy.about["road"],
    )
    results.add_check(f"{name}: strategy / stock", ratio, case.comparison, case.target)


class Variant:
    """A process that trains one model in one of two ways, when it is told to.

    Args:
        name: One of `CASES`.
        kind: `"stock"` or `"strategy"`.

    Attributes:
        about: What it says of itself once it is ready.
    """

    def __init__(self, name, kind):
        command = [sys.executable, "-m", "benchmarks.overhead", "--variant", name, kind]
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        # Two processes share the GPU, if there is one.
        env["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.about = None

    def __enter__(self):
        self.about = self._read()
        return self

    def __exit__(self, *exception):
        # It ends with its input.
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def step_ms(self):
        """Trains for a turn; the median time of its steps, in milliseconds."""
        self._process.stdin.write("turn\n")
        return self._read()["step_ms"]

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{' '.join(self._process.args)} has ended with status "
                f"{self._process.wait(30)}; what it said of it is above."
            )
        return json.loads(line)


def take_turns(name, kind):
    """Is the process of a `Variant`: a turn for each line of its input."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    case = CASES[name]
    strategy = None
    if kind == "strategy":
        import keras_parallax as kp

        routes = {} if name == "dense" else {"*softmax/*": "servers"}
        strategy = kp.ParallaxStrategy(routes=routes, sparse_update=case.sparse_update)
    model, x, y = build(name, case, strategy)
    turn = timed_turn(model, x, y, case)
    turn()
    print(json.dumps(describe(model, strategy)), file=answers)
    for _ in sys.stdin:
        print(json.dumps({"step_ms": turn()}), file=answers)


def describe(model, strategy):
    """Whether XLA compiles the step, and the road of the tables."""
    entries = [] if strategy is None else list(strategy.plan)
    tables = sorted({f"{e.road} ({e.update})" for e in entries if e.road == "servers"})
    return {"xla": bool(model.jit_compile), "road": ", ".join(tables) or "allreduce"}


def timed_turn(model, x, y, case):
    """Makes the function of a turn: `fit` on an endless dataset, without its ends.

    The first steps of `fit` start its data and are not timed. The median leaves out
    the steps in which something else had the processor.
    """
    import keras
    import tensorflow as tf

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            self.ends.append(time.perf_counter())

    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(case.batch, drop_remainder=True).cache().repeat()
    clock = Clock()

    def turn():
        steps = WARM_UP_STEPS + case.steps
        how = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
        model.fit(data, callbacks=[clock], **how)
        ends = clock.ends[WARM_UP_STEPS - 1 :]
        return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(ends))

    return turn


def build(name, case, strategy):
    """The model of a case, compiled, and data for it; Keras with or without us."""
    import keras
    import numpy as np

    random = np.random.default_rng(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        if name == "dense":
            x = random.normal(size=(8 * case.batch, 256)).astype("float32")
            y = random.integers(0, 10, len(x)).astype("int32")
            layers = [keras.layers.Dense(512, "relu") for _ in range(3)]
            model = keras.Sequential(
                [keras.Input((256,)), *layers, keras.layers.Dense(10)]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("sgd", loss)
            return model, x, y
        text = random.zipf(1.2, (8 * case.batch, WINDOW + 1)) % VOCABULARY
        words, targets = text[:, :-1].astype("int32"), text[:, 1:].astype("int32")
        model = build_language_model()
        # The layer makes the loss; what Keras hands it as the target goes unused.
        model.compile("adagrad" if name == "lm_adagrad" else "adam")
        return model, {"words": words, "targets": targets}, np.zeros(len(words))


def build_language_model():
    """An LSTM language model with sampled softmax, as in the example."""
    import keras
    import tensorflow as tf

    class SampledSoftmax(keras.layers.Layer):
        def build(self, hidden_shape, targets_shape):
            self.kernel = self.add_weight(shape=(VOCABULARY, WIDTH), name="kernel")
            self.bias = self.add_weight(shape=(VOCABULARY,), name="bias")

        def call(self, hidden, targets):
            hidden = keras.ops.reshape(hidden, (-1, WIDTH))
            losses = tf.nn.sampled_softmax_loss(
                self.kernel,
                self.bias,
                keras.ops.reshape(targets, (-1, 1)),
                hidden,
                num_sampled=512,
                num_classes=VOCABULARY,
            )
            self.add_loss(keras.ops.mean(losses))
            return keras.ops.reshape(losses, keras.ops.shape(targets))

    words = keras.Input((WINDOW,), dtype="int32", name="words")
    targets = keras.Input((WINDOW,), dtype="int32", name="targets")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(words)
    x = keras.layers.LSTM(WIDTH, return_sequences=True, unroll=True)(x)
    losses = SampledSoftmax(name="softmax")(x, targets)
    return keras.Model({"words": words, "targets": targets}, losses)


if __name__ == "__main__":
    main()
