"""Exceptions carry their facts, in the message and as attributes."""

import pickle

import pytest

from keras_parallax import errors


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (
            errors.ProcessLostError("worker", 1, 12, "signal 9"),
            {"role": "worker", "index": 1, "step": 12, "reason": "signal 9"},
        ),
        (
            errors.ServerLostError(0, 3, "signal 9", "127.0.0.1:5", ["words", "users"]),
            {
                "role": "server",
                "index": 0,
                "step": 3,
                "reason": "signal 9",
                "address": "127.0.0.1:5",
                "tables": ("words", "users"),
            },
        ),
        (errors.TableError("id 7 is out of range", "words"), {"table": "words"}),
    ],
)
def test_fields_are_attributes_in_the_message_and_survive_pickling(error, fields):
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert {name: getattr(found, name) for name in fields} == fields
        assert str(found) == str(error)
    for value in fields.values():
        for part in value if isinstance(value, tuple) else [value]:
            assert str(part) in str(error)


def test_errors_are_what_python_users_expect_to_catch():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.TableError, ValueError)
    assert issubclass(errors.ClusterError, RuntimeError)
    assert issubclass(errors.ScopeError, RuntimeError)
    assert issubclass(errors.ServerLostError, errors.ProcessLostError)
