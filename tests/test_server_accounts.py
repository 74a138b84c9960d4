"""What a process takes, as the kernel tells it."""

import os
import time

import psutil
import pytest
import tensorflow as tf

from keras_parallax.callbacks import server_accounts
from keras_parallax.callbacks.server_accounts import ServerAccounts


def test_a_process_is_asked_for_its_memory_and_its_processors():
    accounts = ServerAccounts([tf.config.list_logical_devices("CPU")[0].name] * 2)
    first = accounts.read()
    assert [account.busy_cores for account in first] == [None, None]
    memory = psutil.Process().memory_info().rss
    assert first[0].resident_bytes == pytest.approx(memory, rel=0.2)
    begun = time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    for account in accounts.read():
        assert 0 < account.busy_cores < 2 * os.cpu_count()


def test_the_name_of_a_process_may_hold_anything():
    stat = "7 (a b) c) S " + " ".join(map(str, range(1, 50)))
    ticks = 11 + 12
    assert server_accounts.busy_seconds(stat) == ticks / os.sysconf("SC_CLK_TCK")


def test_servers_that_keep_no_account_are_not_asked_again(monkeypatch):
    monkeypatch.setattr(server_accounts, "_STAT", "/no/such/file")
    accounts = ServerAccounts([tf.config.list_logical_devices("CPU")[0].name])
    assert accounts.read() == []
    monkeypatch.undo()
    assert accounts.read() == []


def test_there_is_none_to_ask_where_no_server_is():
    assert ServerAccounts.of_connected().read() == []
