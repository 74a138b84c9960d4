"""A dense variable whose value lives on a server.

Where everything is on servers, a step begins with reading the variables and ends with
pushing their gradients, as the tables' rows do. Within the step the value read is
an ordinary variable of this worker, so that layers and the gradient tape see
nothing unusual.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import values

from keras_parallax.servers.home import Pull
from keras_parallax.tables.table import Table


class ServerVariable(values.SyncOnReadVariable):
    """This worker's copy of a variable on a server.

    In a step it is the copy; outside of steps, reading and assigning it mean the
    value on the server.

    Args:
        strategy: The strategy.
        copy: The copy.
        table: The value on the server: a table of a single row.
    """

    def __init__(self, strategy, copy: tf.Variable, table: Table):
        super().__init__(strategy, [copy], tf.VariableAggregation.MEAN)
        self.copy = copy
        self.table = table

    def request(self) -> Pull:
        """What to pull for the copy to be up to date."""
        return Pull(self.table.storage, tf.zeros([1], self.table.storage.spec.id_dtype))

    def refresh(self, rows: tf.Tensor) -> None:
        """Takes what was pulled."""
        self.copy.assign(rows[0])

    def slices(self, gradient: tf.Tensor | tf.IndexedSlices) -> tf.IndexedSlices:
        """The gradient as that of the table's single row."""
        whole = tf.convert_to_tensor(gradient)
        ids = tf.zeros([1], self.table.storage.spec.id_dtype)
        return tf.IndexedSlices(whole[None], ids)

    def _get_cross_replica(self):
        if tf.executing_eagerly():
            return tf.constant(self.numpy())
        return self.copy.read_value()

    def numpy(self) -> np.ndarray:
        """The value on the server."""
        return self.table.numpy()

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Overwrites the copy, and outside of steps the value on the server."""
        del use_locking, name, read_value
        if tf.distribute.in_cross_replica_context() or (
            not tf.distribute.has_strategy()
        ):
            self.table.assign(np.asarray(value))
        self.copy.assign(value)
        return self
