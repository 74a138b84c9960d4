"""Which variables become tables, in how many partitions, and what is refused."""

import pytest

from keras_parallax import errors
from keras_parallax.plan.routing import PARTITION_LIMIT_BYTES, Routing
from keras_parallax.roads import ALLREDUCE, SERVERS

EMBEDDING = ("lm/embedding/embeddings", True, (10, 4))
KERNEL = ("lm/dense/kernel", False, (10, 4))


def test_embeddings_are_tables_and_others_are_not():
    assert Routing().road(*EMBEDDING)[0] == SERVERS
    assert Routing().road(*KERNEL)[0] == ALLREDUCE


def test_allreduce_architecture_makes_no_tables():
    road, reason = Routing("allreduce").road(*EMBEDDING)
    assert road == ALLREDUCE
    assert "architecture='allreduce'" in reason


def test_first_matching_route_decides_and_is_the_reason():
    routing = Routing(
        routes={"*/dense/*": SERVERS, "lm/*": ALLREDUCE, "*/embeddings": SERVERS}
    )
    assert routing.road(*KERNEL) == (SERVERS, "routes says so (*/dense/*)")
    assert routing.road(*EMBEDDING) == (ALLREDUCE, "routes says so (lm/*)")


def test_routes_override_the_architecture():
    routing = Routing("allreduce", {"*/embeddings": SERVERS})
    assert routing.road(*EMBEDDING)[0] == SERVERS


def test_routes_distinguish_upper_and_lower_case():
    assert Routing(routes={"LM/*": ALLREDUCE}).road(*EMBEDDING)[0] == SERVERS


def test_a_scalar_cannot_be_a_table():
    with pytest.raises(errors.ConfigError, match=r"no rows.*'\*': 'servers'.*lm/scale"):
        Routing(routes={"*": SERVERS}).road("lm/scale", False, ())


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({"architecture": "mesh"}, "architecture='mesh'"),
        ({"routes": {"*": "carrier"}}, r"routes=\{'\*': 'carrier'\}"),
        ({"partitions": 0}, "partitions=0"),
        ({"partitions": -2}, "partitions=-2"),
        ({"partitions": 2.0}, "partitions=2.0"),
        ({"partitions": True}, "partitions=True"),
        ({"partitions": "many"}, "partitions='many'"),
        ({"partitions": {"*": 0}}, r"partitions=\{'\*': 0\}"),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(arguments, received):
    with pytest.raises(errors.ConfigError, match=f"Received: {received}"):
        Routing(**arguments)


@pytest.mark.parametrize(
    ("partitions", "homes", "expected"),
    [
        ("auto", 1, 1),
        ("auto", 3, 3),
        (5, 3, 5),
        ({"*/embeddings": 4, "*": 2}, 1, 4),
        ({"*/kernel": 4}, 2, 2),
        ({"*": "auto"}, 2, 2),
    ],
)
def test_number_of_partitions(partitions, homes, expected):
    count = Routing(partitions=partitions).partitions(EMBEDDING[0], 1000, 16, homes)
    assert count == expected


@pytest.mark.parametrize("partitions", ["auto", 50])
def test_no_more_partitions_than_rows(partitions):
    assert Routing(partitions=partitions).partitions("t", 3, 16, 8) == 3


def test_auto_keeps_partitions_below_what_a_transfer_can_carry():
    row_bytes = 1024
    rows = 5 * PARTITION_LIMIT_BYTES // row_bytes
    # At least five, and as many on each of the homes.
    assert Routing().partitions("t", rows, row_bytes, 1) == 5
    assert Routing().partitions("t", rows, row_bytes, 2) == 6
    assert Routing().partitions("t", rows + 1, row_bytes, 1) == 6
    assert 2 * PARTITION_LIMIT_BYTES <= 2 << 30


def test_too_few_partitions_for_the_limit_are_refused():
    rows = 5 * PARTITION_LIMIT_BYTES // 1024
    with pytest.raises(errors.ConfigError, match="at least 5.*partitions=4") as caught:
        Routing(partitions=4).partitions("lm/huge", rows, 1024, 1)
    assert "lm/huge" in str(caught.value)
    assert Routing(partitions=5).partitions("lm/huge", rows, 1024, 1) == 5


def test_unused_routes_are_named():
    routing = Routing(routes={"*/embedings": SERVERS, "lm/*": ALLREDUCE})
    assert routing.unused_routes([EMBEDDING[0], KERNEL[0]]) == ["*/embedings"]
