"""1,797 handwritten digits of 8 x 8 pixels, which scikit-learn's wheel carries."""

import typing

import numpy as np

from data.packages import file_of


class Digits(typing.NamedTuple):
    """Images and what they show.

    Attributes:
        images: float32 array of shape `(n, 8, 8, 1)`, from 0 to 1.
        labels: int32 array of shape `(n,)`, from 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


def load_digits(test_share=0.2, seed=0):
    """Reads the digits and holds out a random share of them.

    Returns:
        `(train, test)`, two `Digits`.
    """
    path = file_of("sklearn", "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, "float32", delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1) / 16, table[:, -1].astype(int)
    test = np.random.default_rng(seed).random(len(table)) < test_share
    return tuple(
        Digits(images[part], labels[part].astype("int32")) for part in (~test, test)
    )
