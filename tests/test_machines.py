"""Which workers share a machine, as each of them works it out alone."""

import pytest

from keras_parallax.cluster.machines import Machines
from keras_parallax.cluster.topology import Topology, assign_slots


def machines_of_all(hosts, known=True):
    """What each worker finds; `known` where TF_CONFIG lists the workers."""
    sizes = None if known else [hosts.count(host) for host in dict.fromkeys(hosts)]
    found = []
    for slot in assign_slots(hosts):
        addresses = tuple(f"{host}:{n + 1}" for n, host in enumerate(hosts))
        found.append(
            Machines.of(
                Topology(
                    **{name: getattr(slot, name) for name in slot.__dataclass_fields__},
                    task="worker",
                    index=slot.rank,
                    source="tf_config" if known else "horovod",
                    workers=addresses if known else (),
                ),
                sizes,
            )
        )
    return found


@pytest.mark.parametrize("known", [True, False], ids=["tf_config", "horovod"])
def test_two_machines_with_two_workers_each(known):
    (machines,) = set(machines_of_all(["a", "a", "b", "b"], known))
    assert (machines.count, machines.workers_each) == (2, 2)
    assert machines.places == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert machines.have_two_stages
    assert machines.neighbours(2) == [2, 3]
    assert machines.counterparts(2) == [0, 2]


def test_workers_of_a_machine_need_not_stand_together():
    (machines,) = set(machines_of_all(["a", "b", "a", "b"]))
    assert machines.places == ((0, 0), (1, 0), (0, 1), (1, 1))
    assert machines.neighbours(0) == [0, 2]
    assert machines.neighbours(3) == [1, 3]
    assert machines.counterparts(0) == [0, 1]
    assert machines.counterparts(3) == [2, 3]


@pytest.mark.parametrize("known", [True, False], ids=["tf_config", "horovod"])
@pytest.mark.parametrize("hosts", ["aaa", "abc", "a"])
def test_one_stage_is_enough_for_one_machine_or_one_worker_on_each(hosts, known):
    (machines,) = set(machines_of_all(list(hosts), known))
    assert not machines.have_two_stages


@pytest.mark.parametrize("known", [True, False], ids=["tf_config", "horovod"])
@pytest.mark.parametrize("hosts", ["aab", "abb", "abbc", "aaab", "aabbc", "aaabbc"])
def test_all_workers_of_uneven_machines_find_none(hosts, known):
    assert set(machines_of_all(list(hosts), known)) == {None}
