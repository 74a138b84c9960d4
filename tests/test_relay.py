"""Where workers speak for each other, and with which server."""

import types

import pytest

from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.relay import Relay


def relay_of(rank, reached):
    """The relay of worker `rank`; `reached[r][s]`: is server s on r's machine?"""
    job = types.SimpleNamespace(
        size=len(reached), rank=rank, gather=lambda mine: reached
    )
    return Relay.between(job, reached[rank], Wire(), None)


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param([[True]], id="one worker"),
        pytest.param([[True], [True]], id="fewer servers than workers"),
        pytest.param([[True, True], [False, False]], id="a worker without a server"),
        pytest.param([[False, False], [False, False]], id="servers on other machines"),
    ],
)
def test_each_worker_speaks_for_itself(reached):
    assert relay_of(0, reached) is None


def test_a_worker_speaks_with_the_server_on_its_machine():
    reached = [[False, True, False], [False, False, True], [True, False, False]]
    assert [relay_of(rank, reached).servers for rank in range(3)] == [[1], [2], [0]]


def test_workers_of_one_machine_share_its_servers():
    reached = [[True, True, False], [True, True, False], [False, False, True]]
    assert [relay_of(rank, reached).servers for rank in range(3)] == [[0], [1], [2]]
    assert relay_of(0, reached)._group.on_machine == (True, True, False)
