"""Measures the network, then starts again with figures that worker 0 alone has."""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness

from keras_parallax.cluster.session import Session
from keras_parallax.cluster.topology import resolve
from keras_parallax.plan.calibration import network_of

folder = sys.argv[1]
topology = resolve()
os.environ["KERAS_PARALLAX_CACHE"] = f"{folder}/cache-{topology.rank}"
session = Session.join(topology, wants_servers=False)
session.job.barrier()
start = time.perf_counter()
measured = network_of(session)
seconds = time.perf_counter() - start
kept = os.path.isdir(os.environ["KERAS_PARALLAX_CACHE"])
again = network_of(session)
harness.write_result(
    folder,
    topology.rank,
    {
        "measured": measured.to_dict(),
        "again": again.to_dict(),
        "seconds": seconds,
        "kept": kept,
    },
)
