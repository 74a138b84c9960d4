"""A small residual network, for images as small: no table, and batch statistics."""

import keras
import numpy as np
from keras import layers

CLASSES = 100


def resnet(batch, steps, size=16, widths=(32, 64, 128), blocks=1):
    """After He et al., "Deep Residual Learning", 2016, at a thousandth of the work.

    Args:
        batch: Examples of a step.
        steps: Steps for which there are data.
        size: Height and width of an image.
        widths: Channels of each stage; each after the first halves the image.
        blocks: Residual blocks of each stage.
    """
    images = keras.Input((size, size, 3))
    x = _normed(layers.Conv2D(widths[0], 3, padding="same", use_bias=False)(images))
    for stage, width in enumerate(widths):
        for block in range(blocks):
            x = _block(x, width, 2 if stage and not block else 1)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, layers.Dense(CLASSES)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    random = np.random.default_rng(2)
    drawn = random.normal(size=(batch * steps, size, size, 3)).astype("float32")
    return model, (drawn, random.integers(0, CLASSES, batch * steps))


def _block(x, width, stride):
    y = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    y = layers.Conv2D(width, 3, padding="same", use_bias=False)(_normed(y))
    if stride > 1 or x.shape[-1] != width:
        x = layers.Conv2D(width, 1, stride, use_bias=False)(x)
    return layers.ReLU()(x + layers.BatchNormalization()(y))


def _normed(x):
    return layers.ReLU()(layers.BatchNormalization()(x))
