"""Initial tables: Keras's distributions, a function of seed, row and column."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.servers import storage
from keras_parallax.tables import initial
from tests.twins import parallax

kinds = keras.initializers

SHAPE = (1500, 40)
SEEDED = {
    "uniform": lambda: kinds.RandomUniform(-0.3, 0.5, seed=3),
    "normal": lambda: kinds.RandomNormal(0.1, 0.2, seed=3),
    "truncated": lambda: kinds.TruncatedNormal(0.1, 0.2, seed=3),
    "glorot_uniform": lambda: kinds.GlorotUniform(seed=3),
    "glorot_normal": lambda: kinds.GlorotNormal(seed=3),
    "he_uniform": lambda: kinds.HeUniform(seed=3),
    "he_normal": lambda: kinds.HeNormal(seed=3),
    "lecun_uniform": lambda: kinds.LecunUniform(seed=3),
    "lecun_normal": lambda: kinds.LecunNormal(seed=3),
    "fan_out": lambda: kinds.VarianceScaling(2.0, "fan_out", seed=3),
    "untruncated": lambda: kinds.VarianceScaling(
        1.0, "fan_avg", "untruncated_normal", seed=3
    ),
}


class Halves(kinds.RandomUniform):
    """Draws otherwise than the class that it derives from."""

    def __call__(self, shape, dtype=None):
        return 0.5 * keras.ops.ones(shape, dtype)


class Renamed(kinds.RandomUniform):
    """Draws as the class that it derives from."""


def table(initializer, shape=SHAPE, partitions=3):
    """The value with which an Embedding's weights begin under the strategy."""
    with parallax(partitions=partitions).scope():
        layer = keras.layers.Embedding(*shape, embeddings_initializer=initializer)
        layer.build()
    return np.asarray(layer.embeddings)


def never_whole(monkeypatch):
    monkeypatch.setattr(initial, "WHOLE_LIMIT_BYTES", 0)


@pytest.mark.parametrize("name", SEEDED)
def test_distribution_is_that_of_keras(name, monkeypatch):
    never_whole(monkeypatch)
    found = table(SEEDED[name]())
    expected = np.asarray(SEEDED[name]()(SHAPE))
    spread = expected.std()
    assert abs(found.mean() - expected.mean()) < 0.02 * spread
    assert abs(found.std() - spread) < 0.02 * spread
    quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    np.testing.assert_allclose(
        np.quantile(found, quantiles),
        np.quantile(expected, quantiles),
        atol=0.05 * spread,
    )
    if name not in ("normal", "untruncated"):
        # What bounds Keras's draws bounds these.
        np.testing.assert_allclose(found.min(), expected.min(), atol=0.05 * spread)
        np.testing.assert_allclose(found.max(), expected.max(), atol=0.05 * spread)


@pytest.mark.parametrize("name", ["uniform", "truncated", "fan_out"])
def test_elements_are_drawn_independently(name):
    found = table(SEEDED[name]())
    assert len(np.unique(found)) > 0.99 * found.size
    for a, b in ((found[:, 0], found[:, 1]), (found[:-1, 0], found[1:, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.1


@pytest.mark.parametrize("name", ["uniform", "normal", "glorot_normal", "fan_out"])
def test_any_number_of_partitions_gives_the_same_table(name):
    one = table(SEEDED[name](), (53, 4), partitions=1)
    for partitions in (2, 7):
        np.testing.assert_array_equal(
            table(SEEDED[name](), (53, 4), partitions=partitions), one
        )


def test_a_row_does_not_depend_on_how_many_there_are():
    few = table(kinds.RandomUniform(seed=3), (10, 4))
    many = table(kinds.RandomUniform(seed=3), (99, 4))
    np.testing.assert_array_equal(few, many[:10])


def test_seeds_tell_tables_apart():
    values = [
        table(kinds.RandomUniform(seed=seed), (9, 4)) for seed in (1, 1, 2, None, None)
    ]
    np.testing.assert_array_equal(values[0], values[1])
    for a, b in ((0, 2), (0, 3), (3, 4)):
        assert not np.any(values[a] == values[b])


def test_unseeded_tables_follow_the_global_seed():
    values = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        values.append(table("uniform", (9, 4)))
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize(
    ("initializer", "value"),
    [("zeros", 0.0), ("ones", 1.0), (kinds.Constant(0.3), 0.3)],
)
def test_constants(initializer, value, monkeypatch):
    never_whole(monkeypatch)
    np.testing.assert_array_equal(
        table(initializer, (53, 4)), np.full((53, 4), value, "float32")
    )


ROWS = np.random.default_rng(0).normal(size=(53, 4)).astype("float32")


def never_called(*arguments, **options):
    raise AssertionError("The initializer was called: it copies the array whole.")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_array_is_never_made_a_tensor(dtype, monkeypatch):
    never_whole(monkeypatch)
    monkeypatch.setattr(kinds.Constant, "__call__", never_called)
    rows = ROWS.astype(dtype)
    np.testing.assert_array_equal(table(kinds.Constant(rows), (53, 4)), rows)
    # Keras wraps an array that is given as it is into a function of its own.
    np.testing.assert_array_equal(table(rows, (53, 4)), rows)


def test_a_constant_for_each_column():
    found = table(kinds.Constant([1.0, 2.0, 3.0, 4.0]), (53, 4))
    np.testing.assert_array_equal(found, np.tile([1.0, 2.0, 3.0, 4.0], (53, 1)))


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_mapped_file(partitions, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PIECE_BYTES", 100)
    np.save(tmp_path / "rows.npy", ROWS)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    found = table(kinds.Constant(mapped), (53, 4), partitions)
    np.testing.assert_array_equal(found, ROWS)
    np.testing.assert_array_equal(mapped, ROWS)


def test_an_array_of_another_shape_is_refused():
    with pytest.raises(errors.TableError, match=r"\(53, 3\); expected \(53, 4\)"):
        table(kinds.Constant(ROWS[:, :3]), (53, 4))


class Crowd:
    """A job as seen by worker 1, whose worker 0 has other arrays."""

    def gather(self, value):
        return ["another", value]

    def broadcast(self, array, root):
        assert root == 0
        return array + 1


def test_where_arrays_differ_worker_0_has_its_way():
    found = initial.initial_value(ROWS, (53, 4), tf.float32, Crowd(), "table")
    np.testing.assert_array_equal(found.array(), ROWS + 1)


def test_large_arrays_that_differ_are_refused(monkeypatch):
    never_whole(monkeypatch)
    found = initial.initial_value(ROWS, (53, 4), tf.float32, Crowd(), "table")
    with pytest.raises(errors.TableError, match=r"ranks \[1\] differ from rank 0's"):
        found.array()


def test_a_subclass_that_draws_otherwise_is_asked_itself():
    np.testing.assert_array_equal(table(Halves(), (53, 4)), np.full((53, 4), 0.5))


def test_a_subclass_that_draws_alike_is_made_by_row(monkeypatch):
    never_whole(monkeypatch)
    np.testing.assert_array_equal(
        table(Renamed(seed=3), (53, 4)), table(kinds.RandomUniform(seed=3), (53, 4))
    )


def test_orthogonal_is_orthogonal():
    found = table(kinds.Orthogonal(seed=3), (53, 4))
    np.testing.assert_allclose(found.T @ found, np.eye(4), atol=1e-5)


@pytest.mark.parametrize("initializer", [kinds.Orthogonal(), Halves()])
def test_what_can_only_be_made_whole_has_a_limit(initializer, monkeypatch):
    never_whole(monkeypatch)
    with pytest.raises(errors.TableError, match="only be made whole") as caught:
        table(initializer, (53, 4))
    assert caught.value.table.endswith("/embeddings")
    assert "(53, 4)" in str(caught.value)
    assert type(initializer).__name__ in str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_rows_come_in_the_type_of_the_table(dtype):
    with parallax().scope():
        layer = keras.layers.Embedding(53, 4, dtype=dtype)
        layer.build()
    assert layer.embeddings.dtype == dtype
    value = tf.cast(layer.embeddings.numpy(), "float32").numpy()
    assert np.all(np.abs(value) <= 0.05)
    assert value.std() > 0.02
