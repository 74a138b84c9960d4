"""Workers tell each other how many their machines have, before Horovod starts."""

import threading

import pytest

from keras_parallax.cluster import rendezvous
from keras_parallax.cluster.addresses import free_ports
from keras_parallax.cluster.local_sizes import local_sizes
from keras_parallax.cluster.topology import assign_slots, resolve
from keras_parallax.errors import ClusterError


def environments(hosts, port):
    for slot in assign_slots(hosts):
        yield rendezvous.worker_environment(slot, f"127.0.0.1:{port}")


def asked_by_all(hosts):
    """What each worker is told, all of them asking at once."""
    server = rendezvous.start(hosts)
    found = [None] * len(hosts)

    def ask(rank, environ):
        found[rank] = local_sizes(resolve(environ), environ, 20.0)

    threads = [
        threading.Thread(target=ask, args=(rank, environ))
        for rank, environ in enumerate(environments(hosts, server.port))
    ]
    try:
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        server.close()
    return found


@pytest.mark.parametrize(
    ("hosts", "sizes"), [("aabb", [2, 2]), ("aaabbc", [3, 2, 1]), ("abbc", [1, 2, 1])]
)
def test_every_worker_learns_of_every_machine(hosts, sizes):
    assert asked_by_all(list(hosts)) == [sizes] * len(hosts)


@pytest.mark.parametrize("hosts", ["a", "aaa", "abc"])
def test_nothing_is_asked_where_a_place_tells(hosts):
    # Nobody listens there.
    (port,) = free_ports(1)
    for environ in environments(list(hosts), port):
        assert local_sizes(resolve(environ), environ) is None


def test_whoever_does_not_come_is_named():
    server = rendezvous.start(list("aabb"))
    try:
        environ = next(environments(list("aabb"), server.port))
        with pytest.raises(ClusterError, match=r"Worker 2 has not come within 0\.2 s"):
            local_sizes(resolve(environ), environ, 0.2)
    finally:
        server.close()


def test_a_rendezvous_that_is_gone_is_said():
    (port,) = free_ports(1)
    environ = next(environments(list("aabb"), port))
    with pytest.raises(ClusterError, match=f"127.0.0.1:{port} cannot be reached"):
        local_sizes(resolve(environ), environ, 0.2)
