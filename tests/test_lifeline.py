"""The lifeline, between a coordinator and members of this one process."""

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from keras_parallax.cluster.excepthook import is_consequence, summarize
from keras_parallax.cluster.failure import EXIT_LOST, Failure
from keras_parallax.cluster.lifeline import Coordinator, Member
from keras_parallax.cluster.processes import free_port
from keras_parallax.cluster.verdict import CAUSE_SECONDS
from keras_parallax.errors import ClusterError, ProcessLostError, ServerLostError


@pytest.fixture
def start_coordinator():
    started = []

    def start(**options):
        started.append(Coordinator(**options).start())
        return started[-1]

    yield start
    for coordinator in started:
        coordinator.stop()


def _join(coordinator, index, role="worker", **options):
    options.setdefault("on_lost", lambda failure: None)
    return Member.join(coordinator.address, role, index, 5.0, **options)


def _kill_connection(member):
    """What the kernel does to the connection of a process that dies."""
    member._connection.shutdown(socket.SHUT_RDWR)


def _wait_for(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the deadline is over"
        time.sleep(0.01)


def test_members_are_welcomed_and_the_end_comes_when_all_workers_left(
    start_coordinator,
):
    coordinator = start_coordinator(expected_workers=2, welcome={"rendezvous": "x:1"})
    server = _join(coordinator, 0, "server")
    first, second = _join(coordinator, 0), _join(coordinator, 1)
    assert first.welcome == {"rendezvous": "x:1"}
    assert not first.leave()
    assert not coordinator.wait_end(0.1)
    assert second.leave(wait_for_end_seconds=5.0)
    assert coordinator.wait_end(5.0)
    assert server.wait_end(5.0)
    assert server.lost is None


def test_why_a_process_stops_is_said_before_anything_that_follows(
    start_coordinator, monkeypatch
):
    class Slow:
        """A terminal to which the first line takes its time."""

        def __init__(self):
            self.lines, self.may_end = [], threading.Event()
            self.began = threading.Event()

        def write(self, text):
            self.began.set()
            assert self.may_end.wait(5.0)
            self.lines.append(text)

        def flush(self):
            pass

    member = _join(start_coordinator(), 0)
    failure = Failure("worker", 1, "died", "signal 9", 12)
    slow = Slow()
    monkeypatch.setattr(sys, "stderr", slow)
    # The thread that hears the news, and the main thread, whose exception follows.
    threads = [
        threading.Thread(target=member.announce, args=(failure,)) for _ in range(2)
    ]
    threads[0].start()
    assert slow.began.wait(5.0)
    threads[1].start()
    threads[1].join(0.1)
    assert threads[1].is_alive()
    slow.may_end.set()
    for thread in threads:
        thread.join(5.0)
    assert len(slow.lines) == 1


def test_steps_and_places_reach_the_coordinator(start_coordinator):
    coordinator = start_coordinator()
    member = _join(coordinator, 3, info={"gpu": "none"})
    member.at(12, 13, "at train.py:20")
    _wait_for(lambda: coordinator.members()[0].step == 12)
    (state,) = coordinator.members()
    assert (state.role, state.index, state.calls) == ("worker", 3, 13)
    assert state.place == "at train.py:20"
    assert state.info == {"gpu": "none"}


def test_a_death_is_told_to_the_others_within_a_second(start_coordinator):
    coordinator = start_coordinator(expected_workers=2)
    told = []
    first = _join(coordinator, 0, on_lost=told.append)
    second = _join(coordinator, 1)
    second.at(7)
    _wait_for(lambda: any(m.step == 7 for m in coordinator.members()))
    _kill_connection(second)
    failure = first.wait_lost(1.0)
    assert str(failure) == "worker 1 died (its connection closed) at step 7"
    _wait_for(lambda: told == [failure])
    assert coordinator.first_failure() == failure
    with pytest.raises(ProcessLostError) as raised:
        first.check()
    assert (raised.value.role, raised.value.index, raised.value.step) == (
        "worker",
        1,
        7,
    )


def test_a_parent_explains_a_death(start_coordinator):
    coordinator = start_coordinator(explain_seconds=5.0)
    first, second = _join(coordinator, 0), _join(coordinator, 1)
    _kill_connection(second)
    assert first.wait_lost(0.3) is None
    coordinator.report_exit("worker", 1, -9)
    assert str(first.wait_lost(1.0)) == "worker 1 died (signal 9)"


def test_a_failure_wins_over_its_consequences(start_coordinator):
    coordinator = start_coordinator()
    first, second, third = (_join(coordinator, i) for i in range(3))
    first.fail("HorovodInternalError: shut down", consequence=True)
    assert third.wait_lost(0.3) is None
    second.fail("ValueError: bad")
    assert str(third.wait_lost(1.0)) == "worker 1 failed: ValueError: bad"
    coordinator.report_exit("worker", 1, 3)
    assert str(coordinator.first_failure()) == (
        "worker 1 failed (exit status 3): ValueError: bad"
    )


def test_a_process_that_is_itself_to_blame_waits_for_no_other_cause(start_coordinator):
    coordinator = start_coordinator()
    first, second = _join(coordinator, 0), _join(coordinator, 1)
    first.fail("HorovodInternalError: shut down", consequence=True)
    begun = time.monotonic()
    assert first.wait_lost(60.0) is None
    assert time.monotonic() - begun < 30.0
    assert "worker 0 failed" in str(second.wait_lost(5.0))


def test_a_failed_process_does_not_wait_for_the_others(start_coordinator):
    coordinator = start_coordinator(expected_workers=2)
    member = _join(coordinator, 0)
    member.fail("ValueError: bad")
    start = time.monotonic()
    assert not member.leave(wait_for_end_seconds=30.0)
    assert time.monotonic() - start < 5.0


def test_a_silent_member_is_lost(start_coordinator):
    coordinator = start_coordinator(silence_limit=1.5)
    member = _join(coordinator, 0)
    host, port = coordinator.host, coordinator.port
    with socket.create_connection((host, port)) as silent:
        join = {"type": "join", "role": "worker", "index": 1, "pid": 1, "host": "h"}
        silent.sendall(json.dumps({**join, "info": {}}).encode() + b"\n")
        failure = member.wait_lost(4.0)
    assert str(failure) == "worker 1 is lost (not answering for 1.5 s)"


def test_a_worker_that_does_not_come_is_told_of_and_ended(start_coordinator):
    events, told = [], []
    coordinator = start_coordinator(stall_limit=0.6, on_event=events.append)
    late = _join(coordinator, 0, on_lost=told.append)
    others = [_join(coordinator, i, on_lost=told.append) for i in (1, 2)]
    server = _join(coordinator, 0, "server", on_lost=told.append)
    late.at(4, 4, "at train.py:20, in load")
    for member in others:
        member.at(4, 5)
    _wait_for(lambda: len(told) == 4)
    assert {failure.name for failure in told} == {"worker 0"}
    assert {failure.what for failure in told} == {"is stuck"}
    (news,) = [event["news"] for event in events if event["event"] == "waiting"]
    assert news.startswith("worker 1, worker 2 have waited for worker 0 for ")
    assert "; it is at train.py:20, in load. The job ends after 0.6 s" in news
    # What it ends with says less than that.
    coordinator.report_exit("worker", 0, EXIT_LOST)
    assert coordinator.first_failure().what == "is stuck"
    assert coordinator.first_failure().step == 4
    assert server.lost is not None


def test_the_loss_of_the_coordinator_is_noticed(start_coordinator):
    coordinator = start_coordinator(name="worker 0")
    member = _join(coordinator, 1)
    coordinator.stop()
    assert str(member.wait_lost(1.0)) == "worker 0 died (its connection closed)"


def test_a_silent_coordinator_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hello = {"type": "welcome", "welcome": {}, "coordinator": "launcher"}
        # The reply is in the member's buffer before it looks for it.
        server.settimeout(5.0)
        held = []

        def answer():
            held.append(server.accept()[0])
            held[0].sendall(json.dumps(hello).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        member = Member.join(
            f"127.0.0.1:{port}",
            "worker",
            0,
            5.0,
            on_lost=lambda failure: None,
            silence_limit=1.2,
        )
        thread.join()
        failure = member.wait_lost(4.0)
        held[0].close()
    assert str(failure) == "launcher is lost (not answering for 1.2 s)"


def test_a_place_is_taken_once(start_coordinator):
    coordinator = start_coordinator()
    _join(coordinator, 0)
    with pytest.raises(ClusterError, match="worker 0 has joined already"):
        _join(coordinator, 0)


def test_strangers_do_no_harm(start_coordinator):
    coordinator = start_coordinator()
    member = _join(coordinator, 0)
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"type": "join"}\n'):
        with socket.create_connection((coordinator.host, coordinator.port)) as peer:
            peer.sendall(text)
            assert peer.recv(100) == b""
    assert [m.state for m in coordinator.members()] == ["running"]
    assert member.leave(wait_for_end_seconds=5.0)


def test_workers_that_cannot_exchange_are_refused(start_coordinator):
    coordinator = start_coordinator()
    ours, theirs = ({"alike": {"horovod": built}} for built in ("1, ours", "1"))
    first = _join(coordinator, 0, info=ours)
    _join(coordinator, 1, info=ours)
    # A server exchanges nothing by Horovod.
    _join(coordinator, 0, "server")
    with pytest.raises(ClusterError, match="has horovod 1; worker 0, on .* 1, ours"):
        _join(coordinator, 2, info=theirs)
    with pytest.raises(ClusterError, match="horovod of no version; .*build-horovod"):
        _join(coordinator, 2)
    assert len(coordinator.members()) == 3
    failure = first.wait_lost(5.0)
    assert (failure.index, failure.what) == (2, "failed")
    assert "has horovod 1; worker 0" in failure.summary


def test_joining_names_the_address_that_did_not_answer():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"coordinator at {address} did not"):
        Member.join(address, "worker", 0, timeout_seconds=0.3)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ClusterError, match=f"Port {port} is in use by process"):
            Coordinator(port=port).start()


def test_a_process_that_is_stuck_is_ended_with_one_line(start_coordinator):
    coordinator = start_coordinator()
    script = (
        "import time\n"
        "from keras_parallax.cluster.lifeline import Member\n"
        f"Member.join({coordinator.address!r}, 'worker', 0)\n"
        "print('joined', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={"KERAS_PARALLAX_GRACE_SECONDS": "0.2", "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "joined\n"
        _join(coordinator, 1).fail("ValueError: bad")
        _, err = process.communicate(timeout=10)
    assert process.returncode == EXIT_LOST
    assert err == ("keras-parallax: worker 0 stops: worker 1 failed: ValueError: bad\n")


def test_consequences_are_known_by_name_by_text_and_by_cause():
    class UnavailableError(Exception):
        pass

    class Mine(UnavailableError):
        pass

    assert is_consequence(Mine())
    assert is_consequence(RuntimeError("... Horovod has been shut down ..."))
    outer = RuntimeError("while training")
    outer.__cause__ = ProcessLostError("worker", 1, None, "signal 9")
    assert is_consequence(outer)
    assert not is_consequence(ValueError("bad"))


def test_a_failure_travels_without_its_traceback():
    failure = Failure("worker", 1, "failed", "", 3, "ValueError: bad", "Traceback ...")
    there = Failure.from_json(json.loads(json.dumps(failure.to_json())))
    assert str(there) == str(failure)
    assert there.traceback == ""


def test_a_worker_that_has_left_is_blamed_for_what_the_others_miss(start_coordinator):
    coordinator = start_coordinator(expected_workers=2)
    first, second = _join(coordinator, 0), _join(coordinator, 1)
    first.at(3)
    first.leave()
    second.fail("HorovodInternalError: shut down", consequence=True)
    failure = second.wait_lost(5.0)
    assert str(failure) == (
        "worker 0 ended early (it left while the others went on) at step 3"
    )
    # The one that has left need not wait for the others any more.
    assert not first.leave(wait_for_end_seconds=5.0)
    coordinator.report_exit("worker", 0, 3)
    assert str(coordinator.first_failure()) == (
        "worker 0 failed (exit status 3) at step 3"
    )


def test_a_goodbye_that_comes_late_is_still_known_to_be_the_cause(start_coordinator):
    coordinator = start_coordinator(expected_workers=2)
    script = (
        "from keras_parallax.cluster.lifeline import Member, install_excepthook\n"
        f"install_excepthook(Member.join({coordinator.address!r}, 'worker', 1))\n"
        "class HorovodInternalError(Exception): pass\n"
        "raise HorovodInternalError('shut down')\n"
    )
    left = _join(coordinator, 0)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_for(lambda: "failed" in [m.state for m in coordinator.members()], 20.0)
        # Just before it is settled: the news must not come after the one who waits.
        time.sleep(CAUSE_SECONDS - 0.5)
        left.leave()
        _, err = process.communicate(timeout=20)
    assert err.startswith(
        "keras-parallax: worker 1 stops: worker 0 ended early (it left while the "
        "others went on)\nTraceback"
    )


def test_a_lost_server_is_described_by_those_who_knew_it(start_coordinator):
    coordinator = start_coordinator()
    worker = _join(coordinator, 0)
    server = _join(coordinator, 0, "server", info={"address": "10.0.0.7:1"})
    worker.tell_held([["5 of 10 rows of words"], ["5 of 10 rows of words"]])
    worker.at(9)
    _wait_for(lambda: any(m.step == 9 for m in coordinator.members()))
    _kill_connection(server)
    assert str(worker.wait_lost(5.0)) == (
        "server 0 died (its connection closed) at step 9; its address was 10.0.0.7:1; "
        "it held 5 of 10 rows of words"
    )
    with pytest.raises(ServerLostError) as raised:
        worker.check()
    assert raised.value.address == "10.0.0.7:1"
    assert raised.value.tables == ("5 of 10 rows of words",)


def test_an_error_is_summarized_without_the_places_in_a_graph():
    class InvalidArgumentError(Exception):
        pass

    text = (
        "Graph execution error:\n\n"
        "Detected at node Assert defined at (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n\n'
        "assertion failed: [An id is outside of words.] [60 61]\n"
        "\t [[{{node Assert}}]] [Op:__inference_multi_step_on_iterator_9]"
    )
    assert summarize(InvalidArgumentError(text)) == (
        "InvalidArgumentError: An id is outside of words. [60 61]"
    )
    assert summarize(ValueError("\x1b[1mbad\x1b[0m\n  id")) == "ValueError: bad id"
    assert summarize(KeyboardInterrupt()) == "KeyboardInterrupt"
