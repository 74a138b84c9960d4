"""`fit`, `evaluate` and `predict` of several workers are those of one process."""

import keras
import numpy as np
import pytest

from tests.multiprocess import models
from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

# 121 examples in batches of 10: the last batch leaves two of three workers without any.
EXAMPLES = 121


@pytest.fixture(scope="module")
def oracle():
    """History and weights of one process with the dense gradient."""
    x, y = (part[:EXAMPLES] for part in models.data())
    model = models.build(dense=True)
    model.compile(
        keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"], jit_compile=False
    )
    model.set_weights(models.start_weights(model))
    fitted = model.fit(
        x, y, batch_size=10, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)
    )
    return fitted.history, model.get_weights()


@pytest.mark.parametrize(
    ("workers", "servers", "steps_per_execution"), [(3, 0, 1), (2, 2, 4)]
)
def test_every_worker_tells_what_one_process_would(
    workers, servers, steps_per_execution, oracle, tmp_path
):
    job = run_job(
        "fit", tmp_path, steps_per_execution, workers=workers, servers=servers
    ).check()
    first, *others = job.results
    for other in others:
        assert other == first
    history, weights = oracle
    assert first["history"].keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(first["history"][name], values, rtol=1e-4)
    for found, wanted in zip(first["weights"], weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert len(first["predicted"]) == EXAMPLES
    assert any(np.ptp(weight) > 0 for weight in first["start"])
