"""Looking rows up in a table, and the gradient of doing so.

A batch asks for the same rows again and again. Ids are made unique before they
are pulled, so each row crosses the network once; the gradient is summed over the
same unique ids, so each row's gradient crosses once, too.
"""

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.collectives.operations import in_no_order
from keras_parallax.servers.home import Pull
from keras_parallax.tables.table import Table


def lookup(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """Rows of `table`: `ids.shape -> (*ids.shape, *row_shape)`.

    Differentiates to `tf.IndexedSlices` with unique indices. An id outside
    `[0, num_rows)` is an `InvalidArgumentError` that names the table.

    Args:
        table: The table.
        ids: Integer tensor of any shape, or a `tf.RaggedTensor`.

    Raises:
        TableError: The ids are not integers.
    """
    if isinstance(ids, tf.RaggedTensor):
        return tf.ragged.map_flat_values(lambda flat: lookup(table, flat), ids)
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise errors.TableError(
            f"Rows of {table.path} are looked up by integer ids. Received ids of "
            f"type {ids.dtype.name}: cast them, for example with "
            "`keras.ops.cast(ids, 'int32')`.",
            table=table.path,
        )
    if table.replica is not None:
        return tf.gather(table.replica, ids)
    rows = _lookup_unique(table, ids)
    return tf.ensure_shape(rows, ids.shape.concatenate(table.row_shape))


def _lookup_unique(table: Table, ids: tf.Tensor) -> tf.Tensor:
    row_shape = table.row_shape

    @tf.custom_gradient
    def looked_up(anchor, ids):
        del anchor  # What the tape knows the table by; its value means nothing.
        flat = tf.reshape(ids, [-1])
        checked = tf.cast(_checked(table, flat), table.storage.spec.id_dtype)
        unique, inverse = tf.unique(checked)
        table.looking_up(unique)
        table.count_pulled(tf.size(unique), tf.size(flat))
        rows = table.traffic.pull(Pull(table.storage, unique))
        shape = tf.concat([tf.shape(ids), tf.constant(row_shape, tf.int32)], 0)
        found = tf.reshape(tf.gather(rows, inverse), shape)

        def gradient(upstream):
            table.gradients_seen.add("sparse")
            table.traffic.send_pulls()  # The forward pass is over.
            by_id = tf.reshape(tf.convert_to_tensor(upstream), (-1, *row_shape))
            summed = tf.math.unsorted_segment_sum(by_id, inverse, tf.size(unique))
            whole = tf.constant(table.shape.as_list(), unique.dtype)
            return tf.IndexedSlices(summed, unique, whole), None

        return found, gradient

    return looked_up(table.anchor, ids)


def _checked(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """`ids`, once it is certain that the table has such rows."""
    bound = tf.constant(min(table.num_rows, ids.dtype.max), ids.dtype)
    inside = (ids >= 0) & (ids < bound)
    message = (
        f"An id looked up in {table.path} is outside of the table. Expected ids in "
        f"[0, {table.num_rows}). Received, among others:"
    )
    outside = tf.boolean_mask(ids, ~inside)[:8]
    # Rows that are needed first are not to wait for what is computed with them.
    with in_no_order():
        check = tf.debugging.Assert(tf.reduce_all(inside), [message, outside])
    with tf.control_dependencies([check]):
        return tf.identity(ids)
