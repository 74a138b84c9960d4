"""Trains the small model; one worker does something to the job in mid-training."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import keras
import models
from marked import MARK, living

import keras_parallax as kp

STEP = 5

folder, fault, culprit, servers = sys.argv[1:5]


def the_server():
    """The server process of this job, whoever has started it."""
    everyone = living(os.environ[MARK])
    return next(p for p in everyone if "keras_parallax.servers.serve" in p.cmdline())


def endless():
    while True:
        time.sleep(0.01)


FAULTS = {
    "exit": lambda: sys.exit(3),
    "loop": endless,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill-server": lambda: the_server().kill(),
    "freeze-server": lambda: the_server().suspend(),
}


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == STEP:
            time.sleep(2.5)  # By then the others know the step.
            if strategy.worker_index == int(culprit):
                pathlib.Path(folder, "fault").write_text(repr(time.time()))
                FAULTS[fault]()


strategy = kp.ParallaxStrategy(
    partitions=2, servers=servers, routes={"*/embeddings": "servers"}
)
with strategy.scope():
    # Tables and nothing else: no all-reduce tells of a worker that has left.
    words = keras.Input((models.LENGTH,), dtype="int32")
    found = keras.layers.Embedding(models.ROWS, 1, name="words")(words)
    found = keras.layers.GlobalAveragePooling1D()(found)
    if fault != "exit":
        found = keras.layers.Dense(1)(found)
    model = keras.Model(words, found)
    model.compile("sgd", "mse")
x, y = models.data()
model.fit(x, y, batch_size=models.BATCH, epochs=100, verbose=0, callbacks=[Fault()])
