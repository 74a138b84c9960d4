"""Every row has one place, and rows come back in the order they were asked for."""

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.servers.partitioning import Partitioning

SHAPES = [(1, 1), (7, 1), (7, 3), (7, 7), (10, 4), (53, 8)]


@pytest.mark.parametrize(("num_rows", "count"), SHAPES)
def test_every_row_is_in_exactly_one_partition(num_rows, count):
    partitioning = Partitioning(num_rows, count)
    rows = [list(partitioning.rows(p, 0, partitioning.size(p))) for p in range(count)]
    assert sorted(sum(rows, [])) == list(range(num_rows))
    sizes = [len(found) for found in rows]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("num_rows", "count"), SHAPES)
def test_neighbouring_rows_are_spread_over_partitions(num_rows, count):
    places, _ = Partitioning(num_rows, count).split(tf.range(count))
    assert [len(found) for found in places] == [1] * count


@pytest.mark.parametrize(("num_rows", "count"), SHAPES)
def test_places_and_rows_are_inverse(num_rows, count):
    partitioning = Partitioning(num_rows, count)
    for start in range(min(num_rows, 12) + 1):
        for stop in range(start, num_rows + 1):
            found = []
            for p in range(count):
                places = partitioning.places(p, start, stop)
                assert 0 <= places.start <= places.stop <= partitioning.size(p)
                found += partitioning.rows(p, places.start, places.stop)
            assert sorted(found) == list(range(start, stop))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize(
    ("count", "ids"),
    [
        (1, [4, 0, 9]),
        (3, [9, 0, 4, 1, 7]),
        (2, [8, 0, 2]),  # No id belongs to the second partition.
        (7, []),
    ],
)
def test_split_and_merge_round_trip(count, ids, dtype):
    partitioning = Partitioning(10, count)
    table = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
    partitions = [
        tf.constant(table[list(partitioning.rows(p, 0, partitioning.size(p)))])
        for p in range(count)
    ]

    @tf.function(input_signature=[tf.TensorSpec((None,), dtype)])
    def pull(ids):
        places, positions = partitioning.split(ids)
        parts = [
            tf.gather(rows, found)
            for rows, found in zip(partitions, places, strict=True)
        ]
        return partitioning.merge(parts, positions)

    np.testing.assert_array_equal(pull(tf.constant(ids, dtype)), table[ids])


@pytest.mark.parametrize("count", [0, -1, 6])
def test_an_impossible_number_of_partitions_is_refused(count):
    with pytest.raises(ValueError, match=f"num_partitions={count}, num_rows=5"):
        Partitioning(5, count)
