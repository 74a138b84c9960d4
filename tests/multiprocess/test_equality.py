"""N workers give what one process gives with the dense gradient."""

import functools

import numpy as np
import pytest

from tests.multiprocess import models
from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

OPTIMIZERS = ("sgd", "momentum", "adagrad", "ftrl")
JOBS = [
    pytest.param(1, 0, "in_process", OPTIMIZERS, id="in-process"),
    pytest.param(1, 1, "dedicated", OPTIMIZERS, id="1-worker-1-server"),
    pytest.param(1, 2, "dedicated", OPTIMIZERS, id="1-worker-2-servers"),
    pytest.param(2, 1, "dedicated", OPTIMIZERS, id="2-workers-1-server"),
    pytest.param(2, 2, "dedicated", OPTIMIZERS, id="2-workers-2-servers"),
    pytest.param(3, 1, "dedicated", OPTIMIZERS, id="3-workers-1-server"),
    pytest.param(3, 2, "dedicated", OPTIMIZERS, id="3-workers-2-servers"),
    pytest.param(2, 0, "peers", OPTIMIZERS, id="2-peers"),
    pytest.param(3, 0, "peers", OPTIMIZERS, id="3-peers"),
    pytest.param(2, 2, "ps", ("adagrad", "adamw"), id="everything-on-servers"),
]
PARTITIONS = (1, 3, 7)


@functools.cache
def oracle(name):
    """Weights and slots of the dense twin, and of the model without tables."""
    twins = {"dense": (models.build_without_tables, "momentum")}
    build, kind = twins.get(name, (functools.partial(models.build, dense=True), name))
    model = build()
    optimizer = models.OPTIMIZERS[kind]()
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
    return models.train(model, optimizer)


@pytest.mark.parametrize(("workers", "servers", "kind", "optimizers"), JOBS)
def test_training_equals_dense_gradient_in_one_process(
    workers, servers, kind, optimizers, tmp_path
):
    given = kind, ",".join(map(str, PARTITIONS)), ",".join(optimizers)
    job = run_job(
        "equality",
        tmp_path,
        *given,
        workers=workers,
        servers=servers,
        timeout_seconds=280,
    ).check()
    cases = [f"{name}-{p}" for name in optimizers for p in PARTITIONS]
    home = "dedicated" if kind == "ps" else kind
    for case in [*cases, "dense-1"]:
        name = case.rpartition("-")[0]
        with np.load(tmp_path / f"{case}.npz") as saved:
            found = [saved[key] for key in saved.files]
        expected = oracle(name)
        assert len(found) == len(expected)
        for state, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                state, wanted, rtol=1e-4, atol=1e-6, err_msg=case
            )
    for case in cases:
        plan = {line["variable"]: line for line in job.results[0][case]}
        for table in ("embedding/embeddings", "bias_of_word/table"):
            line = next(v for k, v in plan.items() if k.endswith(table.split("/")[1]))
            assert line["home"] == home, table
            assert line["partitions"] == int(case.rpartition("-")[2])
            assert line["gradient"] == "sparse"
