"""The plan is looked at again between two steps of `model.fit`.

Keras calls `model.train_function` for each step, and TensorFlow runs a graph that was
traced before. What stands in the function's place here counts the calls; every so
often it measures how tables are used, and where that moves one to another road it
has the step traced anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras

from keras_parallax.tables.router import Router

# Soon, because the first plan knows nothing of what is looked up; later seldom, but
# soon again where something has changed.
_FIRST_CALLS = (5, 20)
_EVERY_CALLS = 100
_AGAIN_CALLS = 10


class Adaptation:
    """Follows the training of models.

    Args:
        router: Decides, and moves tables.
    """

    def __init__(self, router: Router):
        self._router = router
        self._calls: weakref.WeakKeyDictionary[keras.Model, int] = (
            weakref.WeakKeyDictionary()
        )

    def follow(self, model: keras.Model) -> None:
        """Looks at the plan between the steps of a model, from its next step on."""
        function = model.train_function
        if self._router.adapts and not isinstance(function, (_Followed, type(None))):
            self._calls.setdefault(model, 0)
            model.train_function = _Followed(function, model, self)

    def before_step(self, model: keras.Model) -> None:
        """Called between two steps, by every worker."""
        self._calls[model] += 1
        calls = self._calls[model]
        again = self._router.is_undecided and calls % _AGAIN_CALLS == 0
        if calls in _FIRST_CALLS or calls % _EVERY_CALLS == 0 or again:
            if self._router.reconsider():
                retrace(model)


class _Followed:
    """A train function, and what happens before each of its calls."""

    def __init__(self, function: Callable, model: keras.Model, adaptation: Adaptation):
        self._function = function
        self._model = weakref.ref(model)
        self._adaptation = adaptation

    def __call__(self, *args):
        model = self._model()
        if model is not None and model.train_function is self:
            self._adaptation.before_step(model)
            if model.train_function is not self:
                return model.train_function(*args)
        return self._function(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def retrace(model: keras.Model) -> None:
    """Has a model's steps traced anew when they are next called for."""
    for make in (
        model.make_train_function,
        model.make_test_function,
        model.make_predict_function,
    ):
        make(force=True)
