"""The paper's systems come out in their order, for a small variant of its model."""

import dataclasses
import math

import pytest

from benchmarks import paper_prediction
from benchmarks.models import paper_lm
from keras_parallax.plan.use import Use

SMALL = paper_lm.Size(
    vocabulary=40_000, embedding=64, units=64, drawn=512, windows=16, words=8
)


@pytest.fixture(scope="module")
def uses():
    return paper_prediction.observed(SMALL, samples=2).uses


def test_the_models_tables_are_found(uses):
    sparse = {use.path: use for use in uses if use.gradient == "sparse"}
    assert {"embedding/embeddings", "softmax/kernel"} <= set(sparse)
    kernel = sparse["softmax/kernel"]
    # The words drawn, and those of the text.
    assert 512 <= kernel.alpha * kernel.num_rows <= 512 + 16 * 8
    assert kernel.alpha < kernel.alpha_machine < kernel.alpha_all


def test_the_order_of_the_systems_is_the_papers(uses):
    sold = paper_prediction.SOLD
    # As much slower as the model is smaller, or latency would be all there is.
    network = dataclasses.replace(
        sold,
        bandwidth_bytes_per_s=sold.bandwidth_bytes_per_s / 200,
        local_bandwidth_bytes_per_s=sold.local_bandwidth_bytes_per_s / 200,
        memory_bytes_per_s=sold.memory_bytes_per_s / 200,
    )
    order = paper_prediction.order(paper_prediction.step_seconds(uses, network))
    assert order == list(paper_prediction.PUBLISHED_WORDS_PER_S)


#: As `benchmarks.paper_prediction` finds them for the model in full.
PAPER = [
    Use("embedding", 793_470, 2048, alpha=0.002, alpha_machine=0.0097, alpha_all=0.06),
    Use("softmax", 793_470, 2048, alpha=0.0117, alpha_machine=0.051, alpha_all=0.28),
    Use("lstm", 1024, 32_768, gradient="dense"),
    Use("projection", 2048, 2048, gradient="dense"),
]


def test_the_order_in_full_size_with_nothing_fitted_and_fitted():
    published = {
        name: paper_prediction.WORDS / words
        for name, words in paper_prediction.PUBLISHED_WORDS_PER_S.items()
    }
    given = paper_prediction.SOLD
    network = paper_prediction.fitted(PAPER, published)

    def error(network):
        found = paper_prediction.step_seconds(PAPER, network)
        return sum(math.log(found[name] / published[name]) ** 2 for name in published)

    assert error(network) < error(given)
    for figures in (given, network):
        seconds = paper_prediction.step_seconds(PAPER, figures)
        assert paper_prediction.order(seconds) == list(published)
