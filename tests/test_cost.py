"""The cost of roads: the paper's byte table, and what makes one road the cheaper."""

import dataclasses

import pytest

from keras_parallax.errors import ConfigError
from keras_parallax.plan.cost import DEDICATED, PEERS, WORKERS, candidates, step
from keras_parallax.plan.network import Cluster, Network
from keras_parallax.plan.use import Use, union_share
from keras_parallax.roads import ALLGATHER, ALLREDUCE, SERVERS

NETWORK = Network(1e9, latency_s=1e-4, call_s=1e-3)
ROADS = (SERVERS, ALLREDUCE, ALLGATHER)


def cost(use, cluster, road, home=PEERS):
    (found,) = candidates(use, cluster, [home], [road])
    return found


def table(**changed):
    given = {"path": "t", "num_rows": 10_000, "row_bytes": 256, "alpha": 0.01}
    return Use(**{**given, **changed})


@pytest.mark.parametrize("machines", [2, 4, 8])
@pytest.mark.parametrize("home", [PEERS, DEDICATED])
@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_the_papers_table_of_bytes(machines, home, alpha):
    """Kim et al., EuroSys 2019, table 1, with N machines of one worker each."""
    cluster = Cluster(machines, machines, NETWORK)
    use = table(alpha=alpha, id_bytes=0)
    dense = table(alpha=1.0, gradient="dense", id_bytes=0)
    size = 10_000 * 256
    share = (machines - 1) / machines

    def machine_bytes(use, road):
        return cost(use, cluster, road, home).machine_bytes

    assert machine_bytes(use, SERVERS) == pytest.approx(4 * alpha * size * share)
    assert machine_bytes(use, ALLGATHER) == pytest.approx(
        2 * alpha * size * (machines - 1)
    )
    assert machine_bytes(dense, SERVERS) == pytest.approx(4 * size * share)
    assert machine_bytes(dense, ALLREDUCE) == pytest.approx(4 * size * share)


def test_ids_come_on_top():
    cluster = Cluster(4, 4, NETWORK)
    for road, times in ((SERVERS, 2 * 3 / 4), (ALLGATHER, 2 * 3)):
        without = cost(table(id_bytes=0), cluster, road).machine_bytes
        with_ids = cost(table(id_bytes=8), cluster, road).machine_bytes
        assert with_ids - without == pytest.approx(100 * 8 * times)


def test_what_travels_may_be_narrower_than_a_row():
    cluster = Cluster(4, 4, NETWORK)
    whole = cost(table(id_bytes=0), cluster, SERVERS)
    halved = cost(table(id_bytes=0, wire_row_bytes=128), cluster, SERVERS)
    assert halved.machine_bytes == pytest.approx(whole.machine_bytes / 2)
    assert halved.row_work_s == whole.row_work_s


def test_local_aggregation_sends_the_union_of_a_machine():
    cluster = Cluster(8, 2, NETWORK)
    apart = dataclasses.replace(cluster, local_aggregation=False)
    use = table(alpha=0.2, alpha_machine=0.3, alpha_all=0.4)
    together, alone = cost(use, cluster, SERVERS), cost(use, apart, SERVERS)
    assert together.machine_bytes / alone.machine_bytes == pytest.approx(0.3 / 0.8)
    # It costs a second exchange, within the machine.
    assert together.latency_s > alone.latency_s
    assert together.local_bytes > alone.local_bytes
    assert together.aggregated and not alone.aggregated


def test_unknown_unions_are_those_of_independent_draws():
    cluster = Cluster(4, 2, NETWORK)
    one, machine, everyone = table(alpha=0.5).touched_rows(cluster)
    assert (one, machine, everyone) == pytest.approx((5000, 7500, 9375))
    assert union_share(0.0, 10) == 0
    known = table(alpha=0.5, alpha_machine=0.6).touched_rows(cluster)
    assert known[1:] == pytest.approx((6000, 8400))


def test_one_worker_sends_nothing():
    for found in candidates(table(), Cluster(1, 1, NETWORK), [PEERS], ROADS):
        assert found.machine_bytes == found.local_bytes == found.latency_s == 0
        assert found.seconds == found.row_work_s > 0


def test_one_machine_sends_nothing_away():
    for found in candidates(table(), Cluster(4, 1, NETWORK), [PEERS], ROADS):
        assert found.machine_bytes == 0
        assert found.local_bytes > 0


def test_servers_on_machines_of_their_own_take_all_that_workers_send():
    use = table(id_bytes=0)
    cluster = Cluster(4, 4, NETWORK, servers=2, server_machines=2)
    found = cost(use, cluster, SERVERS, DEDICATED)
    # Four workers' rows through two machines.
    assert found.sent_bytes == pytest.approx(2 * 100 * 256)
    assert found.local_bytes == 0


def test_a_ring_has_one_link_into_a_machine():
    flat, shared = Cluster(4, 4, NETWORK), Cluster(4, 2, NETWORK)
    for road in (ALLREDUCE, ALLGATHER):
        one, two = (cost(table(), c, road) for c in (flat, shared))
        assert one.machine_bytes == two.machine_bytes
        assert one.local_bytes == 0
        assert two.local_bytes == pytest.approx(two.sent_bytes)


def test_seconds_are_what_they_are_made_of():
    found = cost(table(), Cluster(4, 4, NETWORK), SERVERS)
    assert found.transfer_s == pytest.approx(found.sent_bytes / 1e9)
    # Ids, rows, gradients.
    assert found.latency_s == pytest.approx(3 * 1.1e-3)
    assert found.messages == 9
    assert found.seconds == found.transfer_s + found.latency_s + found.row_work_s
    assert found.own_s == found.transfer_s + found.row_work_s
    ring = cost(table(), Cluster(4, 4, NETWORK), ALLREDUCE)
    assert ring.latency_s == pytest.approx(1e-3 + 6 * 1e-4)


def test_a_server_beside_each_worker_costs_its_own_trips_besides():
    network = dataclasses.replace(NETWORK, server_trip_s=7e-3, local_latency_s=0.0)
    beside = Cluster(4, 4, network, servers=4)
    among_workers = cost(table(), beside, SERVERS).latency_s
    end = 1e-3 + 6 * 1e-4
    found = cost(table(), beside, SERVERS, DEDICATED)
    assert found.latency_s == pytest.approx(among_workers + 2 * 7e-3 + end)
    # Without, each worker speaks with each server: ids and rows, gradients, the end.
    for servers, machines in ((2, 0), (4, 4)):
        apart = Cluster(4, 4, network, servers=servers, server_machines=machines)
        found = cost(table(), apart, SERVERS, DEDICATED)
        assert found.latency_s == pytest.approx(3 * (7e-3 + 2e-4))
        assert found.messages == 3 * servers


def test_a_dense_gradient_touches_every_row_of_a_copy():
    cluster = Cluster(4, 4, dataclasses.replace(NETWORK, bandwidth_bytes_per_s=1e15))
    use = table(num_rows=1_000_000, alpha=1e-4)
    work = {road: cost(use, cluster, road).row_work_s for road in ROADS}
    # Filled once, reduced in 3 passes, updated in 3 + 2 with one slot; in order.
    rows = 0.2 * 9 * 1_000_000 + 100
    assert work[ALLREDUCE] == pytest.approx(rows * 256 / NETWORK.memory_bytes_per_s)
    assert work[ALLREDUCE] > 100 * work[SERVERS]
    assert work[ALLREDUCE] > 100 * work[ALLGATHER]


def test_an_exact_update_touches_every_row_wherever_it_is():
    cluster = Cluster(4, 4, NETWORK)
    lazy, exact = table(alpha=0.001), table(alpha=0.001, updates_all_rows=True)
    for road in (SERVERS, ALLGATHER):
        assert (
            cost(exact, cluster, road).row_work_s > cost(lazy, cluster, road).row_work_s
        )
    more = cost(exact, cluster, ALLGATHER).row_work_s
    assert more > cost(exact, cluster, SERVERS).row_work_s  # A share of them each.


def test_a_copy_takes_memory_and_may_not_fit():
    cluster = Cluster(4, 4, NETWORK, memory_limit_bytes=5e6)
    found = {c.road: c for c in candidates(table(slots=1), cluster, [PEERS], ROADS)}
    assert found[ALLREDUCE].memory_bytes == 2 * 2_560_000
    assert found[SERVERS].memory_bytes == 2 * 2_560_000 / 4
    assert found[SERVERS].feasible
    assert not found[ALLREDUCE].feasible
    assert "5,120,000 bytes" in found[ALLREDUCE].obstacle
    assert cost(table(), cluster, SERVERS, DEDICATED).memory_bytes == 0


def test_roads_of_a_dense_variable():
    cluster = Cluster(4, 4, NETWORK)
    found = candidates(table(gradient="dense"), cluster, [PEERS, DEDICATED], ROADS)
    assert [(c.road, c.home) for c in found] == [
        (SERVERS, PEERS),
        (SERVERS, DEDICATED),
        (ALLREDUCE, WORKERS),
    ]


def test_a_step_pays_a_call_once():
    cluster = Cluster(4, 4, NETWORK)
    same = [cost(table(path=str(i)), cluster, SERVERS) for i in range(10)]
    together = step(same)
    assert together.latency_s == pytest.approx(same[0].latency_s)
    assert together.transfer_s == pytest.approx(10 * same[0].transfer_s)
    assert together.messages == same[0].messages
    # Rows of another width go in messages of their own, after the same ids.
    other = cost(table(path="w", row_bytes=64), cluster, SERVERS)
    assert step([*same, other]).latency_s == pytest.approx(5 * 1.1e-3)
    assert step([]).seconds == 0


def test_as_plain_data():
    found = cost(table(), Cluster(4, 4, NETWORK), SERVERS).to_dict()
    assert found["road"] == SERVERS
    assert found["machine_bytes"] == found["sent_bytes"] + found["received_bytes"]
    assert found["calls"]["peers ids"] == pytest.approx(1.1e-3)


@pytest.mark.parametrize("changed", [{"alpha": 1.5}, {"alpha_all": -0.1}])
def test_a_share_beyond_all_is_refused(changed):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        table(**changed)


def test_an_unknown_gradient_is_refused():
    with pytest.raises(ConfigError, match="gradient='both'"):
        table(gradient="both")
