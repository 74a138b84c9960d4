"""Functions that run on a server, for one message there and one back.

Operations that are only placed on a server are a part of the step that TensorFlow
starts there with a message of its own, and each tensor that they take from this
worker or give to it is asked for with one more. In a call the arguments travel with
the question and the results with the answer. With few rows in a step it is the number
of messages that takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


def call(
    device: str, body: Callable[..., list[tf.Tensor]], arguments: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Runs `body(*arguments)` on `device`.

    Args:
        device: Full name of a device.
        body: What to run there. All that it needs of this worker is an argument; it
            opens what is on the server by its name.
        arguments: Its arguments.

    Returns:
        Its results.

    Raises:
        RuntimeError: The body uses a tensor of this worker that is no argument.
    """
    if tf.executing_eagerly():
        with tf.device(device):
            return body(*arguments)
    signature = [tf.TensorSpec(a.shape, a.dtype) for a in arguments]
    # Without the device the body would be placed where the calling step runs.
    with tf.device(device):
        function = tf.function(
            body, input_signature=signature, autograph=False
        ).get_concrete_function()
    if function.captured_inputs:
        raise RuntimeError(
            "A function that runs on a server takes what it needs as arguments. "
            f"Received: {body} on {device}, which also uses "
            f"{list(function.captured_inputs)}."
        )
    return tf.raw_ops.RemoteCall(
        target=device,
        args=list(arguments),
        Tout=[output.dtype for output in function.outputs],
        f=function,
    )


def placed(
    device: str, body: Callable[..., list[tf.Tensor]], arguments: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Places the operations of `body(*arguments)` on `device`; returns its results.

    See `call`, which takes fewer messages, but is slower over a slow network: it has
    the arguments and results in memory once more, packed, before they are sent.
    """
    with tf.device(device):
        results = body(*arguments)
    return [tf.identity(result) for result in results]
