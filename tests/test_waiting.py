"""Who waits for whom, by how many calls each worker has come to."""

import sys

import pytest

from keras_parallax.cluster.membership import MemberState
from keras_parallax.cluster.place import place_in_program
from keras_parallax.cluster.waiting import Patience, Wait, stall_seconds


def _worker(index, calls, calls_at, state="running", place=None):
    return MemberState(
        "worker", index, 1, "here", {}, state,
        calls=calls, calls_at=calls_at, place=place,
    )  # fmt: skip


def test_nobody_waits_where_all_have_come():
    assert Wait.among([], 10.0) is None
    assert Wait.among([_worker(0, 3, 1.0), _worker(1, 3, 2.0)], 99.0) is None


def test_a_wait_begins_when_the_first_is_ahead():
    late, first, second = _worker(0, 3, 1.0), _worker(1, 4, 5.0), _worker(2, 4, 8.0)
    wait = Wait.among([late, first, second], 15.0)
    assert (wait.late, wait.waiting, wait.seconds) == (late, (first, second), 10.0)


def test_one_that_still_comes_is_not_late_for_long():
    # The other is ahead for good: it had calls of its own.
    wait = Wait.among([_worker(0, 300, 14.0), _worker(1, 400, 5.0)], 15.0)
    assert wait.seconds == 1.0


@pytest.mark.parametrize("state", ["left", "failed", "lost"])
def test_only_workers_that_run_and_count_are_waited_for(state):
    others = [_worker(1, 1, 0.0, state), _worker(2, None, 0.0)]
    assert Wait.among([_worker(0, 7, 1.0), *others], 99.0) is None


def test_a_wait_is_told_once_and_then_ends_the_job():
    patience = Patience(100.0)

    def wait(now, calls=3):
        late = _worker(0, calls, 0.0, place="at a.py:7")
        return Wait.among([late, _worker(1, calls + 1, 0.0)], now)

    assert patience.news(wait(49.0)) is None
    assert patience.news(wait(51.0)) == (
        "worker 1 has waited for worker 0 for 51 s; it is at a.py:7. The job ends "
        "after 100 s of it (KERAS_PARALLAX_STALL_SECONDS)"
    )
    assert patience.news(wait(52.0)) is None
    assert patience.news(wait(53.0, calls=4)) is not None
    assert patience.failure(wait(99.0)) is None
    assert str(patience.failure(wait(100.0))) == (
        "worker 0 is stuck (worker 1 has waited for worker 0 for 100 s; it is at "
        "a.py:7)"
    )


def test_patience_without_end_tells_all_the_same():
    patience = Patience(0.0)
    wait = Wait.among([_worker(0, 1, 0.0), _worker(1, 2, 0.0)], 1e6)
    assert patience.news(wait).endswith("for worker 0 for 1000000 s")
    assert patience.failure(wait) is None


def test_the_limit_is_the_environments(monkeypatch):
    monkeypatch.delenv("KERAS_PARALLAX_STALL_SECONDS", raising=False)
    assert stall_seconds() == 1800.0
    monkeypatch.setenv("KERAS_PARALLAX_STALL_SECONDS", "7")
    assert stall_seconds() == 7.0
    monkeypatch.setenv("KERAS_PARALLAX_STALL_SECONDS", "long")
    assert stall_seconds() == 1800.0


def test_the_place_is_the_users_own():
    # This package's frames are passed over.
    line = sys._getframe().f_lineno + 1
    found = place_in_program()
    assert found == f"at test_waiting.py:{line}, in test_the_place_is_the_users_own"
