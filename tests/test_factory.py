"""Which variables of a model become tables, and what becomes of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.tables.dispatch import table_of
from keras_parallax.tables.table import Table
from tests.multiprocess import models
from tests.twins import fit, parallax, prepared


@pytest.fixture
def strategy():
    return parallax(partitions=3)


def test_embeddings_and_routed_variables_become_tables(strategy):
    with strategy.scope():
        model = models.build()
    tables = [w.path for w in model.weights if table_of(w) is not None]
    assert tables == [strategy.plan[n].variable for n in ("embeddings", "table")]
    assert all(strategy.plan[path].partitions == 3 for path in tables)


def test_plan_has_a_line_for_each_trainable_variable(strategy):
    with strategy.scope():
        model = models.build()
    assert [e.variable for e in strategy.plan] == [
        weight.path for weight in model.trainable_weights
    ]
    assert [e.shape for e in strategy.plan] == [
        tuple(weight.shape) for weight in model.trainable_weights
    ]
    assert {e.gradient for e in strategy.plan} == {"unknown"}


def test_plan_learns_the_gradients_in_the_first_step(strategy):
    fit(prepared(models.build, lambda: keras.optimizers.SGD(0.1), strategy), steps=1)
    gradients = {e.variable: e.gradient for e in strategy.plan}
    for variable, gradient in gradients.items():
        looked_up = variable.endswith(("embeddings", "table"))
        assert gradient == ("sparse" if looked_up else "dense")


def test_outside_of_the_scope_there_are_no_tables(strategy):
    model = models.build()
    assert not any(table_of(weight) for weight in model.weights)
    assert len(strategy.plan) == 0


def test_slots_of_a_table_are_tables_beside_it(strategy):
    with strategy.scope():
        model = models.build()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    (table,) = [table_of(w) for w in model.weights if w.path.endswith("embeddings")]
    assert len(table.slots) == 2
    for slot in table.slots:
        assert slot.owner is table
        assert slot.storage.spec.num_partitions == 3
        assert [p.device for p in slot.storage.partitions] == [
            p.device for p in table.storage.partitions
        ]
    assert not any(np.any(slot.numpy()) for slot in table.slots)


def test_a_table_cannot_have_more_partitions_than_rows(strategy):
    with strategy.scope():
        layer = keras.layers.Embedding(2, 4)
        layer.build()
    assert table_of(layer.embeddings).storage.spec.num_partitions == 2


def test_plain_tensorflow_variables_stay_plain(strategy):
    with strategy.scope():
        ready = tf.Variable(tf.ones((3, 2)), name="plain")
        lazily = tf.Variable(lambda: tf.ones((3, 2)), name="lazily")
    for variable in (ready, lazily):
        assert isinstance(variable, tf.Variable)
        assert variable.shape == (3, 2)


def test_a_plain_tensorflow_variable_can_be_routed_by_its_name():
    strategy = parallax(routes={"words": "servers"})
    value = np.arange(8.0, dtype="float32").reshape(4, 2)
    with strategy.scope():
        table = tf.Variable(value, name="words")
    assert isinstance(table, Table)
    np.testing.assert_array_equal(tf.gather(table, [2, 0]), value[[2, 0]])


def test_a_table_tells_of_itself_what_a_variable_does(strategy):
    with strategy.scope():
        layer = keras.layers.Embedding(10, 4)
        layer.build()
    table = table_of(layer.embeddings)
    assert table.shape == (10, 4)
    assert table.dtype == tf.float32
    assert table.name == "embeddings"
    assert table.trainable
    assert "10, 4" in repr(table) and "partitions=3" in repr(table)
    np.testing.assert_array_equal(np.asarray(table), table.numpy())


def test_assignment_and_arithmetic(strategy):
    with strategy.scope():
        layer = keras.layers.Embedding(10, 4)
        layer.build()
    value = np.arange(40.0, dtype="float32").reshape(10, 4)
    layer.embeddings.assign(value)
    np.testing.assert_array_equal(layer.embeddings.numpy(), value)
    table = table_of(layer.embeddings)
    table.assign_add(tf.ones((10, 4)))
    table.assign_sub(3 * tf.ones((10, 4)))
    np.testing.assert_array_equal(table.numpy(), value - 2)
    np.testing.assert_array_equal(2 - table, 4 - value)
    np.testing.assert_array_equal(abs(-table), np.abs(value - 2))


def test_closing_frees_the_rows_of_tables_and_slots(strategy):
    model = prepared(models.build, lambda: keras.optimizers.Adam(), strategy)
    members = []
    for table in filter(None, map(table_of, model.weights)):
        members += [table, *table.slots]
    assert len(members) == 6
    strategy.close()
    for member in members:
        with pytest.raises(tf.errors.OpError):
            member.numpy()
