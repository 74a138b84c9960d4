"""Systems that train one model on many workers, each as its own users would write it.

A system gets a model that is built and compiled by the same function as for all others,
and the same global batches, of which each worker takes its share.

* `one process`: the stock model, each worker by itself. On one host there is nothing
  else to do; on many hosts it is what computing alone takes.
* `ours`: `ParallaxStrategy()`, whose plan finds itself; tables live in the workers.
* `ours, servers`: the same with tables on server processes, one a host.
* `ours, fixed`: sparse variables on servers and dense ones all-reduced, whatever the
  plan would say: the rule of Parallax.
* `horovod`: `hvd.allreduce` on each gradient in a `train_step`; it gathers slices.
* `horovod, dense`: the same, with slices made dense first.
* `optimised ps`: `architecture="ps"`: all variables on servers, tables in partitions,
  one a server, and the workers of a machine send and receive as one. Parallax's
  authors call it OptPS.
* `naive ps`: all variables on servers, each whole on one of them, and each worker for
  itself (NaivePS). It still looks up a row once, however often it is in a batch, where
  TensorFlow's own servers send it as often.

* `tf servers, async`: TensorFlow's own `ParameterServerStrategy`, which knows no other
  way, in plain TensorFlow; see `tensorflow_servers.py`. The language model only.

* `mirrored`: TensorFlow's `MultiWorkerMirroredStrategy`; see `mirrored.py`.

In `naive ps` and `optimised ps` each worker speaks with each server, as in the paper;
elsewhere this package has workers speak with the server beside them, and with each
other.
"""

import dataclasses
from collections.abc import Callable

BATCHES = 8
#: The plan is looked at before steps 5 and 20, and then seldom.
_FIT_STEPS = 22

#: Weights that are looked up by row, though no Embedding's.
_TABLES = {"*softmax/kernel": "servers", "*embedding*": "servers", "*words*": "servers"}
_PS = {"architecture": "ps", "servers": "dedicated", "routes": _TABLES}

STRATEGIES = {
    "ours": {"servers": "peers"},
    "ours, servers": {"servers": "dedicated"},
    "ours, fixed": {"servers": "dedicated", "routes": _TABLES},
    "optimised ps": _PS,
    "naive ps": {**_PS, "partitions": 1, "local_aggregation": False},
}
HOROVOD = {"horovod": False, "horovod, dense": True}
ALONE = "one process"
TENSORFLOW, MIRRORED = "tf servers, async", "mirrored"
NAMES = (ALONE, *STRATEGIES, *HOROVOD, TENSORFLOW, MIRRORED)


def needs_servers(name):
    """Whether a system has server processes."""
    return STRATEGIES.get(name, {}).get("servers") == "dedicated"


@dataclasses.dataclass(frozen=True)
class Model:
    """How to make a model and its data.

    Attributes:
        build: `(batch, steps, **options) -> (compiled model, (x, y))`.
        options: What else it is given.
        batch: Global batch.
    """

    build: Callable
    options: dict
    batch: int

    def make(self):
        """Returns the compiled model and its batches, without an end."""
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        model, data = self.build(self.batch, BATCHES, **self.options)
        # Keras' Adagrad touches all rows of a table, unless a strategy of ours is
        # there: systems would be compared by that, and not by what they exchange.
        model.compile(keras.optimizers.SGD(0.05), model.loss)
        dataset = tf.data.Dataset.from_tensor_slices(data)
        return model, dataset.batch(self.batch, drop_remainder=True).cache().repeat()


@dataclasses.dataclass(frozen=True)
class System:
    """A system, ready to take steps.

    Attributes:
        step: Takes a step; returns the loss.
        strategy: The `ParallaxStrategy` that is behind it, or None.
        changes: What its plan has changed until now.
    """

    step: Callable[[], float]
    strategy: object | None = None
    changes: tuple = ()


def make(name, model, job):
    """Makes a system and trains with it until its plan is made.

    Args:
        name: One of `NAMES`.
        model: `Model`.
        job: This worker's place among all; they make the same systems in one order.
    """
    if name in STRATEGIES:
        return _ours(name, model)
    if name in HOROVOD:
        return _horovod(model, job, dense=HOROVOD[name])
    return _alone(model, job)


def _ours(name, model):
    import keras_parallax as kp

    strategy = kp.ParallaxStrategy(**STRATEGIES[name])
    with strategy.scope():
        ours, dataset = model.make()
    if "ps" in name and hasattr(strategy._home.first, "_relay"):
        # There is no option for it, since nobody should want it.
        strategy._home.first._relay = None
    if "ps" not in name:
        ours.fit(dataset, steps_per_epoch=_FIT_STEPS, verbose=0)
    ours.make_train_function(force=True)
    # Called by itself, and not by `fit`, which would look at the plan again.
    train = ours.train_function
    batches = iter(strategy.experimental_distribute_dataset(dataset))
    return System(
        lambda: float(train(batches)["loss"]), strategy, tuple(strategy.plan.changes)
    )


def _horovod(model, job, dense):
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    class Reduced(keras.Model):
        """A model whose gradients are those of all workers."""

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_weights)
            if dense:
                gradients = [tf.convert_to_tensor(g) for g in gradients]
            gradients = [hvd.allreduce(g, op=hvd.Average) for g in gradients]
            self.optimizer.apply_gradients(
                zip(gradients, self.trainable_weights, strict=True)
            )
            return {"loss": loss}

    stock, dataset = model.make()
    reduced = Reduced(stock.inputs, stock.outputs)
    optimizer = stock.optimizer
    reduced.compile(type(optimizer).from_config(optimizer.get_config()), stock.loss)
    for weight in reduced.weights:
        weight.assign(hvd.broadcast(weight.value, 0))
    return _stepping(reduced, dataset, job)


def _alone(model, job):
    stock, dataset = model.make()
    return _stepping(stock, dataset, job)


def _stepping(model, dataset, job):
    from keras_parallax.data import share_of

    model.make_train_function()
    batches = iter(share_of(dataset, job.rank, job.size))
    return System(lambda: float(model.train_function(batches)["loss"]))
