"""Alpha, from what workers have counted."""

import pytest

from keras_parallax.plan.sparsity import Counted, Sparsity


def counted(rows, machine=None, owned=None):
    """What a worker has counted that pushed `rows[i]` rows in step `i`."""
    squares = sum(n * n for n in rows)
    return Counted(len(rows), sum(rows), squares, machine, owned)


def test_mean_and_spread_over_steps_and_workers():
    found = Sparsity.of("t", 100, [counted([10, 20]), counted([30, 40])], machines=2)
    assert found.steps == 2
    assert found.alpha == pytest.approx(0.25)
    assert found.by_worker == pytest.approx((0.15, 0.35))
    assert found.spread == pytest.approx(0.1118, abs=1e-4)
    # One worker a machine: what the machine touches is what its worker does.
    assert found.alpha_machine == pytest.approx(0.25)
    assert found.alpha_all is None


def test_unions_are_what_owners_and_those_in_charge_have_seen():
    workers = [counted([10, 10], machine=9, owned=15), counted([10, 10], 9, 15)]
    workers += [counted([10, 10], 5, 0), counted([10, 10], 5, 0)]
    found = Sparsity.of("t", 100, workers, machines=2)
    assert found.alpha_machine == pytest.approx((9 + 9 + 5 + 5) / 2 / 2 / 100)
    assert found.alpha_all == pytest.approx(30 / 2 / 100)


def test_on_one_machine_its_workers_are_all():
    workers = [counted([10], owned=8), counted([10], owned=4)]
    found = Sparsity.of("t", 100, workers, machines=1)
    assert found.alpha_machine == found.alpha_all == pytest.approx(0.12)


def test_unknown_where_machines_have_several_workers_that_do_not_act_as_one():
    found = Sparsity.of("t", 100, [counted([10])] * 4, machines=2)
    assert found.alpha_machine is None


def test_nothing_before_the_first_step():
    assert Sparsity.of("t", 100, [counted([])], machines=1) is None


def test_a_window_is_what_came_after():
    later, earlier = counted([10, 20, 30], machine=40, owned=50), counted([10], 8, 9)
    assert later.since(earlier) == Counted(2, 50, 1300, 32, 41)
    assert later.since(counted([10])).machine_rows is None
