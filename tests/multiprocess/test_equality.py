"""N workers give what one process gives with the dense gradient."""

import functools
import os

import numpy as np
import pytest

from tests.multiprocess import models
from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

OPTIMIZERS = ("sgd", "momentum", "adagrad", "ftrl")
# Jobs that differ in their numbers only share them: each home has had all.
SOME, OTHERS = OPTIMIZERS[::2], OPTIMIZERS[1::2]
# `clipnorm` is another bound on the same sums: it is tried in one job.
CLIPPED = ("clipvalue", "global_clipnorm")
JOBS = [
    pytest.param(1, 0, "in_process", OPTIMIZERS, id="in-process"),
    pytest.param(1, 1, "dedicated", SOME, id="1-worker-1-server"),
    pytest.param(1, 2, "dedicated", OTHERS, id="1-worker-2-servers"),
    pytest.param(2, 1, "dedicated", OTHERS, id="2-workers-1-server"),
    pytest.param(
        2, 2, "dedicated", (*OPTIMIZERS, "clipnorm"), id="2-workers-2-servers"
    ),
    pytest.param(
        3, 1, "dedicated", (*SOME, "global_clipnorm"), id="3-workers-1-server"
    ),
    pytest.param(3, 2, "dedicated", OPTIMIZERS, id="3-workers-2-servers"),
    pytest.param(2, 0, "peers", (*OPTIMIZERS, *CLIPPED), id="2-peers"),
    pytest.param(3, 0, "peers", OPTIMIZERS, id="3-peers"),
    pytest.param(
        2, 2, "ps", ("adagrad", "adamw", *CLIPPED), id="everything-on-servers"
    ),
]
PARTITIONS = (1, 3, 7)


def cases_of(job, optimizers):
    """The cases of a job: each optimizer with one number of partitions, which the
    jobs take in turns; or, with KERAS_PARALLAX_TEST_ALL=1, with all of them."""
    if os.environ.get("KERAS_PARALLAX_TEST_ALL") == "1":
        return [f"{name}-{count}" for name in optimizers for count in PARTITIONS]
    return [
        f"{name}-{PARTITIONS[(job + index) % len(PARTITIONS)]}"
        for index, name in enumerate(optimizers)
    ]


@functools.cache
def oracle(name, build=models.build):
    """Weights and slots of a model's dense twin, and of the model without tables."""
    kind = name
    if name == "dense":
        build, kind = models.build_without_tables, "momentum"
    else:
        build = functools.partial(build, dense=True)
    model = build()
    optimizer = models.OPTIMIZERS[kind]()
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
    return models.train(model, optimizer)


@pytest.mark.parametrize("number", range(len(JOBS)), ids=[job.id for job in JOBS])
def test_training_equals_dense_gradient_in_one_process(number, tmp_path):
    workers, servers, kind, optimizers = JOBS[number].values
    cases = cases_of(number, optimizers)
    job = run_job(
        "equality",
        tmp_path,
        kind,
        ",".join(cases),
        workers=workers,
        servers=servers,
        timeout_seconds=280,
    ).check()
    home = "dedicated" if kind == "ps" else kind
    for case in [*cases, "dense-1"]:
        name = case.rpartition("-")[0]
        with np.load(tmp_path / f"{case}.npz") as saved:
            found = [saved[key] for key in saved.files]
        expected = oracle(name, models.build_deep)
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
