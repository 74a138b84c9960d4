"""What has to be made inside of the strategy's scope, and the errors that say so."""

from __future__ import annotations

from keras_parallax.errors import ScopeError


class Scope:
    """`strategy.scope()`, in which TensorFlow's error of mixed strategies is ours.

    Keras enters the scope of the model's strategy to create the optimizer's slots;
    an optimizer that was made elsewhere asks another strategy for them there.

    Args:
        scope: TensorFlow's own context manager.
    """

    def __init__(self, scope):
        self._scope = scope
        # `tf.distribute.experimental_set_strategy` looks at it.
        self._context = scope._context

    def __enter__(self):
        return self._scope.__enter__()

    def __exit__(self, kind, error, traceback) -> None:
        self._scope.__exit__(kind, error, traceback)
        mixed = "Mixing different tf.distribute.Strategy"
        if isinstance(error, RuntimeError) and str(error).startswith(mixed):
            raise compiled_outside("The model") from error


def built_outside(variable: str) -> ScopeError:
    """The error to raise for a variable that the strategy does not know."""
    return ScopeError(
        f"The variable {variable} was created outside of the strategy's scope, but "
        "is trained by an optimizer created inside of it. Move the line that builds "
        "the model into `with strategy.scope():`, beside `model.compile(...)`."
    )


def compiled_outside(model: str) -> ScopeError:
    """The error to raise for an optimizer that the strategy does not know."""
    return ScopeError(
        f"{model} was built inside of the strategy's scope, but its optimizer was "
        "created outside of it. Move the line `model.compile(...)`, and the "
        "optimizer if it is made before, into `with strategy.scope():`."
    )
