"""A table that does not fit is refused before it is made, by name."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.plan.routing import Routing
from keras_parallax.servers import memory, storage
from keras_parallax.servers.home import partitioning_of
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.servers.memory import MemoryGuard, Room, refuse_what_does_not_fit
from keras_parallax.servers.storage import TableSpec
from tests.twins import parallax

GIB = 1 << 30

MEMINFO = "MemTotal: 9000 kB\nMemAvailable:   2000 kB\nHugePages_Total: 0\n"


def spec_of(num_rows, row_shape=(), num_partitions=1, path="model/words"):
    return TableSpec("name", num_rows, row_shape, tf.float32, num_partitions, path=path)


@dataclasses.dataclass
class Alone:
    """A job of one worker."""

    rank: int = 0

    def share(self, value):
        return value


@pytest.fixture
def guard():
    return MemoryGuard(Alone(), InProcessHome("/CPU:0"))


@pytest.fixture
def rooms(monkeypatch):
    """What `Room.of` finds for each device."""
    found = {}
    monkeypatch.setattr(Room, "of", found.get)
    return found


def files(monkeypatch, **contents):
    paths = {
        "meminfo": memory._MEMINFO,
        "boot": memory._BOOT,
        "host": memory._HOST,
        "limit": memory._LIMIT,
        "used": memory._USED,
        "stat": memory._STAT,
    }
    known = {paths[name]: text for name, text in contents.items()}
    monkeypatch.setattr(memory, "_read", lambda device: known)


def test_this_process_has_room():
    room = Room.of("/CPU:0")
    assert 1 << 20 < room.free_bytes < 1 << 50
    assert room.machine == Room.of("/device:CPU:0").machine


def test_what_is_free_is_what_the_machine_says(monkeypatch):
    files(monkeypatch, meminfo=MEMINFO, boot="b\n", host="h\n", limit="max\n")
    assert Room.of("/CPU:0") == Room("b", 2000 << 10)


def test_a_container_has_what_its_limit_leaves(monkeypatch):
    given = {"meminfo": MEMINFO, "boot": "b\n", "host": "h\n"}
    files(
        monkeypatch,
        **given,
        limit="900000\n",
        used="500000\n",
        stat="anon 1\ninactive_file 100000\n",
    )
    assert Room.of("/CPU:0") == Room("b/h", 500000)
    files(monkeypatch, **given, limit="900000\n", used="1000000\n")
    assert Room.of("/CPU:0") == Room("b/h", 0)
    files(monkeypatch, **given, limit="90000000\n", used="5\n")
    assert Room.of("/CPU:0") == Room("b", 2000 << 10)


def test_where_nothing_is_known_nothing_is_refused(monkeypatch, guard):
    files(monkeypatch)
    assert Room.of("/job:ps/task:0/device:CPU:0") is None
    assert Room.of("/CPU:0").free_bytes > 0
    assert Room.of("/GPU:0") is None
    refuse_what_does_not_fit(spec_of(1 << 40), [1 << 42], [None], "server")


def test_servers_of_one_machine_share_its_memory():
    spec = spec_of(10)
    one, other = Room("one", 5 * GIB), Room("other", 5 * GIB)
    fits = [3 * GIB, 3 * GIB]
    refuse_what_does_not_fit(spec, fits, [one, other], "server")
    with pytest.raises(errors.TableError) as caught:
        refuse_what_does_not_fit(spec, fits, [one, one], "server")
    assert "needs 6.0 GiB in the memory of the machine of servers 0, 1" in str(
        caught.value
    )
    assert "5.0 GiB are free" in str(caught.value)
    assert caught.value.table == "model/words"


def test_measures_of_one_machine_may_differ():
    rooms = [Room("one", 5 * GIB), Room("one", 4 * GIB)]
    with pytest.raises(errors.TableError, match="workers 0, 1, where 4.0 GiB"):
        refuse_what_does_not_fit(spec_of(10), [2 * GIB, 3 * GIB], rooms, "worker")


def test_needs_of_devices_follow_the_partitions():
    home = InProcessHome("/CPU:0")
    home.devices = ("a", "b")
    needs = memory.needs_bytes(spec_of(10, (2,), num_partitions=3), home)
    # Partitions of 4, 3 and 3 rows of 8 bytes; the third is with the first.
    assert needs == [7 * 8, 3 * 8]
    needs = memory.needs_bytes(
        dataclasses.replace(spec_of(10, (2,), num_partitions=3), first_home=1), home
    )
    assert needs == [3 * 8, 7 * 8]


def test_a_table_too_large_is_refused_before_it_is_made(rooms):
    rooms["/CPU:0"] = Room("here", 100 << 20)
    with parallax(routes={}, partitions="auto").scope():
        layer = keras.layers.Embedding(1 << 20, 64, name="words")
        with pytest.raises(errors.TableError, match="does not fit") as caught:
            layer.build()
    message = str(caught.value)
    assert "words/embeddings (1,048,576 x 64 float32, 256 MiB)" in message
    assert "this process, where 100 MiB are free" in message
    assert memory.CHECK_VARIABLE in message


def test_slots_are_checked_when_they_are_made(rooms):
    rooms["/CPU:0"] = Room("here", 100 << 20)
    with parallax(routes={}).scope():
        layer = keras.layers.Embedding(1 << 18, 64, name="words")
        layer.build()
        rooms["/CPU:0"] = Room("here", 36 << 20)
        with pytest.raises(errors.TableError, match="SGD has none") as caught:
            keras.optimizers.Adagrad().build(layer.trainable_variables)
    assert "a slot of words/embeddings" in str(caught.value)
    assert caught.value.table == "words/embeddings"


def test_small_tables_are_asked_for_together(guard, rooms):
    rooms["/CPU:0"] = Room("here", 1)
    spec = spec_of(10 << 20)
    guard.check(spec)
    with pytest.raises(errors.TableError):
        guard.check(spec)
    guard.check(spec)


def test_the_check_can_be_switched_off(monkeypatch, rooms):
    rooms["/CPU:0"] = Room("here", 1)
    monkeypatch.setenv(memory.CHECK_VARIABLE, "0")
    MemoryGuard(Alone(), InProcessHome("/CPU:0")).check(spec_of(1 << 40))


def test_a_row_is_sent_in_one_piece_and_has_a_limit(guard):
    with pytest.raises(errors.TableError, match="row of model/words .*more, narrower"):
        guard.check(spec_of(2, (1 << 29,)))


@pytest.mark.parametrize(
    ("num_rows", "width"),
    [(1 << 25, 64), (200_000_000, 1), (3, 1 << 28), (1 << 33, 64), (5, 1)],
)
@pytest.mark.parametrize("homes", [1, 3, 4])
def test_no_partition_and_no_piece_comes_near_2_gib(num_rows, width, homes):
    count = Routing().partitions("words", num_rows, 4 * width, homes)
    spec = spec_of(num_rows, (width,), count)
    partitioning = partitioning_of(spec)
    largest = max(partitioning.size(p) for p in range(count)) * spec.row_bytes
    assert largest <= GIB
    assert sum(map(partitioning.size, range(count))) == num_rows
    piece = spec.piece_rows * spec.row_bytes
    assert piece <= max(storage.PIECE_BYTES, spec.row_bytes) <= GIB
    assert np.iinfo(spec.id_dtype.as_numpy_dtype).max >= num_rows
