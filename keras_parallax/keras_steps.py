"""What `strategy.run` is asked to run, when it is Keras that asks.

Keras hands over the bound `train_step` or `test_step` of a model, and for
`predict` a function that closes over the model. Anything else is somebody's own
training loop.
"""

import dataclasses
import inspect
from collections.abc import Callable

import keras


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that a Keras model runs.

    Attributes:
        model: The model; None in a custom loop.
        predicts: Whether its outputs are predictions to be gathered.
        trains: Whether it may update variables.
    """

    model: keras.Model | None = None
    predicts: bool = False
    trains: bool = True


def step_of(function: Callable) -> Step:
    """Reads off `function` whose step it is."""
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, keras.Model):
        return Step(owner, trains=function.__name__ != "test_step")
    if "make_predict_function" in getattr(function, "__qualname__", ""):
        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, keras.Model):
                return Step(cell.cell_contents, predicts=True, trains=False)
    return Step()
