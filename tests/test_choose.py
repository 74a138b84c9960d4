"""Roads chosen together: shared calls, overrides, hysteresis."""

import itertools
import time

import pytest

from keras_parallax.errors import ConfigError
from keras_parallax.plan.choose import choose, in_percent, in_time
from keras_parallax.plan.cost import DEDICATED, PEERS, candidates, step
from keras_parallax.plan.network import Cluster, Network
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLGATHER, ALLREDUCE, SERVERS

CLUSTER = Cluster(4, 4, Network(25e6, latency_s=1e-4, call_s=2e-3))
ROADS = (SERVERS, ALLREDUCE, ALLGATHER)

DENSE = Use("dense", 256, 1024, gradient="dense")


def table(path, num_rows, alpha, **changed):
    return Use(path, num_rows, 256, alpha=alpha, **changed)


def roads(uses, **arguments):
    found = choose(uses, CLUSTER, **arguments)
    return {path: choice.road for path, choice in found.items()}


def test_a_large_sparse_table_goes_to_servers():
    assert roads([table("t", 1_000_000, 0.002), DENSE]) == {
        "t": SERVERS,
        "dense": ALLREDUCE,
    }


def test_a_small_table_goes_the_dense_way_where_it_would_be_alone():
    small = table("small", 100, 0.3)
    assert roads([small, DENSE])["small"] == ALLREDUCE


def test_and_rides_along_where_others_pay_for_the_calls():
    small, large = table("small", 200, 0.3), table("large", 1_000_000, 0.002)
    assert roads([small, DENSE]) == {"small": ALLREDUCE, "dense": ALLREDUCE}
    assert roads([small, large, DENSE])["small"] == SERVERS


@pytest.mark.parametrize("alpha", [0.9, 1.0])
def test_a_table_with_alpha_near_one_goes_the_dense_way(alpha):
    """Reducing rows in order is less work than picking them by their ids."""
    busy = table("busy", 5_000, alpha)
    assert roads([busy, DENSE])["busy"] == ALLREDUCE


def test_few_rows_of_few_workers_are_gathered():
    cluster = Cluster(2, 2, CLUSTER.network)
    few = table("few", 100_000, 1e-4)
    (choice,) = choose([few], cluster, roads=ROADS).values()
    assert choice.road == ALLGATHER


def test_several_small_tables_share_the_sparse_road_although_none_would_pay_for_it():
    many = [table(f"t{i}", 3_000, 0.01) for i in range(30)]
    assert roads([many[0], DENSE], roads=(SERVERS, ALLREDUCE))["t0"] == SERVERS
    many = [table(f"t{i}", 60, 0.01) for i in range(100)]
    assert set(roads([many[0], DENSE]).values()) == {ALLREDUCE}
    assert set(roads([*many, DENSE]).values()) == {SERVERS, ALLREDUCE}


def test_as_good_as_every_plan_tried_out():
    uses = [
        table("a", 1_000_000, 0.001),
        table("b", 300, 0.9),
        table("c", 20_000, 0.05),
        Use("d", 5_000, 64, alpha=0.2),
        DENSE,
    ]
    chosen = choose(uses, CLUSTER, roads=ROADS)
    options = [candidates(use, CLUSTER, [PEERS], ROADS) for use in uses[:-1]]
    options.append(candidates(DENSE, CLUSTER, [PEERS], [ALLREDUCE]))
    best = min(step(plan).seconds for plan in itertools.product(*options))
    found = step(choice.cost for choice in chosen.values()).seconds
    assert found == pytest.approx(best)


def test_a_hundred_tables_take_no_time():
    uses = [table(f"t{i}", 10 * (i + 1) ** 2, 0.5 / (i + 1)) for i in range(100)]
    start = time.process_time()
    found = choose([*uses, DENSE], CLUSTER, roads=ROADS)
    assert time.process_time() - start < 0.5
    assert len(found) == 101
    # No single change would help.
    assert all(choice.extra_s > -1e-9 for choice in found.values())


def test_a_fixed_road_is_kept():
    uses = [table("t", 1_000_000, 0.002), DENSE]
    found = choose(uses, CLUSTER, fixed={"t": ALLREDUCE})
    assert found["t"].road == ALLREDUCE
    assert "no other road" in found["t"].reason
    # A dense variable can be on servers where its user wants so.
    assert choose(uses, CLUSTER, fixed={"dense": SERVERS})["dense"].road == SERVERS


def test_all_tables_get_the_better_home():
    uses = [table("t", 1_000_000, 0.002)]
    (choice,) = choose(uses, CLUSTER, homes=(DEDICATED, PEERS)).values()
    alone = [
        candidates(uses[0], CLUSTER, [home], [SERVERS])[0]
        for home in (PEERS, DEDICATED)
    ]
    assert choice.cost.seconds == min(cost.seconds for cost in alone)


def test_what_does_not_fit_is_not_chosen():
    small = Cluster(4, 4, CLUSTER.network, memory_limit_bytes=40_000)
    uses = [table("t", 100, 0.3)]
    assert choose(uses, CLUSTER, roads=[ALLREDUCE])["t"].road == ALLREDUCE
    assert choose(uses, small)["t"].road == SERVERS
    with pytest.raises(ConfigError, match="51,200 bytes"):
        choose(uses, small, roads=[ALLREDUCE])


def test_it_does_not_flap():
    """With alphas to both sides of where the roads cost the same."""

    def best(alpha):
        return roads([table("t", 5000, alpha), DENSE])["t"]

    low = max(a for a in (i / 1000 for i in range(1, 1000)) if best(a) == SERVERS)
    for first in (SERVERS, ALLREDUCE):
        current, seen = {"t": first}, set()
        for alpha in [low - 0.02, low + 0.02] * 5:
            current = roads([table("t", 5000, alpha), DENSE], current=current)
            seen.add(current["t"])
        assert seen == {first}
    assert best(low - 0.02) != best(low + 0.02)


def test_a_change_that_is_worth_it_is_made():
    uses = [table("t", 1_000_000, 0.002), DENSE]
    found = choose(uses, CLUSTER, current={"t": ALLREDUCE})
    assert found["t"].road == SERVERS
    assert "allreduce would take" in found["t"].reason


def test_a_change_that_is_not_is_explained():
    uses = [table("t", 400, 0.5), DENSE]
    best = roads(uses)["t"]
    other = SERVERS if best == ALLREDUCE else ALLREDUCE
    found = choose(uses, CLUSTER, current={"t": other}, hysteresis=10.0)
    assert found["t"].road == other
    assert found["t"].extra_s < 0
    assert "too little for a change" in found["t"].reason


def test_small_change_does_not_ride_on_a_large_one():
    large, small = table("large", 1_000_000, 0.002), table("small", 1000, 0.3)
    current = {"large": ALLREDUCE, "small": ALLREDUCE}
    found = roads([large, small, DENSE], current=current)
    assert found["large"] == SERVERS
    assert found["small"] == ALLREDUCE


def test_a_new_variable_joins_the_current_plan():
    found = roads(
        [table("old", 1_000_000, 0.002), table("new", 500_000, 0.002)],
        current={"old": SERVERS},
    )
    assert found == {"old": SERVERS, "new": SERVERS}


def test_alternatives_are_sorted_and_reasons_are_sentences():
    found = choose([table("t", 1_000_000, 0.002), DENSE], CLUSTER, roads=ROADS)
    choice = found["t"]
    assert [cost.road for cost in choice.alternatives] == [ALLGATHER, ALLREDUCE]
    assert choice.extra_s > 0
    assert choice.label == "servers (peers)"
    assert choice.reason.startswith("a worker touches 0.2% of its rows in a step; all")
    assert found["dense"].reason == "its gradient is dense"


def test_no_variables_no_choices():
    assert choose([], CLUSTER) == {}
    with pytest.raises(ConfigError, match="homes"):
        choose([], CLUSTER, homes=())


def test_figures_for_people():
    assert [in_percent(x) for x in (0.0123, 0.5, 1.0)] == ["1.2%", "50%", "all"]
    assert [in_time(x) for x in (2.0, 1.5e-3, 20e-6, 0.0)] == [
        "2 s",
        "1.5 ms",
        "20 us",
        "0 us",
    ]
