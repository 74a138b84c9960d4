"""Every worker of the job keeps the contract of homes, clause by clause."""

import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

import keras_parallax as kp
from tests import home_contract
from tests.multiprocess import harness

folder, servers = sys.argv[1:3]

road = "servers"
if servers == "copies":
    servers, road = "peers", "allgather"
strategy = kp.ParallaxStrategy(servers=servers)
seat = home_contract.Seat(strategy._home.at_end_of(road), strategy._session.job)
outcomes = {"home": seat.home.name, "devices": len(seat.home.devices)}
for name, check in home_contract.CHECKS.items():
    try:
        check(seat)
        outcomes[name] = "kept"
    except AssertionError:
        outcomes[name] = traceback.format_exc()
    seat.job.barrier()
harness.write_result(folder, strategy.worker_index, outcomes)
