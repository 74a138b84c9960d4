"""What a step asks of its tables, and in how many messages it does so."""

import keras
import tensorflow as tf

from keras_parallax.servers.home import Home, Pull, Push
from keras_parallax.servers.storage import Storage, TableSpec
from keras_parallax.servers.sums import SumsHere
from keras_parallax.tables.traffic import StepTraffic

WIDTH = 4


class Recorder(Home):
    """Answers with zeros, and notes which tables came together."""

    name = "recorder"
    devices = ("/device:CPU:0",)

    def __init__(self):
        self.pulled = []
        self.pushed = []

    def allocate(self, spec, constant, initial_rows):
        raise NotImplementedError

    def pull(self, requests):
        self.pulled.append([request.storage.spec.name for request in requests])
        return [tf.zeros((tf.size(request.ids), WIDTH)) for request in requests]

    def sum(self, contributions):
        self.pushed.append([push.storage.spec.name for push in contributions])
        return SumsHere(contributions, lambda sums: tf.no_op())


def _step(layers, double=False, apart=True):
    """A step in which two tables are needed at once and one after some layers."""
    home = Recorder()
    traffic = StepTraffic(home)
    traffic.travels_apart = lambda storages: apart
    mlp = keras.Sequential([keras.layers.Dense(WIDTH) for _ in range(layers)])
    mlp.build((None, WIDTH))
    storages = [
        Storage(TableSpec(name, 10, (WIDTH,), tf.float32, 1), [])
        for name in ("late", "words", "others")
    ]

    @tf.function
    def step():
        with traffic.step():
            ids = [tf.constant([1, 2]) for _ in storages]
            asked = [Pull(*pair) for pair in zip(storages, ids, strict=True)]
            late, words, others = map(traffic.pull, asked)
            loss = tf.reduce_sum(mlp(words + others) * late)
            traffic.send_pulls()
            traffic.expect(len(asked))
            for pull in asked:
                other = tf.constant([1, 2]) if double else pull.ids
                gradients = tf.zeros((2, WIDTH))
                traffic.push(Push(pull.storage, other, gradients, lambda *_: None))
        return loss

    step.get_concrete_function()
    return home


def test_what_is_needed_together_travels_together():
    home = _step(layers=2)
    assert home.pulled == home.pushed == [["late", "words", "others"]]


def test_what_is_needed_later_travels_while_the_step_computes():
    home = _step(layers=8)
    assert home.pulled == [["words", "others"], ["late"]]
    # Backwards, it is there first.
    assert home.pushed == [["late"], ["words", "others"]]


def test_what_is_not_worth_a_message_travels_with_the_others():
    home = _step(layers=8, apart=False)
    assert [sorted(names) for names in home.pulled] == [["late", "others", "words"]]
    assert home.pushed == [["late", "words", "others"]]


def test_gradients_of_other_ids_than_were_pulled_travel_together():
    assert _step(layers=8, double=True).pushed == [["late", "words", "others"]]
