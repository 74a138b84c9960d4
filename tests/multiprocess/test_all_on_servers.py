"""Everything on servers: what is looked up as tables, what is used whole in one."""

import json

import pytest

from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

ON_SERVERS = {"architecture": "ps"}
CASES = [
    ("gathered", "adam", ON_SERVERS, False),
    ("gathered", "sgd", ON_SERVERS, False),
    ("dense", "adam", {**ON_SERVERS, "routes": {"*rows": "servers"}}, False),
    # Fixed by the user: pulled whole.
    ("gathered", "adam", {**ON_SERVERS, "routes": {"*rows": "allreduce"}}, False),
    ("dense", "sgd", ON_SERVERS, True),
]
IDS = ["adam", "sgd", "whole", "fixed", "by-hand"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all_on_servers")
    job = run_job("all_on_servers", folder, json.dumps(CASES), workers=2, servers=2)
    first, second = job.check().results
    assert first == second
    return dict(zip(IDS, first, strict=True))


@pytest.mark.parametrize("case", IDS)
def test_it_trains_as_one_process_does(results, case):
    assert results[case]["error"] < 1e-4


@pytest.mark.parametrize(("case", "slots"), [("adam", 2), ("sgd", 0)])
def test_what_is_looked_up_becomes_a_table_with_its_slots(results, case, slots):
    result = results[case]
    assert result["held"] == "Table"
    assert result["slots"] == ["Table"] * slots
    assert result["where"] == "servers (dedicated, 2 partitions)"
    assert result["reason"] == "its rows are looked up, as the traced step shows"
    assert result["gradient"] == "sparse"
    (line,) = result["changes"]
    assert line.startswith("layer/rows: servers (dedicated, 1 partitions) -> servers")


def test_a_table_that_is_used_whole_becomes_one_on_a_server(results):
    result = results["whole"]
    assert result["held"] == "ServerVariable"
    assert result["where"] == "servers (dedicated, 1 partitions)"
    assert result["gradient"] == "dense"


def test_routes_have_the_last_word(results):
    assert results["fixed"]["held"] == "ServerVariable"
    assert not results["fixed"]["changes"]
